//! The conformance suite over each allocator.

use crate::harness::{double, hazards, held, leftovers, pinned};
use pool_core::conformance::{self, Probe};
use pool_core::{Arena, ArenaConfig, DeviceAllocator, PooledBuffer, StreamClock};
use pool_cuda::{
    CudaAllocator, CudaAsyncAllocator, CudaDevice, CudaDriver, CudaPinnedAllocator,
    CudaVmmAllocator, PinnedBytes, PinnedRange, Vram,
};

fn fill<A: Vram>(buffer: &mut PooledBuffer<A>, byte: u8) {
    let on = buffer.allocator().clock().default_stream().clone();
    let bytes = vec![byte; usize::try_from(buffer.size()).unwrap()];
    if !bytes.is_empty() {
        on.raw().memcpy_htod(&bytes, &mut &*buffer.on(&on).unwrap()).unwrap();
        on.raw().synchronize().unwrap();
    }
}

fn contents<A: Vram>(buffer: &PooledBuffer<A>) -> Vec<u8> {
    let on = buffer.allocator().clock().default_stream();
    let mut bytes = vec![0; usize::try_from(buffer.size()).unwrap()];
    if !bytes.is_empty() {
        on.raw().memcpy_dtoh(&*buffer.on(on).unwrap(), &mut bytes).unwrap();
    }
    bytes
}

/// The CPU's own reads and writes.
fn pinned_probe<A>() -> Probe<A>
where
    A: for<'b> DeviceAllocator<Clock = pool_core::Timeline<CudaDriver>, View<'b> = PinnedRange<'b>>,
{
    Probe {
        fill: |buffer, byte| buffer.bytes().unwrap().fill(byte),
        contents: |buffer| {
            let on = buffer.allocator().clock().default_stream();
            let view = buffer.on(on).unwrap();
            on.raw().synchronize().unwrap();
            // SAFETY: as many bytes as the view has; the one stream that used them is done.
            unsafe { std::slice::from_raw_parts(view.as_ptr().as_ptr(), view.len()) }.to_vec()
        },
    }
}

fn device() -> CudaDevice {
    CudaDevice::new(0).unwrap()
}

fn nothing_is_left() {
    assert_eq!((held(), pinned(), leftovers(), hazards()), (0, 0, 0, 0));
}

#[test]
fn memory_by_alloc() {
    let _one = double();
    conformance::run(|| CudaAllocator::new(0).unwrap(), Probe { fill, contents });
    nothing_is_left();
}

#[test]
fn memory_in_the_order_of_streams() {
    let _one = double();
    let make = || CudaAsyncAllocator::new(device(), u64::MAX).unwrap();
    conformance::run(make, Probe { fill, contents });
    crate::harness::run(); // the last frees have their turn
    nothing_is_left();
}

#[test]
fn memory_in_whole_pages() {
    let _one = double();
    let make = || CudaVmmAllocator::new(device(), &[]).unwrap();
    conformance::run(make, Probe { fill, contents });
    nothing_is_left();
}

#[test]
fn an_arena_in_pages() {
    let _one = double();
    let make = || {
        let memory = CudaVmmAllocator::new(device(), &[]).unwrap();
        Arena::over_pages(memory, ArenaConfig::grow())
    };
    conformance::run_layered(make, Probe { fill, contents });
    nothing_is_left();
}

#[test]
fn an_arena_of_segments() {
    let _one = double();
    let make = || Arena::new(CudaAllocator::new(0).unwrap(), ArenaConfig::torch());
    conformance::run_layered(make, Probe { fill, contents });
    nothing_is_left();
}

#[test]
fn page_locked_memory() {
    let _one = double();
    conformance::run(|| CudaPinnedAllocator::on(device()), pinned_probe());
    nothing_is_left();
}

#[test]
fn registered_memory() {
    let _one = double();
    conformance::run(|| CudaPinnedAllocator::registered(device()), pinned_probe());
    nothing_is_left();
}

#[test]
fn an_arena_of_page_locked_memory() {
    let _one = double();
    let make = || Arena::new(CudaPinnedAllocator::on(device()), ArenaConfig::segments(1 << 20));
    conformance::run_layered(make, pinned_probe());
    nothing_is_left();
}
