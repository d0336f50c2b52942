//! A broken invariant is loud: the pool whose call met it serves no more.

use pool_core::limits::Budget;
use pool_core::{ArenaConfig, BucketPool, KIB, MIB, PoolBuilder, Why};
use pool_sim::SimDevice;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
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
        let calls = device.calls();
        drop((live, pool));
        assert_eq!((device.held_bytes(), device.calls()), (held, calls), "nothing is given back");
        let other = BucketPool::new(device);
        assert!(other.allocate(MIB).is_ok(), "another pool of the thread is not poisoned");
    }
}

#[test]
fn a_poisoned_pool_holds_no_other_pool_of_its_budget() {
    let budget = Budget::new(2 * MIB);
    let [poisoned, other] =
        [(); 2].map(|()| BucketPool::builder(SimDevice::new()).budget(&budget).build());
    let live = other.allocate(2 * MIB).unwrap();
    let mut waiting = Box::pin(poisoned.allocate_async(MIB));
    let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
    assert!(waiting.as_mut().poll(context).is_pending());
    break_invariant(&poisoned);
    drop(live);
    drop(waiting);
    assert_eq!(budget.waiter_count(), 0);
    assert!(other.allocate_timeout(2 * MIB, Duration::MAX).is_ok());
}
