//! The suite, and the orders that would break a pool, on the noop backend and on a real Vulkan
//! device where there is one (lavapipe, a driver on the CPU, in CI).
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests; what did not run says so")]

mod present;

use pool_core::conformance::{self, Probe};
use pool_core::{
    BucketPool, DeviceAllocator, KIB, MIB, PooledBuffer, StreamClock, Why, ZeroPolicy,
};
use pool_wgpu::{Usage, WgpuAllocator};
use present::{devices, noop, vulkan};
use wgpu::{BufferUsages, PollType};

fn fill(buffer: &mut PooledBuffer<WgpuAllocator>, byte: u8) {
    let allocator = buffer.allocator();
    let view = buffer.on(allocator.clock().default_stream()).unwrap();
    let bytes = usize::try_from(view.size().next_multiple_of(4)).unwrap();
    view.write(0, &vec![byte; bytes]).unwrap();
    allocator.queue().submit([]);
}

fn contents(buffer: &PooledBuffer<WgpuAllocator>) -> Vec<u8> {
    let allocator = buffer.allocator();
    let device = allocator.device();
    let mut scope = allocator.scope();
    let on = scope.stream();
    let view = buffer.on(&on).unwrap();
    let bytes = view.size().next_multiple_of(4).max(4);
    let back = device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: bytes,
        usage: BufferUsages::MAP_READ | BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    let from = view.buffer().unwrap();
    scope.encoder().copy_buffer_to_buffer(from, view.offset(), &back, 0, bytes);
    scope.submit().unwrap();
    back.slice(..).map_async(wgpu::MapMode::Read, Result::unwrap);
    device.poll(PollType::wait_indefinitely()).unwrap();
    let mapped = back.slice(..).get_mapped_range().unwrap();
    mapped[..usize::try_from(view.size()).unwrap()].to_vec()
}

#[test]
fn the_noop_device_passes_the_suite() {
    conformance::run(noop, Probe { fill, contents });
}

#[test]
fn a_vulkan_device_passes_the_suite() {
    let Some(first) = vulkan() else { return };
    let (device, queue) = (first.device().clone(), first.queue().clone());
    let make = || WgpuAllocator::new(device.clone(), queue.clone());
    conformance::run(make, Probe { fill, contents });
}

/// The buffer behind a pooled one, in use by a scope for a moment.
fn buffer_of(buffer: &PooledBuffer<WgpuAllocator>) -> wgpu::Buffer {
    let scope = buffer.allocator().scope();
    let on = scope.stream();
    let view = buffer.on(&on).unwrap();
    view.buffer().unwrap().clone()
}

#[test]
fn a_buffer_dropped_in_an_open_scope_serves_that_scope_only() {
    for allocator in devices() {
        let pool = BucketPool::builder(allocator).zero(ZeroPolicy::Never).build();
        let (mut one, two) = (pool.allocator().scope(), pool.allocator().scope());
        let (on_one, on_two) = (one.stream(), two.stream());
        let a = pool.allocate_on(&on_one, 4096).unwrap();
        let first = a.on(&on_one).unwrap().buffer().unwrap().clone();
        one.encoder().clear_buffer(&first, 0, None);
        drop(a); // the encoder is not submitted
        let b = pool.allocate_on(&on_two, 4096).unwrap();
        assert_ne!(
            *b.on(&on_two).unwrap().buffer().unwrap(),
            first,
            "another scope: a fresh buffer"
        );
        let queue = pool.allocate(4096).unwrap();
        assert_ne!(buffer_of(&queue), first, "Queue::write_buffer would run first as well");
        let c = pool.allocate_on(&on_one, 4096).unwrap();
        assert_eq!(
            *c.on(&on_one).unwrap().buffer().unwrap(),
            first,
            "the same scope: in order behind it"
        );
        assert_eq!(c.on(&on_two).unwrap_err().why, Why::NotSubmitted);
        drop(c);
        one.submit().unwrap();
        let d = pool.allocate_on(&on_two, 4096).unwrap();
        assert_eq!(
            *d.on(&on_two).unwrap().buffer().unwrap(),
            first,
            "submitted: ready for everybody"
        );
        two.submit().unwrap();
        assert_eq!((pool.stats().hits, pool.stats().misses), (2, 3));
    }
}

#[test]
fn a_foreign_use_holds_a_block_back_and_an_abandoned_scope_does_not() {
    for allocator in devices() {
        let pool = BucketPool::builder(allocator).zero(ZeroPolicy::Never).build();
        let (one, two) = (pool.allocator().scope(), pool.allocator().scope());
        let a = pool.allocate(4096).unwrap(); // allocated for the queue
        let _ = a.on(&one.stream()).unwrap();
        drop(a);
        drop(pool.allocate_on(&two.stream(), 4096).unwrap());
        assert_eq!(pool.stats().hits, 0, "in use by a scope that is open");
        drop(one);
        let again = [1, 2].map(|_| pool.allocate_on(&two.stream(), 4096).unwrap());
        assert_eq!(pool.stats().hits, 2, "the scope never ran");
        drop(again);
    }
}

#[test]
fn a_clearing_pool_never_clears_a_block_of_an_open_scope_behind_its_back() {
    for allocator in devices() {
        let pool = BucketPool::new(allocator); // wgpu's promise: OnAllocate
        let mut scope = pool.allocator().scope();
        let on = scope.stream();
        let a = pool.allocate_on(&on, 4096).unwrap();
        let first = a.on(&on).unwrap().buffer().unwrap().clone();
        scope.encoder().clear_buffer(&first, 0, None);
        drop(a);
        // Clearing runs ahead of the scope, so the scope's own earlier commands would come after.
        let b = pool.allocate_on(&on, 4096).unwrap();
        assert_ne!(*b.on(&on).unwrap().buffer().unwrap(), first);
        scope.submit().unwrap();
        let mut c = pool.allocate(4096).unwrap();
        assert_eq!(buffer_of(&c), first);
        fill(&mut c, 7);
        drop(c);
        let d = pool.allocate(4000).unwrap();
        assert!(contents(&d).iter().all(|byte| *byte == 0));
    }
}

#[test]
fn usages_are_kinds_and_errors_come_before_a_buffer_does() {
    for allocator in devices() {
        let largest = allocator.device().limits().max_buffer_size;
        let pool = BucketPool::new(allocator);
        let on = *pool.allocator().clock().default_stream();
        drop(pool.allocate(KIB).unwrap());
        let uniform = Usage::new(BufferUsages::UNIFORM);
        let other = pool.allocate_kind(&on, KIB, uniform).unwrap();
        assert_eq!((pool.stats().hits, other.kind()), (0, uniform));
        assert_eq!(buffer_of(&other).usage(), BufferUsages::UNIFORM | BufferUsages::COPY_DST);
        assert_eq!(pool.allocate(largest + 1).unwrap_err().why(), Why::TooLarge);
        for mapped in [BufferUsages::MAP_READ, BufferUsages::MAP_WRITE | BufferUsages::COPY_SRC] {
            let error = pool.allocate_kind(&on, KIB, Usage::new(mapped)).unwrap_err();
            assert_eq!(error.why(), Why::Unsupported, "{error}");
        }
        assert_eq!(pool.stats().reserved_bytes, 2 * KIB);
    }
}

#[test]
fn a_request_that_fits_the_device_is_served_though_its_class_does_not() {
    for largest in [3 * MIB, 4 * MIB] {
        let max_buffer_size = largest;
        let required_limits = wgpu::Limits { max_buffer_size, ..wgpu::Limits::defaults() };
        let descriptor = wgpu::DeviceDescriptor { required_limits, ..Default::default() };
        let (device, queue) = wgpu::Device::noop(&descriptor);
        let allocator = WgpuAllocator::new(device, queue);
        assert_eq!(allocator.largest(), largest);
        let pool = BucketPool::new(allocator);
        let large = pool.allocate(largest / 4 * 3).unwrap();
        let past_the_pool = u64::from(!largest.is_power_of_two());
        assert_eq!(pool.stats().bypasses, past_the_pool);
        assert!(large.allocated_size() <= largest);
    }
}

#[test]
fn a_scope_that_was_submitted_is_no_stream_any_more() {
    let pool = BucketPool::new(noop());
    let scope = pool.allocator().scope();
    let stale = scope.stream();
    let buffer = pool.allocate_on(&stale, KIB).unwrap();
    scope.submit().unwrap();
    assert_eq!(pool.allocate_on(&stale, KIB).unwrap_err().why(), Why::Foreign);
    assert_eq!(buffer.on(&stale).unwrap_err().why, Why::Foreign);
    let queue = *pool.allocator().clock().default_stream();
    assert!(buffer.on(&queue).is_ok(), "the buffer itself goes on");
}

#[test]
fn work_of_an_open_scope_is_ahead_of_nobody() {
    let pool = BucketPool::new(noop());
    let (scope, queue) = (pool.allocator().scope(), *pool.allocator().clock().default_stream());
    let buffer = pool.allocate(KIB).unwrap();
    drop(buffer.on(&scope.stream()).unwrap());
    // `Queue::write_buffer` would run ahead of the scope, which uses the buffer already.
    assert_eq!(buffer.on(&queue).unwrap_err().why, Why::NotSubmitted);
    scope.submit().unwrap();
    assert!(buffer.on(&queue).is_ok());
}

#[test]
fn a_buffer_that_cannot_be_cleared_is_an_error_and_not_kept() {
    let pool = BucketPool::new(noop());
    let buffer = pool.allocate(KIB).unwrap();
    let clone = buffer_of(&buffer);
    drop(buffer);
    clone.destroy(); // a clone kept past the drop, and destroyed
    assert_eq!(pool.allocate(KIB).unwrap_err().why(), Why::Other);
    assert!(pool.allocate(KIB).is_ok(), "the next request gets another buffer");
}

#[test]
fn a_stranger_and_a_scope_without_commands() {
    let (pool, other) = (BucketPool::new(noop()), noop());
    let scope = other.scope();
    assert_eq!(pool.allocate_on(&scope.stream(), 1).unwrap_err().why(), Why::Foreign);
    let buffer = pool.allocate(1).unwrap();
    assert_eq!(buffer.on(&scope.stream()).unwrap_err().why, Why::Foreign);
    scope.submit().unwrap();
}

#[test]
fn clearing_the_pool_leaves_what_waits_for_an_open_scope() {
    let pool = BucketPool::builder(noop()).zero(ZeroPolicy::Never).build();
    let scope = pool.allocator().scope();
    drop(pool.allocate_on(&scope.stream(), KIB).unwrap());
    drop(pool.allocate(2 * KIB).unwrap());
    let unsubmitted = pool.clear().unwrap();
    assert_eq!(unsubmitted, 2 * KIB);
    scope.submit().unwrap();
    assert_eq!(pool.clear().unwrap(), KIB);
}
