//! Pools, buffers and devices go in any order, on any thread.

use pool_core::buffer::Detached;
use pool_core::{BucketPool, KIB, PooledBuffer};
use pool_sim::SimDevice;
use std::sync::{Arc, Mutex};
use std::thread;

const fn is_send_sync_static<T: Send + Sync + 'static>() {}
const fn is_clone<T: Clone>() {}
const _: () = {
    is_send_sync_static::<BucketPool<SimDevice>>();
    is_send_sync_static::<PooledBuffer<SimDevice>>();
    is_send_sync_static::<Detached<SimDevice>>();
    is_clone::<BucketPool<SimDevice>>();
};

#[test]
fn all_six_orders_of_dropping_a_buffer_a_pool_and_a_device() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let observer = SimDevice::new();
        let pool = BucketPool::new(observer.clone());
        let (mut device, mut buffer) = (Some(observer.clone()), Some(pool.allocate(512)));
        drop(pool.allocate(4096)); // something idle as well
        let mut pool = Some(pool);
        for what in order {
            match what {
                0 => drop(buffer.take()),
                1 => drop(pool.take()),
                _ => drop(device.take()),
            }
        }
        assert_eq!(observer.held_bytes(), 0, "order {order:?}");
        assert_eq!(observer.calls().allocations, observer.calls().frees, "order {order:?}");
        assert_eq!(observer.clones(), 1, "order {order:?}: the store is not freed");
    }
}

#[test]
fn a_pool_that_goes_first_gives_its_idle_blocks_back_at_once() {
    let device = SimDevice::new();
    let pool = BucketPool::new(device.clone());
    let buffer = pool.allocate(KIB).unwrap();
    drop(pool.allocate(8 * KIB));
    drop(pool);
    assert_eq!(device.held_bytes(), KIB);
    drop(buffer);
    assert_eq!(device.held_bytes(), 0);
}

#[test]
fn buffers_that_outlive_their_pool_go_on_other_threads() {
    for round in 0..if cfg!(miri) { 2 } else { 300 } {
        let device = SimDevice::new();
        let pool = BucketPool::new(device.clone());
        let mut here: Vec<_> = (0..64).map(|i| pool.allocate(64 << (i % 8))).collect();
        let there = here.split_off(32);
        let threads = [thread::spawn(move || drop(here)), thread::spawn(move || drop(there))];
        drop(pool);
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!((device.held_bytes(), device.clones()), (0, 1), "round {round}");
    }
}

#[test]
fn clones_close_with_the_last_and_work_until_then() {
    let device = SimDevice::new();
    let pool = BucketPool::new(device.clone());
    let clone = pool.clone();
    drop(pool);
    drop(clone.allocate(512).unwrap());
    assert_eq!((clone.stats().returns, device.held_bytes()), (1, 512));
    drop(clone);
    assert_eq!(device.held_bytes(), 0);
}

#[test]
fn a_detached_block_stays_under_the_limit_until_it_goes() {
    let device = SimDevice::new();
    let pool = BucketPool::builder(device.clone()).reserved_limit(2 * KIB).build();
    let detached = pool.allocate(KIB).unwrap().detach();
    let _other = pool.allocate(KIB).unwrap();
    assert!(pool.allocate(KIB).is_err());
    drop(detached); // deferred: a drop makes no device call
    assert_eq!((device.held_bytes(), pool.stats().cached_buffers), (2 * KIB, 0));
    assert!(pool.allocate(KIB).is_ok(), "deferred frees come before a refusal");
    assert_eq!(device.calls().frees, 1);
}

#[test]
fn a_raw_block_leaves_the_accounts_and_is_the_callers() {
    use pool_core::DeviceAllocator;
    let device = SimDevice::new();
    let pool = BucketPool::builder(device.clone()).reserved_limit(KIB).build();
    let (block, marks) = pool.allocate(KIB).unwrap().detach().into_raw().unwrap();
    assert_eq!((pool.stats().reserved_bytes, pool.stats().allocated_bytes), (0, 0));
    drop(pool);
    assert_eq!(device.held_bytes(), KIB);
    device.free(block, &marks).unwrap();
    assert_eq!(device.held_bytes(), 0);
}

#[test]
fn a_panic_while_a_buffer_is_held_gives_it_back_once() {
    let device = SimDevice::new();
    let pool = BucketPool::new(device.clone());
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _buffer = pool.allocate(KIB).unwrap();
        panic!("while a buffer is held");
    }));
    assert!(caught.is_err());
    assert_eq!((pool.stats().allocated_bytes, pool.stats().cached_buffers), (0, 1));
}

#[test]
fn a_block_handed_from_thread_to_thread_is_found_again() {
    let pool = BucketPool::new(SimDevice::new());
    let rounds = if cfg!(miri) { 5 } else { 100 };
    for _ in 0..rounds {
        let buffer = pool.allocate(KIB).unwrap();
        thread::scope(|scope| {
            scope.spawn(move || drop(buffer));
        });
    }
    let stats = pool.stats();
    assert_eq!((stats.misses, stats.hits), (1, rounds - 1), "other threads' blocks are found");
}

#[test]
fn a_closed_pool_drops_its_on_shortage_closure_and_what_that_holds() {
    let device = SimDevice::new();
    let spare = Arc::new(Mutex::new(None));
    let held_by_closure = spare.clone();
    let pool = BucketPool::builder(device.clone())
        .on_shortage(move |_| held_by_closure.lock().unwrap().take().is_some())
        .build();
    *spare.lock().unwrap() = Some(pool.allocate(8 * KIB).unwrap());
    let buffer = pool.allocate(KIB).unwrap();
    let closure_alive = Arc::downgrade(&spare);
    drop((spare, pool));
    assert_eq!(closure_alive.strong_count(), 0, "the closure is gone");
    assert_eq!(device.held_bytes(), KIB, "and so is the buffer that it held");
    drop(buffer);
    assert_eq!((device.held_bytes(), device.clones()), (0, 1));
}
