//! Views, typed arrays and raw blocks in cudarc's own calls.

use crate::harness::{double, hazards, held, run};
use pool_core::{ArenaConfig, Arrival, BucketPool, DeviceAllocator, KIB, StreamClock, Why};
use pool_cuda::{
    CudaAllocator, CudaAsyncAllocator, CudaCapture, CudaDevice, CudaPinnedAllocator, into_slice,
};

#[test]
fn a_view_is_right_on_another_stream_too() {
    let _one = double();
    let device = CudaDevice::new(0).unwrap();
    let (mine, others) =
        (device.context().new_stream().unwrap(), device.context().new_stream().unwrap());
    let on = device.stream(&mine).unwrap();
    let pool = BucketPool::new(CudaAllocator::on(device));
    let buffer = pool.allocate_on(&on, KIB).unwrap();
    let mut back = vec![0; 1024];
    mine.memcpy_htod(&[7; 1024], &mut &*buffer.on(&on).unwrap()).unwrap();
    others.memcpy_dtoh(&*buffer.on(&on).unwrap(), &mut back).unwrap();
    assert_eq!((back, hazards()), (vec![7; 1024], 0));
}

#[test]
fn arrays_go_into_copies_on_any_stream_and_are_recorded() {
    let _one = double();
    let device = CudaDevice::new(0).unwrap();
    let raw: Vec<_> = (0..3).map(|_| device.context().new_stream().unwrap()).collect();
    let on: Vec<_> = raw.iter().map(|raw| device.stream(raw).unwrap()).collect();
    let unknown = device.context().new_stream().unwrap();
    let pool = BucketPool::builder(CudaAllocator::on(device)).arena(ArenaConfig::torch()).build();
    for turn in 0..20_u8 {
        let a = pool.allocate_array_on::<f32>(&on[0], [64, 4]).unwrap();
        assert_eq!((a.shape(), held() > 0), (&[64, 4][..], true));
        let b = pool.allocate_array_on::<f32>(&on[1], 256).unwrap();
        let values = [f32::from(turn); 256];
        raw[0].memcpy_htod(&values, &mut a.on(&on[0]).unwrap().typed::<f32>()).unwrap();
        // Behind the copy on the first.
        let (from, to) = (a.on(&on[1]).unwrap(), b.on(&on[1]).unwrap());
        raw[1].memcpy_dtod(&from.typed::<f32>(), &mut to.typed()).unwrap();
        drop((from, to));
        // Behind the copy on the second.
        raw[0].memset_zeros(&mut a.on(&on[0]).unwrap().typed::<f32>()).unwrap();
        assert_eq!(unknown.clone_dtoh(&b.on(&on[1]).unwrap().typed::<f32>()).unwrap(), values);
        let zeros = raw[2].clone_dtoh(&a.on(&on[2]).unwrap().typed::<f32>()).unwrap();
        assert_eq!(zeros, vec![0.0; 256]);
        // Both are dropped while nothing says that the streams are done with them.
    }
    run();
    assert_eq!(hazards(), 0);
    assert_eq!(pool.allocate_array::<f32>([usize::MAX, 2]).unwrap_err().why(), Why::TooLarge);
}

#[test]
fn a_stream_of_another_device_waits_by_the_host() {
    let _one = double();
    let (device, peer) = (CudaDevice::new(0).unwrap(), CudaDevice::new(1).unwrap());
    peer.enable_access_to(&device).unwrap();
    let raw = device.context().new_stream().unwrap();
    let on = device.stream(&raw).unwrap();
    let pool = BucketPool::new(CudaAllocator::on(device));
    let array = pool.allocate_array_on::<u8>(&on, 1024).unwrap();
    let used = array.on(&on).unwrap();
    raw.memcpy_htod(&[7; 1024], &mut used.typed::<u8>()).unwrap();
    let stream = peer.context().new_stream().unwrap();
    assert_eq!(stream.clone_dtoh(&used.typed::<u8>()).unwrap(), vec![7; 1024]);
    raw.memset_zeros(&mut used.typed::<u8>()).unwrap();
    assert_eq!(hazards(), 0);
}

#[test]
fn an_array_of_a_lost_device_is_refused_to_copies() {
    let _one = double();
    let device = CudaDevice::new(0).unwrap();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let mut array = pool.allocate_array::<u8>(16).unwrap();
    crate::harness::lose(719);
    assert!(pool.allocate(1 << 20).is_err(), "finds out");
    crate::harness::mend();
    assert_eq!(array.on(device.clock().default_stream()).unwrap_err().why, Why::Lost);
    assert_eq!(array.write(&[0; 16]).unwrap_err().why, Why::Lost);
    assert_eq!(array.to_vec().unwrap_err().why, Why::Lost);
}

/// The port's copies: on each memory, with and without waiting, and out of order on no stream.
#[test]
fn bytes_go_in_and_out_of_each_kind_of_memory() {
    let _one = double();
    let device = CudaDevice::new(0).unwrap();
    let raw = [(); 2].map(|()| device.context().new_stream().unwrap());
    let on = [0, 1].map(|stream| device.stream(&raw[stream]).unwrap());
    let host = BucketPool::new(CudaPinnedAllocator::on(device.clone()));
    let mut locked = host.allocate(1000).unwrap();
    locked.write_at(3, &[9; 7]).unwrap();
    let mut seven = [0; 7];
    locked.read_at_on(&on[0], 3, &mut seven).unwrap();
    assert_eq!(seven, [9; 7]);
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let mut arrivals = Vec::new();
    for turn in 0..20_u8 {
        let mut buffer = pool.allocate_on(&on[0], 1000).unwrap();
        buffer.write_later(&on[0], 0, &[turn; 1000]).unwrap();
        buffer.write_at_on(&on[1], 500, &[turn + 100; 500]).unwrap();
        arrivals.push((turn, buffer.read_later(&on[0], 499, 2).unwrap()));
        assert_eq!(buffer.write_at(999, &[0; 2]).unwrap_err().why, Why::OutOfRange);
    }
    for (turn, arrival) in arrivals {
        assert_eq!(arrival.wait().unwrap(), [turn, turn + 100]);
    }
    let mut buffer = pool.allocate_on(&on[0], 16).unwrap();
    // SAFETY: the capture takes no work.
    let captured = unsafe { CudaCapture::begin(&pool, &on[0]) }.unwrap();
    assert_eq!(buffer.write_at_on(&on[0], 0, &[1]).unwrap_err().why, Why::NotSubmitted);
    drop(captured.end().unwrap());
    assert_eq!(hazards(), 0);
}

#[test]
fn whole_blocks_become_slices_of_cudarcs() {
    let _one = double();
    let device = CudaDevice::new(0).unwrap();
    let raw = device.context().new_stream().unwrap();
    let (on, other) = (device.stream(&raw).unwrap(), device.context().new_stream().unwrap());
    let ordered = BucketPool::new(CudaAsyncAllocator::new(device.clone(), 0).unwrap());
    let pool = BucketPool::new(CudaAllocator::on(device));
    let buffer = pool.allocate_on(&on, KIB).unwrap();
    raw.memcpy_htod(&[9; 1024], &mut &*buffer.on(&on).unwrap()).unwrap();
    let refused = into_slice::<u8, _>(buffer.detach(), &other).unwrap_err();
    assert_eq!(refused.why, Why::Foreign, "a stream that the device does not know");
    let odd = pool.allocate(6).unwrap().detach();
    assert_eq!(into_slice::<f32, _>(odd, &raw).unwrap_err().why, Why::Unsupported);

    let buffer = pool.allocate_on(&on, KIB).unwrap();
    raw.memcpy_htod(&[9; 1024], &mut &*buffer.on(&on).unwrap()).unwrap();
    let slice = into_slice::<u32, _>(buffer.detach(), &raw).unwrap();
    assert_eq!(raw.clone_dtoh(&slice).unwrap(), vec![0x0909_0909; 256]);
    pool.clear().unwrap();
    assert_eq!((pool.stats().reserved_bytes, held()), (0, KIB), "the slice's");
    drop(slice);
    let slice =
        into_slice::<u32, _>(ordered.allocate_on(&on, KIB).unwrap().detach(), &raw).unwrap();
    drop(slice);
    run();
    assert_eq!((held(), hazards()), (0, 0));
}

#[test]
fn a_raw_block_leaves_the_accounts_and_is_the_callers() {
    let _one = double();
    let pool = BucketPool::new(CudaAllocator::new(0).unwrap());
    let (block, marks) = pool.allocate(KIB).unwrap().detach().into_raw().unwrap();
    assert_eq!((pool.stats().reserved_bytes, held()), (0, KIB));
    let other = CudaAllocator::on(pool.allocator().device().clone());
    let (stranger, none) =
        BucketPool::new(other).allocate(KIB).unwrap().detach().into_raw().unwrap();
    assert_eq!(pool.allocator().free(stranger, &none).unwrap_err().why, Why::Foreign);
    pool.allocator().free(block, &marks).unwrap();
    assert_eq!(held(), KIB, "the stranger's is lost: nobody else may free it");
}
