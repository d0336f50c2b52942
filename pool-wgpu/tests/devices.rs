//! The suite, and the orders that would break a pool, on the noop backend and on a real Vulkan
//! device where there is one (lavapipe, a driver on the CPU, in CI).
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests; what did not run says so")]

mod present;

use pool_array::PooledArray;
use pool_core::port::Arrival;
use pool_core::{
    BucketPool, DeviceAllocator, KIB, MIB, PooledBuffer, StreamClock, Why, ZeroPolicy,
};
use pool_sim::conformance;
use pool_wgpu::{Usage, WgpuAllocator};
use present::{devices, noop, vulkan};
use wgpu::BufferUsages;

#[test]
fn the_noop_device_passes_the_suite() {
    conformance::run(noop);
}

#[test]
fn a_vulkan_device_passes_the_suite() {
    let Some(first) = vulkan() else { return };
    let (device, queue) = (first.device().clone(), first.queue().clone());
    let make = || WgpuAllocator::new(device.clone(), queue.clone());
    conformance::run(make);
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
        let (mut one, mut two) = (pool.allocator().scope(), pool.allocator().scope());
        let _ = two.encoder(); // so that no other encoder is thought to use its buffers
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
        let _ = one.encoder(); // anew, so that no pass of it is open
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
        // Zeroing runs ahead of the scope, so the scope's own earlier commands would come after.
        let b = pool.allocate_on(&on, 4096).unwrap();
        assert_ne!(*b.on(&on).unwrap().buffer().unwrap(), first);
        scope.submit().unwrap();
        let mut c = pool.allocate(4096).unwrap();
        assert_eq!(buffer_of(&c), first);
        c.write_at(0, &vec![7; usize::try_from(c.size()).unwrap()]).unwrap();
        drop(c);
        let d = pool.allocate(4000).unwrap();
        assert!(d.contents().unwrap().iter().all(|byte| *byte == 0));
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

/// The port's copies on the queue's own stream: parts of words at the end, and reads of any bytes.
#[test]
fn bytes_and_arrays_go_in_and_out_of_buffers() {
    for device in devices() {
        let pool = BucketPool::new(device);
        let mut buffer = pool.allocate(1001).unwrap();
        assert_eq!(buffer.contents().unwrap(), [0; 1001], "zeroed before");
        buffer.write_at(996, &[1, 2, 3, 4, 5]).unwrap();
        let mut three = [0; 3];
        buffer.read_at(998, &mut three).unwrap();
        assert_eq!(three, [3, 4, 5]);
        assert_eq!(buffer.write_at(0, &[1]).unwrap_err().why, Why::Unaligned, "part of a word");
        assert_eq!(buffer.write_at(1000, &[1; 4]).unwrap_err().why, Why::OutOfRange);
        let on = *pool.allocator().clock().default_stream();
        buffer.write_later(&on, 0, &[9; 8]).unwrap();
        let arrival = buffer.read_later(&on, 7, 2).unwrap();
        drop(buffer); // the copy is submitted, and its memory is not the buffer's
        assert_eq!(arrival.wait().unwrap(), [9, 0]);
        let scope = pool.allocator().scope();
        let scoped = pool.allocate_on(&scope.stream(), 16).unwrap();
        let refused = scoped.read_at_on(&scope.stream(), 0, &mut three).unwrap_err();
        assert_eq!(refused.why, Why::NotSubmitted);
        scope.submit().unwrap();
        let array = PooledArray::from_slice(&pool, [3, 2], &[1_u16, 2, 3, 4, 5, 6]).unwrap();
        assert_eq!((array.to_vec().unwrap(), array.shape()), (vec![1, 2, 3, 4, 5, 6], &[3, 2][..]));
        let too_large = pool.allocate(u64::MAX / 4).unwrap_err().to_string();
        assert!(!too_large.contains("code"), "{too_large}");
    }
}

#[test]
fn a_use_that_outlives_its_scopes_submit_lends_nothing() {
    for device in devices() {
        let pool = BucketPool::new(device);
        let scope = pool.allocator().scope();
        let on = scope.stream();
        let buffer = pool.allocate_on(&on, 64).unwrap();
        let used = buffer.on(&on).unwrap();
        assert!(used.buffer().is_ok());
        drop(scope);
        assert_eq!(used.buffer().unwrap_err().why, Why::Foreign);
        assert_eq!(used.binding().unwrap_err().why, Why::Foreign);
    }
}
