//! A loom model of a pool that is closed while buffers are in use. In all interleavings each block
//! goes back to the device once, and the store is freed once, after the last buffer.
//! `cargo xtask ci` runs it.

use crate::limits::Budget;
use crate::pool::BucketPool;
use crate::pool::pool_ref::HandleSettings;
use crate::port::{DeviceAllocator, DeviceError, Immediate, Memory, Request, Why};
use crate::sys::thread_number::modelled::set as set_number;
use loom::thread;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// The number of blocks in use, and of allocators that were dropped.
#[derive(Clone, Default)]
struct Out {
    blocks: Arc<AtomicI64>,
    allocators: Arc<AtomicI64>,
}

struct Counting(Out);

impl Drop for Counting {
    fn drop(&mut self) {
        assert_eq!(self.0.blocks.load(Relaxed), 0, "all blocks went back before");
        self.0.allocators.fetch_add(1, Relaxed);
    }
}

impl DeviceAllocator for Counting {
    type Block = ();
    type View<'b> = ();
    type Kind = ();
    type Clock = Immediate;
    const MEMORY: Memory = Memory::HOST;

    fn clock(&self) -> &Immediate {
        &Immediate
    }
    fn aligned(&self, (): (), _: u64) -> Result<(), DeviceError> {
        Err(DeviceError::new(Why::Unsupported, "alignment"))
    }
    fn allocate(&self, _: Request<()>, (): &()) -> Result<(), DeviceError> {
        self.0.blocks.fetch_add(1, Relaxed);
        Ok(())
    }
    fn free(&self, (): (), _: &[()]) -> Result<(), DeviceError> {
        self.0.blocks.fetch_sub(1, Relaxed);
        Ok(())
    }
    fn view<'b>(&'b self, (): &'b (), _: u64, _: u64, (): &()) {}
    fn zero(&self, (): &mut (), _: u64, (): &()) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// Checks that threads may drop their buffers while another thread closes the pool.
fn check(buffers: usize, threads: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        set_number(0);
        let out = Out::default();
        let pool = BucketPool::new(Counting(out.clone()));
        let handles: Vec<_> = (1..=threads)
            .map(|number| {
                let held: Vec<_> = (0..buffers).filter_map(|_| pool.allocate(4096).ok()).collect();
                thread::spawn(move || {
                    set_number(number);
                    drop(held);
                })
            })
            .collect();
        drop(pool);
        handles.into_iter().for_each(|handle| handle.join().unwrap());
        assert_eq!((out.blocks.load(Relaxed), out.allocators.load(Relaxed)), (0, 1));
    });
}

#[test]
fn one_buffer_outlives_its_pool_or_not() {
    check(1, 1);
}

#[test]
fn two_threads_race_for_being_last() {
    check(1, 2);
}

#[test]
fn a_thread_with_two_buffers() {
    check(2, 1);
}

/// A thread allocates while another thread drops its own handle: the pool stays open.
#[test]
fn a_clone_keeps_the_pool_open() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        set_number(0);
        let out = Out::default();
        let pool = BucketPool::new(Counting(out.clone()));
        let other = pool.clone();
        let handle = thread::spawn(move || {
            set_number(1);
            other.allocate(4096).map(drop).is_ok()
        });
        drop(pool);
        assert!(handle.join().unwrap());
        assert_eq!((out.blocks.load(Relaxed), out.allocators.load(Relaxed)), (0, 1));
    });
}

/// A thread asks for a buffer beside its own while another thread closes the pool.
#[test]
fn a_buffer_asks_a_pool_that_is_closed_meanwhile() {
    let mut model = loom::model::Builder::new();
    (model.preemption_bound, model.max_branches) = (Some(2), 20_000);
    model.check(|| {
        set_number(0);
        let out = Out::default();
        let pool = BucketPool::new(Counting(out.clone()));
        let held = pool.allocate(4096).unwrap();
        let handle = thread::spawn(move || {
            set_number(1);
            let beside = held.pool(HandleSettings::default());
            let result = beside.allocate_for(&(), 4096, 1, false);
            drop(held);
            result.is_ok()
        });
        drop(pool);
        assert!(handle.join().unwrap());
        assert_eq!((out.blocks.load(Relaxed), out.allocators.load(Relaxed)), (0, 1));
    });
}

/// Checks that a waiting request is served while other threads free the memory that it needs, in
/// each order of these steps, so that no wake-up is lost. loom reports a request that sleeps for
/// ever as a deadlock.
fn check_waiting(requests: usize, clones: bool) {
    let mut model = loom::model::Builder::new();
    (model.preemption_bound, model.max_branches) = (Some(2), 20_000);
    model.check(move || {
        set_number(0);
        let out = Out::default();
        let builder = BucketPool::builder(Counting(out.clone()));
        let pool = builder.reserved_limit(4096).build();
        // So that the request of `held` is a hit.
        drop(pool.allocate(4096));
        let held = pool.allocate(4096);
        let handles: Vec<_> = (1..=requests)
            .map(|number| {
                let mine = pool.clone();
                thread::spawn(move || {
                    set_number(number);
                    loom::future::block_on(mine.allocate_async(4096)).is_ok()
                })
            })
            .collect();
        let kept = clones.then(|| pool.clone());
        drop(pool);
        drop(held);
        let served = handles.into_iter().map(|handle| handle.join().unwrap());
        assert_eq!(served.filter(|served| *served).count(), requests);
        drop(kept);
        assert_eq!((out.blocks.load(Relaxed), out.allocators.load(Relaxed)), (0, 1));
    });
}

#[test]
fn a_request_that_waits_is_woken() {
    check_waiting(1, true);
}

#[test]
fn a_request_that_waits_has_the_last_handle_of_the_pool() {
    check_waiting(1, false);
}

#[test]
fn two_requests_that_wait_are_both_served() {
    check_waiting(2, true);
}

/// Two pools of one budget each have a free block that fills half of it, and each gets a request for all of it:
/// each gives its own block back, and has the other pool give its one. Both see memory on its way when they are
/// about to be refused. One is served; the other is refused at most because of that one.
#[test]
fn two_pools_that_are_about_to_refuse_do_not_both_refuse() {
    let mut model = loom::model::Builder::new();
    (model.preemption_bound, model.max_branches) = (Some(2), 40_000);
    model.check(|| {
        set_number(0);
        let budget = Budget::new(8192);
        let pools = [(); 2].map(|()| {
            let pool = BucketPool::builder(Counting(Out::default())).budget(&budget).build();
            drop(pool.allocate(4096));
            pool
        });
        assert_eq!(budget.reserved_bytes(), 8192, "the budget is full, and nothing is in use");
        let [first, second] = pools;
        let handle = thread::spawn(move || {
            set_number(1);
            let served = second.allocate(8192);
            (second, served)
        });
        let served = first.allocate(8192);
        let (_second, other) = handle.join().unwrap();
        let count = [served.is_ok(), other.is_ok()].iter().filter(|ok| **ok).count();
        assert_eq!((count, budget.reserved_bytes()), (1, 8192));
    });
}

/// The first of two pools has a free block that fills their budget, and each gets a request for half of it:
/// whoever takes the block out has it on its way to the device when the other is about to be refused. Both are
/// served.
#[test]
fn a_request_waits_for_a_block_that_another_pool_gives_back() {
    let mut model = loom::model::Builder::new();
    (model.preemption_bound, model.max_branches) = (Some(2), 40_000);
    model.check(|| {
        set_number(0);
        let budget = Budget::new(8192);
        let [first, second] =
            [(); 2].map(|()| BucketPool::builder(Counting(Out::default())).budget(&budget).build());
        drop(first.allocate(8192));
        assert_eq!(budget.reserved_bytes(), 8192, "the budget is full, and nothing is in use");
        let handle = thread::spawn(move || {
            set_number(1);
            let served = second.allocate(4096);
            (second, served)
        });
        let served = first.allocate(4096);
        let (_second, other) = handle.join().unwrap();
        assert!(served.is_ok() && other.is_ok());
        assert_eq!(budget.reserved_bytes(), 8192);
    });
}
