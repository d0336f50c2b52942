//! Page-locked memory: the host is a stream that cannot wait on a device.

use crate::harness::{count, double, hazards, pinned, run, touch};
use cudarc::driver::result;
use pool_core::{
    ArenaConfig, BucketPool, KIB, MIB, PooledBuffer, PrivatePool, StreamClock, ZeroPolicy,
};
use pool_cuda::{CudaAllocator, CudaDevice, CudaPinnedAllocator, PinnedBytes, PoolStream};
use std::slice;

#[test]
fn a_buffer_whose_copy_is_pending_is_not_handed_out() {
    let _one = double();
    let device = CudaDevice::new(0).unwrap();
    let raw = device.context().new_stream().unwrap();
    let on = device.stream(&raw).unwrap();
    let host = BucketPool::new(CudaPinnedAllocator::on(device.clone()));
    let vram = BucketPool::new(CudaAllocator::on(device));
    let target = vram.allocate_on(&on, KIB).unwrap();

    let mut source = host.allocate(KIB).unwrap();
    source.bytes_mut().unwrap().fill(1);
    raw.memcpy_htod(&*source.on(&on).unwrap(), &mut &*target.on(&on).unwrap()).unwrap();
    drop(source); // the copy has not run

    let mut next = host.allocate(KIB).unwrap();
    assert_eq!((host.stats().misses, host.stats().hits), (2, 0));
    let bytes = next.bytes_mut().unwrap();
    touch(bytes);
    bytes.fill(2);
    run();
    drop(next);
    let mut first = host.allocate(KIB).unwrap();
    touch(first.bytes_mut().unwrap());
    assert_eq!((host.stats().misses, host.stats().hits), (2, 1), "now that it has run");

    let mut shown = vec![0; 1024];
    raw.memcpy_dtoh(&*target.on(&on).unwrap(), &mut shown).unwrap();
    assert_eq!((shown, hazards()), (vec![1; 1024], 0));
}

#[test]
fn the_cpu_waits_for_a_read_back() {
    let _one = double();
    let device = CudaDevice::new(0).unwrap();
    let raw = device.context().new_stream().unwrap();
    let on = device.stream(&raw).unwrap();
    let host = BucketPool::new(CudaPinnedAllocator::registered(device.clone()));
    let vram = BucketPool::new(CudaAllocator::on(device));
    let source = vram.allocate_on(&on, KIB).unwrap();
    raw.memcpy_htod(&[7; 1024], &mut &*source.on(&on).unwrap()).unwrap();
    let mut back = host.allocate(KIB).unwrap();
    raw.memcpy_dtoh(&*source.on(&on).unwrap(), &mut &*back.on(&on).unwrap()).unwrap();
    let bytes = back.bytes().unwrap();
    touch(bytes);
    assert_eq!((bytes, hazards()), (&[7; 1024][..], 0));
}

#[test]
fn the_cpu_reads_beside_a_copy_that_reads() {
    let _one = double();
    let device = CudaDevice::new(0).unwrap();
    let raw = device.context().new_stream().unwrap();
    let on = device.stream(&raw).unwrap();
    let host = BucketPool::new(CudaPinnedAllocator::on(device.clone()));
    let vram = BucketPool::new(CudaAllocator::on(device.clone()));
    let target = vram.allocate_on(&on, KIB).unwrap();
    let mut source = host.allocate(KIB).unwrap();
    source.bytes_mut().unwrap().fill(5);
    raw.memcpy_htod(&*source.read_on(&on).unwrap(), &mut &*target.on(&on).unwrap()).unwrap();
    assert_eq!(source.bytes().unwrap(), [5; 1024]);
    let is_done = |on| device.clock().is_done(device.clock().mark(on)).unwrap();
    assert!(!is_done(&on), "the copy has not run");
    touch(source.bytes_mut().unwrap());
    assert!(is_done(&on), "it has now");
    assert_eq!(hazards(), 0);
}

#[test]
fn a_copy_into_memory_that_is_lent_for_reading_does_not_begin() {
    let _one = double();
    let device = CudaDevice::new(0).unwrap();
    let raw = device.context().new_stream().unwrap();
    let on = device.stream(&raw).unwrap();
    let host = BucketPool::new(CudaPinnedAllocator::on(device.clone()));
    let vram = BucketPool::new(CudaAllocator::on(device));
    let source = vram.allocate_on(&on, KIB).unwrap();
    let back = host.allocate(KIB).unwrap();
    let copy = || {
        let lent = back.read_on(&on).unwrap();
        raw.memcpy_dtoh(&*source.read_on(&on).unwrap(), &mut &*lent)
    };
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(copy)).unwrap_err();
    let said = panic.downcast_ref::<String>().map(String::as_str);
    let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap();
    assert_eq!(said, "a copy into page-locked memory that `read_on` lent; take `on`");
}

#[test]
fn an_arena_wastes_no_power_of_two() {
    let _one = double();
    let device = CudaDevice::new(0).unwrap();
    let pool = BucketPool::builder(CudaPinnedAllocator::on(device))
        .arena(ArenaConfig::segments(16 * MIB))
        .build();
    let batches: Vec<_> = (0..16).map(|_| pool.allocate(MIB - 100 * KIB).unwrap()).collect();
    assert_eq!((pinned(), count("cuMemHostAlloc")), (16 * MIB, 1));
    assert_eq!(batches.iter().map(PooledBuffer::allocated_size).sum::<u64>(), 16 * 924 * KIB);
    drop(batches);
    drop(pool);
    assert_eq!(pinned(), 0);
}

/// A library keeps the address of a buffer, as `record_stream` allows, and copies from it on the
/// recorded stream while no `Use` of the buffer lives.
struct Library {
    stream: PoolStream,
    target: PooledBuffer<CudaAllocator>,
}

impl Library {
    fn new(device: &CudaDevice) -> Self {
        let stream = device.stream(&device.context().new_stream().unwrap()).unwrap();
        let pool = BucketPool::new(CudaAllocator::on(device.clone()));
        let target = pool.allocate_on(&stream, KIB).unwrap();
        Self { stream, target }
    }

    fn copies(&self, from: *const u8) {
        let to = self.target.on(&self.stream).unwrap();
        // SAFETY: the bytes of a page-locked buffer; its block stays page-locked in its pool.
        let from = unsafe { slice::from_raw_parts(from, 1024) };
        let stream = self.stream.raw().cu_stream();
        // SAFETY: the target has as many bytes; both streams and blocks live on.
        unsafe { result::memcpy_htod_async(to.as_ptr(), from, stream) }.unwrap();
    }

    fn copied(&self) -> Vec<u8> {
        let mut shown = vec![0; 1024];
        let copied = &*self.target.on(&self.stream).unwrap();
        self.stream.raw().memcpy_dtoh(copied, &mut shown).unwrap();
        shown
    }
}

#[test]
fn a_buffer_of_a_recorded_stream_is_not_handed_out_while_a_late_copy_is_pending() {
    let _one = double();
    let device = CudaDevice::new(0).unwrap();
    let (host, library) =
        (BucketPool::new(CudaPinnedAllocator::on(device.clone())), Library::new(&device));
    let mut source = host.allocate(KIB).unwrap();
    source.record_stream(&library.stream).unwrap();
    for byte in [1, 2] {
        let bytes = source.bytes_mut().unwrap(); // waits for the copy before
        touch(bytes);
        bytes.fill(byte);
        library.copies(bytes.as_ptr());
    }
    drop(source);
    let mut next = host.allocate(KIB).unwrap();
    next.bytes_mut().unwrap().fill(3);
    assert_eq!((host.stats().misses, host.stats().hits), (2, 0), "the copy is pending");
    assert_eq!(library.copied()[..4], [2; 4]);
    assert_eq!(hazards(), 0);
}

#[test]
fn a_freed_buffer_of_a_recorded_stream_is_not_zeroed_while_a_late_copy_is_pending() {
    let _one = double();
    let device = CudaDevice::new(0).unwrap();
    let host = BucketPool::builder(CudaPinnedAllocator::on(device.clone()));
    let (host, library) = (host.zero(ZeroPolicy::OnReturn).build(), Library::new(&device));
    let mut source = host.allocate(KIB).unwrap();
    let bytes = source.bytes_mut().unwrap();
    bytes.fill(7);
    let at = bytes.as_ptr();
    source.record_stream(&library.stream).unwrap();
    let clock = device.clock();
    assert_eq!(clock.is_done(clock.mark(&library.stream)), Ok(true), "nothing is queued so far");
    library.copies(at);
    drop(source);
    assert_eq!(library.copied()[..4], [7; 4]);
}

/// As if a launch of a graph copied from memory that the graph's private pool keeps.
#[test]
fn memory_of_a_private_pool_is_not_zeroed_while_a_launch_reads_it() {
    for zero in [ZeroPolicy::OnReturn, ZeroPolicy::Never] {
        let _one = double();
        let device = CudaDevice::new(0).unwrap();
        let host = BucketPool::builder(CudaPinnedAllocator::on(device.clone()));
        let (host, library) = (host.zero(zero).build(), Library::new(&device));
        let private = PrivatePool::new(&host);
        private.bind(host.default_stream()).unwrap();
        let mut source = host.allocate(KIB).unwrap();
        let bytes = source.bytes_mut().unwrap();
        bytes.fill(7);
        let at = bytes.as_ptr();
        private
            .launch(&library.stream, || {
                library.copies(at);
                Ok(())
            })
            .unwrap();
        drop(source);
        let zeroed = host.allocate_zeroed(KIB).unwrap();
        assert_eq!(library.copied()[..4], [7; 4], "{zero:?}");
        drop(zeroed);
    }
}
