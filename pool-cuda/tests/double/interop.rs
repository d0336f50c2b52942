//! Views, typed arrays and raw blocks in cudarc's own calls.

use crate::harness::{capture, count, double, fail, hazards, held, kernel, kernel_at, mend, run};
use cudarc::driver::sys::CUresult;
use cudarc::driver::{DevicePtr, DevicePtrMut, DriverError, HostSlice, result};
use pool_array::PooledArray;
use pool_core::port::Arrival;
use pool_core::{ArenaConfig, BucketPool, DeviceAllocator, KIB, PoolBuilder, StreamClock, Why};
use pool_cuda::{
    CudaAllocator, CudaAsyncAllocator, CudaCapture, CudaDevice, CudaPinnedAllocator, PoolStream,
    into_slice,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

fn stream(device: &CudaDevice) -> PoolStream {
    device.stream(&device.context().new_stream().unwrap()).unwrap()
}

/// Whether the context of a device is current to this thread.
fn is_current(device: &CudaDevice) -> bool {
    result::ctx::get_current() == Ok(Some(device.context().cu_ctx()))
}

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
        let a = PooledArray::<f32, _>::new_on(&pool, &on[0], [64, 4]).unwrap();
        assert_eq!((a.shape(), held() > 0), (&[64, 4][..], true));
        let b = PooledArray::<f32, _>::new_on(&pool, &on[1], 256).unwrap();
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
    assert_eq!(
        PooledArray::<f32, _>::new(&pool, [usize::MAX, 2]).unwrap_err().why(),
        Why::TooLarge
    );
}

#[test]
fn a_stream_of_another_device_waits_by_the_host() {
    let _one = double();
    let (device, peer) = (CudaDevice::new(0).unwrap(), CudaDevice::new(1).unwrap());
    peer.enable_access_to(&device).unwrap();
    let raw = device.context().new_stream().unwrap();
    let on = device.stream(&raw).unwrap();
    let pool = BucketPool::new(CudaAllocator::on(device));
    let array = PooledArray::<u8, _>::new_on(&pool, &on, 1024).unwrap();
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
    let mut array = PooledArray::<u8, _>::new(&pool, 16).unwrap();
    crate::harness::lose(719);
    assert!(pool.allocate(1 << 20).is_err(), "finds out");
    mend();
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

/// Memory that becomes slices: in the order of streams.
fn ordered(device: &CudaDevice) -> PoolBuilder<CudaAsyncAllocator> {
    BucketPool::builder(CudaAsyncAllocator::new(device.clone(), 0).unwrap())
}

#[test]
fn whole_blocks_become_slices_of_cudarcs() {
    let _one = double();
    let device = CudaDevice::new(0).unwrap();
    let raw = device.context().new_stream().unwrap();
    let (on, other) = (device.stream(&raw).unwrap(), device.context().new_stream().unwrap());
    let pool = ordered(&device).build();
    let buffer = pool.allocate_on(&on, KIB).unwrap();
    raw.memcpy_htod(&[9; 1024], &mut &*buffer.on(&on).unwrap()).unwrap();
    let refused = into_slice::<u8>(buffer.detach(), &other).unwrap_err();
    assert_eq!(refused.why, Why::Foreign, "a stream that the device does not know");
    let odd = pool.allocate(6).unwrap().detach();
    assert_eq!(into_slice::<f32>(odd, &raw).unwrap_err().why, Why::Unsupported);

    let buffer = pool.allocate_on(&on, KIB).unwrap();
    raw.memcpy_htod(&[9; 1024], &mut &*buffer.on(&on).unwrap()).unwrap();
    let slice = into_slice::<u32>(buffer.detach(), &raw).unwrap();
    assert_eq!(raw.clone_dtoh(&slice).unwrap(), vec![0x0909_0909; 256]);
    pool.clear().unwrap();
    assert_eq!((pool.stats().reserved_bytes, held()), (0, KIB), "the slice's");
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

/// cudarc orders a slice on other streams by its events, as it does for slices that it has filled.
#[test]
fn a_slice_on_another_stream_is_behind_the_work_with_its_block() {
    let _one = double();
    let device = CudaDevice::new(0).unwrap();
    let pool = ordered(&device).build();
    let [s, t, u] = [(); 3].map(|()| stream(&device));
    let block = || {
        let buffer = pool.allocate_on(&s, KIB).unwrap();
        kernel(&buffer, &s);
        kernel(&buffer, &u);
        into_slice::<u8>(buffer.detach(), s.raw()).unwrap()
    };
    let (read, mut written) = (block(), block());
    {
        let (at, _recorded) = read.device_ptr(t.raw());
        assert_eq!(kernel_at(&t, at, KIB), 0);
        let (at, _recorded) = written.device_ptr_mut(t.raw());
        assert_eq!(kernel_at(&t, at, KIB), 0);
    }
    run();
    assert_eq!(hazards(), 0);
}

#[test]
fn a_slice_whose_events_are_refused_is_behind_the_work_with_its_block() {
    let _one = double();
    let device = CudaDevice::new(0).unwrap();
    let pool = ordered(&device).build();
    let (s, t) = (stream(&device), stream(&device));
    let buffer = pool.allocate_on(&s, KIB).unwrap();
    kernel(&buffer, &s);
    fail("cuEventRecord", 0, 1, 0);
    let slice = into_slice::<u8>(buffer.detach(), s.raw()).unwrap();
    assert_eq!(count("cuEventSynchronize"), 1, "the host waits instead");
    assert!(device.context().check_err().is_err(), "cudarc tells it");
    {
        let (at, _recorded) = slice.device_ptr(t.raw());
        assert_eq!(kernel_at(&t, at, KIB), 0);
    }
    run();
    assert_eq!(hazards(), 0);
}

#[test]
fn the_callers_context_is_back_after_a_block_became_a_slice() {
    let _one = double();
    let (device, other) = (CudaDevice::new(0).unwrap(), CudaDevice::new(1).unwrap());
    let s = stream(&device);
    let (whole, parts) =
        (ordered(&device).build(), ordered(&device).arena(ArenaConfig::grow()).build());
    other.context().bind_to_thread().unwrap();
    let block = whole.allocate_on(&s, KIB).unwrap().detach();
    let slice = into_slice::<u8>(block, s.raw()).unwrap();
    assert!(is_current(&other));
    let part = parts.allocate_on(&s, KIB).unwrap().detach();
    assert_eq!(into_slice::<u8>(part, s.raw()).unwrap_err().why, Why::Unsupported);
    assert!(is_current(&other), "after a refusal");
    drop(slice);
}

/// cudarc panics where the driver refuses one of the two events of a slice.
#[test]
fn a_block_goes_back_when_cudarc_makes_no_slice_of_it() {
    let _one = double();
    let (device, other) = (CudaDevice::new(0).unwrap(), CudaDevice::new(1).unwrap());
    let pool = ordered(&device).build();
    let s = stream(&device);
    other.context().bind_to_thread().unwrap();
    for refused in 0..2 {
        let block = pool.allocate_on(&s, KIB).unwrap().detach();
        fail("cuEventCreate", refused, 1, 0);
        let made = catch_unwind(AssertUnwindSafe(|| into_slice::<u8>(block, s.raw())));
        mend();
        assert!(made.is_err(), "event {refused}");
        assert!(is_current(&other), "event {refused}");
        pool.clear().unwrap();
        assert_eq!((pool.stats().reserved_bytes, held()), (0, 0), "event {refused}");
    }
}

#[test]
fn a_block_becomes_a_slice_whatever_error_an_earlier_drop_has_left() {
    let _one = double();
    let device = CudaDevice::new(0).unwrap();
    let pool = ordered(&device).build();
    let block = pool.allocate(KIB).unwrap().detach();
    let left = DriverError(CUresult::CUDA_ERROR_LAUNCH_FAILED);
    device.context().record_err::<()>(Err(left));
    let slice = into_slice::<u8>(block, &device.context().default_stream());
    assert!(slice.is_ok());
    assert_eq!(device.context().check_err(), Err(left), "the error is still there");
}

#[test]
fn a_block_becomes_no_slice_on_a_stream_under_capture() {
    let _one = double();
    let device = CudaDevice::new(0).unwrap();
    let pool = ordered(&device).build();
    let s = stream(&device);
    let block = pool.allocate_on(&s, KIB).unwrap().detach();
    let captured = capture(&pool, &s).unwrap();
    assert_eq!(into_slice::<u8>(block, s.raw()).unwrap_err().why, Why::NotSubmitted);
    assert!(captured.end().is_ok(), "the capture goes on");
}

/// cudarc makes the context of its stream current, asks for the address, and calls the driver.
#[test]
fn an_address_for_a_stream_of_another_device_leaves_that_devices_context_current() {
    let _one = double();
    let (here, there) = (CudaDevice::new(0).unwrap(), CudaDevice::new(1).unwrap());
    let pool = BucketPool::new(CudaAllocator::on(here.clone()));
    let host = BucketPool::new(CudaPinnedAllocator::on(here.clone()));
    let (s, t) = (stream(&here), stream(&there));
    let (buffer, locked) = (pool.allocate_on(&s, KIB).unwrap(), host.allocate(KIB).unwrap());
    let (used, used_locked) = (buffer.on(&s).unwrap(), locked.on(&s).unwrap());
    there.context().bind_to_thread().unwrap();
    let (_at, recorded) = DevicePtr::<u8>::device_ptr(&*used, t.raw());
    assert!(is_current(&there), "of a view");
    drop(recorded);
    let elements = used.typed::<f32>();
    let (_at, recorded) = elements.device_ptr(t.raw());
    assert!(is_current(&there), "of elements");
    drop(recorded);
    // SAFETY: no work is given to the stream.
    let (_bytes, recorded) = unsafe { (*used_locked).stream_synced_slice(t.raw()) };
    assert!(is_current(&there), "of page-locked memory");
    drop(recorded);
    let own = here.context().per_thread_stream();
    here.context().bind_to_thread().unwrap();
    let own = here.stream(&own).unwrap();
    let used = buffer.on(&own).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            there.context().bind_to_thread().unwrap();
            let (_at, _recorded) = DevicePtr::<u8>::device_ptr(&*used, t.raw());
            assert!(is_current(&there), "of memory on another thread's stream");
        });
    });
}
