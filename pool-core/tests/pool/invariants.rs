//! A broken invariant is loud: the pool whose call met it serves no more.

use pool_core::limits::Budget;
use pool_core::{ArenaConfig, BucketPool, KIB, Limit, MIB, PoolBuilder, Why};
use pool_sim::SimDevice;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, Wake};
use std::time::Duration;

/// Breaks an invariant inside of the pool; a build with debug assertions panics there.
fn break_invariant(pool: &BucketPool<SimDevice>) {
    let broken = catch_unwind(AssertUnwindSafe(|| pool.break_invariant()));
    assert_eq!(broken.is_err(), cfg!(debug_assertions));
}

fn builders() -> [PoolBuilder<SimDevice>; 2] {
    let builder = BucketPool::builder(SimDevice::new());
    [builder, BucketPool::builder(SimDevice::new()).arena(ArenaConfig::grow())]
}

#[test]
fn a_poisoned_pool_refuses_each_call_and_keeps_its_memory() {
    for builder in builders() {
        let pool = builder.build();
        let device = pool.allocator().clone();
        let (live, detached) = (pool.allocate(64 * KIB).unwrap(), pool.allocate(KIB).unwrap());
        drop(pool.allocate(4 * KIB).unwrap()); // a hit for the next request
        let held = device.held_bytes();
        break_invariant(&pool);
        let refused = pool.allocate(4 * KIB).unwrap_err();
        assert_eq!(refused.why(), Why::Broken);
        let text = refused.to_string();
        let expected = "4096 B (4.00 KiB) refused: no test breaks this, at pool-core/src/check.rs:";
        assert!(text.starts_with(expected), "{text}");
        for call in [pool.clear(), pool.trim(1), pool.tick(Duration::from_secs(1))] {
            assert_eq!(call.unwrap_err().why(), Why::Broken);
        }
        assert_eq!(pool.warm_up(&[(KIB, 1)]).unwrap_err().why(), Why::Broken);
        assert_eq!(detached.detach().free().unwrap_err().why, Why::Broken);
        assert_eq!(pool.stats().reserved_bytes, 0, "no figure can be trusted");
        assert!(catch_unwind(AssertUnwindSafe(|| pool.check())).is_err(), "it is broken");
        let calls = device.calls();
        drop((live, pool));
        assert_eq!((device.held_bytes(), device.calls()), (held, calls), "nothing is given back");
        let other = BucketPool::new(device);
        assert!(other.allocate(MIB).is_ok(), "another pool of the thread is not poisoned");
    }
}

#[test]
fn a_poisoned_pool_holds_no_other_pool_of_its_budget() {
    let budget = Budget::new(4 * MIB);
    let [poisoned, other] =
        [(); 2].map(|()| BucketPool::builder(SimDevice::new()).budget(&budget).build());
    let kept = poisoned.allocate(2 * MIB).unwrap(); // stays reserved for good
    let live = other.allocate(2 * MIB).unwrap();
    let mut waiting = Box::pin(poisoned.allocate_async(2 * MIB));
    let context = &mut Context::from_waker(std::task::Waker::noop());
    assert!(waiting.as_mut().poll(context).is_pending());
    break_invariant(&poisoned);
    drop(live);
    drop(waiting);
    assert_eq!(budget.waiter_count(), 0);
    assert!(other.allocate_timeout(2 * MIB, Duration::MAX).is_ok());
    for dropped in [None, Some((kept, poisoned))] {
        drop(dropped);
        let refused = other.allocate_timeout(4 * MIB, Duration::MAX).unwrap_err();
        assert_eq!(refused.why(), Why::Limit(Limit::Budget), "it would wait without end");
        assert_eq!(budget.reserved_bytes(), 2 * MIB);
    }
}

/// A request that waits for memory which only the broken pool has is refused when the pool breaks.
#[test]
fn a_request_that_waits_for_a_pool_is_refused_when_the_pool_breaks() {
    let budget = Budget::new(2 * MIB);
    let [poisoned, other] =
        [(); 2].map(|()| BucketPool::builder(SimDevice::new()).budget(&budget).build());
    let _live = poisoned.allocate(2 * MIB).unwrap();
    let woken = Arc::new(Woken(AtomicBool::new(false)));
    let waker = woken.clone().into();
    let context = &mut Context::from_waker(&waker);
    let mut waiting = Box::pin(other.allocate_async(MIB));
    assert!(waiting.as_mut().poll(context).is_pending());
    break_invariant(&poisoned);
    assert!(woken.0.load(Relaxed));
    let Poll::Ready(Err(refused)) = waiting.as_mut().poll(context) else {
        panic!("no memory can come back");
    };
    assert_eq!(refused.why(), Why::Limit(Limit::Budget));
}

/// The note of a fault belongs to the pool whose call met it, also if that call runs inside of a
/// call of another pool.
#[test]
fn a_call_inside_of_another_pools_call_poisons_its_own_pool() {
    let [outer, inner] = [(); 2].map(|()| BucketPool::new(SimDevice::new()));
    let inside = inner.clone();
    let shortage = BucketPool::builder(SimDevice::with_capacity(MIB))
        .on_shortage(move |_| {
            break_invariant(&inside);
            false
        })
        .build();
    assert_eq!(shortage.allocate(2 * MIB).unwrap_err().why(), Why::OutOfMemory);
    assert!(shortage.allocate(4 * KIB).is_ok());
    assert!(outer.allocate(4 * KIB).is_ok());
    assert_eq!(inner.allocate(4 * KIB).unwrap_err().why(), Why::Broken);
}

/// Memory of a pool that breaks after its owner is gone never goes back to the device.
#[test]
fn a_closed_pool_that_breaks_gives_nothing_back() {
    let pool = BucketPool::new(SimDevice::new());
    let device = pool.allocator().clone();
    let live = pool.allocate(64 * KIB).unwrap();
    break_invariant(&pool);
    let held = device.held_bytes();
    drop(pool);
    drop(live);
    assert_eq!(device.held_bytes(), held);
}

/// What a broken pool was given to spare goes back to the other pool that it is of.
#[test]
fn a_broken_pool_drops_what_it_was_given() {
    let other = BucketPool::new(SimDevice::new());
    let spare = other.allocate(64 * KIB).unwrap();
    let keep = move |_| spare.size() == 0;
    let pool = BucketPool::builder(SimDevice::new()).on_shortage(keep).build();
    break_invariant(&pool);
    drop(pool);
    assert_eq!(other.allocated_bytes(), 0);
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}
