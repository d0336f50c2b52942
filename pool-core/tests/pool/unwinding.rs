//! A panic of the allocator in a call that ends something, or that prepares something: nothing is
//! lost with it but the block of that call.

use crate::hooked::{Hooked, outcome};
use pool_core::sim::SimDevice;
use pool_core::{ArenaConfig, BucketPool, Budget, CachedLimit, MIB, PoolBuilder};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Which of the next calls panics, counted from one; 0 for none.
type Fuse = Arc<AtomicU64>;

/// Counts a call.
fn burn(fuse: &Fuse) {
    let before = fuse.try_update(SeqCst, SeqCst, |left| left.checked_sub(1));
    if before == Ok(1) {
        resume_unwind(Box::new("on purpose"));
    }
}

fn builder(device: &SimDevice) -> (PoolBuilder<Hooked<impl Fn() + Send + Sync + 'static>>, Fuse) {
    let fuse = Fuse::default();
    let counted = fuse.clone();
    let hook = move || burn(&counted);
    let allocator = Hooked { device: device.clone(), hook, late: false };
    (BucketPool::builder(allocator).cached_limit(CachedLimit::Unlimited), fuse)
}

#[test]
fn a_pool_whose_free_panics_while_it_closes_keeps_nothing_else() {
    for arena in [None, Some(ArenaConfig::segments(MIB)), Some(ArenaConfig::grow())] {
        for at in 1..=3 {
            let (device, budget) = (SimDevice::new(), Budget::new(8 * MIB));
            let (builder, fuse) = builder(&device);
            let builder = builder.budget(&budget);
            let pool = match arena.clone() {
                Some(config) => builder.arena(config).build(),
                None => builder.build(),
            };
            drop([pool.allocate(MIB).unwrap(), pool.allocate(MIB).unwrap()]);
            fuse.store(at, SeqCst);
            let panicked = outcome(|| drop(pool)).is_none();
            let what = format!("{arena:?}, call {at}");
            assert_eq!(panicked, fuse.load(SeqCst) == 0, "{what}: the panic was swallowed");
            assert_eq!(device.clones(), 1, "{what}: the store is alive");
            assert_eq!(budget.reserved_bytes(), 0, "{what}: the budget");
            assert!(device.held_bytes() <= MIB, "{what}: {} bytes", device.held_bytes());
        }
    }
}

#[test]
fn a_closure_that_panics_when_it_goes_keeps_no_pool() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            resume_unwind(Box::new("on purpose"));
        }
    }
    let (device, budget, bomb) = (SimDevice::new(), Budget::new(8 * MIB), Bomb);
    let builder = BucketPool::builder(device.clone()).budget(&budget);
    let pool = builder
        .on_shortage(move |_| {
            let _kept = &bomb;
            false
        })
        .build();
    drop(pool.allocate(MIB).unwrap());
    assert!(outcome(|| drop(pool)).is_none(), "the panic was swallowed");
    assert_eq!((device.clones(), device.held_bytes(), budget.reserved_bytes()), (1, 0, 0));
}

#[test]
fn a_buffer_whose_free_panics_gives_up_its_pool() {
    for is_detached in [true, false] {
        let device = SimDevice::new();
        let (builder, fuse) = builder(&device);
        let pool = builder.build();
        let buffer = pool.allocate(MIB).unwrap();
        let happened = if is_detached {
            fuse.store(1, SeqCst);
            let happened = outcome(|| buffer.detach().free()).is_some();
            assert_eq!(pool.stats().deallocations, 1);
            drop(pool);
            happened
        } else {
            drop(pool);
            fuse.store(1, SeqCst);
            outcome(|| drop(buffer)).is_some()
        };
        assert!(!happened, "detached: {is_detached}: the panic was swallowed");
        assert_eq!(device.clones(), 1, "detached: {is_detached}: the store is alive");
    }
}

#[test]
fn an_arena_that_panics_while_it_warms_up_keeps_what_it_has() {
    let device = SimDevice::new();
    let (builder, fuse) = builder(&device);
    let pool = builder.arena(ArenaConfig::segments(MIB)).build();
    fuse.store(2, SeqCst);
    assert!(outcome(|| pool.warm_up(&[(MIB, 2)])).is_none(), "the panic was swallowed");
    let stats = pool.stats();
    assert_eq!((stats.cached_bytes, stats.reserved_bytes, stats.lost_bytes), (MIB, MIB, 0));
    assert_eq!((pool.clear().unwrap(), device.held_bytes()), (MIB, 0));
}
