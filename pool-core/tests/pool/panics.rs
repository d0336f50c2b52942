//! A panic in each single call of an allocator that a user wrote, before it does anything or after:
//! the pool goes on, its figures agree, and nothing is freed twice. The same for closures and
//! observers.
#![expect(clippy::unwrap_used, reason = "tests")]

use crate::hooked::{configs, hooked, outcome, program};
use pool_core::limits::Budget;
use pool_core::observe::PoolEvent;
use pool_core::stream::StealPolicy;
use pool_core::{ArenaConfig, BucketPool, MIB};
use pool_sim::SimDevice;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Ends by a panic that no hook reports.
fn unwind() -> ! {
    resume_unwind(Box::new("on purpose"))
}

/// Counts, and panics once.
#[derive(Clone, Default)]
struct Fuse {
    count: Arc<AtomicU64>,
    /// The call that panics, counted from one; 0 for none.
    at: u64,
}

impl Fuse {
    fn count(&self) {
        if self.count.fetch_add(1, Relaxed) + 1 == self.at {
            unwind();
        }
    }

    fn calls(&self) -> u64 {
        self.count.load(Relaxed)
    }
}

/// Runs the program over a pool, and returns the calls that its allocator counted.
fn run(name: &str, config: Option<&ArenaConfig>, at: u64, late: bool) -> u64 {
    let (device, fuse) = (SimDevice::new(), Fuse { at, ..Fuse::default() });
    let counted = fuse.clone();
    let allocator = hooked(&device, move || counted.count(), late);
    let builder = BucketPool::builder(allocator).steal(StealPolicy::Wait);
    let builder = builder.reserved_limit(16 * MIB).cached_limit(12 * MIB);
    let pool = match config {
        Some(config) => builder.arena(config.clone()).build(),
        None => builder.build(),
    };
    let what = format!("{name}, call {at}, late: {late}");
    let panics = program(&pool, &device);
    assert_eq!(panics, u64::from(at > 0 && at <= fuse.calls()), "{what}: the panic was swallowed");
    let served = outcome(|| pool.allocate(1000).map(drop).is_ok());
    let cleared = outcome(|| pool.clear().is_ok());
    let stats = pool.stats();
    assert_eq!((stats.allocated_bytes, stats.requested_bytes), (0, 0), "{what}: {stats}");
    assert_eq!(stats.cached_bytes + stats.lost_bytes, stats.reserved_bytes, "{what}: {stats}");
    // The pool was not told of a call that happened: the device may hold more, and refuse a call.
    if !late {
        let refused = served == Some(false) || cleared == Some(false);
        assert!(!refused, "{what}: a call after the panic is refused");
        assert_eq!(stats.reserved_bytes, device.held_bytes(), "{what}: {stats}");
    }
    outcome(|| drop(pool));
    device.run();
    assert_eq!(device.hazards(), 0, "{what}: {:?}", device.hazard_report());
    fuse.calls()
}

#[test]
fn each_call_of_an_allocator_may_panic() {
    for (name, config) in configs() {
        for late in [false, true] {
            let calls = run(name, config.as_ref(), 0, late);
            assert!(calls > 20, "{name}: {calls} calls");
            for at in 1..=calls {
                run(name, config.as_ref(), at, late);
            }
        }
    }
}

/// A panic of an observer does not reach the program.
#[test]
fn each_call_of_an_observer_may_panic() {
    for (name, config) in configs() {
        let calls = observed(name, config.as_ref(), 0);
        assert!(calls > 80, "{name}: {calls} events");
        for at in 1..=calls {
            assert_eq!(observed(name, config.as_ref(), at), calls, "{name}, event {at}");
        }
    }
}

fn observed(name: &str, config: Option<&ArenaConfig>, at: u64) -> u64 {
    let (device, fuse) = (SimDevice::new(), Fuse { at, ..Fuse::default() });
    let seen = fuse.clone();
    let builder = BucketPool::builder(device.clone()).reserved_limit(16 * MIB);
    let builder = builder.observer(Arc::new(move |_: &PoolEvent<'_>| seen.count()));
    let pool = match config {
        Some(config) => builder.arena(config.clone()).build(),
        None => builder.build(),
    };
    assert_eq!(program(&pool, &device), 0, "{name}, event {at}: the panic reached the program");
    fuse.calls()
}

/// A closure of a budget panics in the request that reached its mark; the next request is served.
#[test]
fn each_call_of_a_budgets_closure_may_panic() {
    for (name, config) in configs() {
        let calls = budgeted(name, config.as_ref(), 0);
        assert!(calls > 1, "{name}: {calls} calls");
        for at in 1..=calls {
            budgeted(name, config.as_ref(), at);
        }
    }
}

fn budgeted(name: &str, config: Option<&ArenaConfig>, at: u64) -> u64 {
    let (device, fuse) = (SimDevice::new(), Fuse { at, ..Fuse::default() });
    let (budget, seen) = (Budget::new(16 * MIB), fuse.clone());
    budget.on_high_water(0.25, move |_| seen.count());
    let builder = BucketPool::builder(device.clone()).budget(&budget);
    let pool = match config {
        Some(config) => builder.arena(config.clone()).build(),
        None => builder.build(),
    };
    let panics = program(&pool, &device);
    assert!(panics <= 1, "{name}, call {at}: {panics} panics");
    pool.clear().unwrap();
    assert_eq!((device.held_bytes(), budget.reserved_bytes()), (0, 0), "{name}, call {at}");
    assert!(pool.allocate(MIB).is_ok(), "{name}, call {at}: the next request");
    fuse.calls()
}
