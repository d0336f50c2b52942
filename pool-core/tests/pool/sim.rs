//! The simulated device passes the suite, with an arena and without.

use pool_core::{ArenaConfig, BucketPool, KIB};
use pool_sim::conformance;
use pool_sim::{SimCall, SimDevice};

#[test]
fn simulated_memory_passes_the_suite() {
    conformance::run(SimDevice::new);
}

#[test]
fn arenas_over_simulated_memory_pass_the_suite() {
    for config in [
        ArenaConfig::grow(),
        ArenaConfig::pages(4 * KIB, 0.0),
        ArenaConfig::segments(16 * KIB),
        ArenaConfig::torch(),
        ArenaConfig::segments(16 * KIB).uncached(),
    ] {
        conformance::run_arena(|| SimDevice::new().seeded(7), &config);
    }
}

#[test]
fn a_reclaimed_block_is_freed_once_and_serves_again() {
    let device = SimDevice::new();
    let pool = BucketPool::new(device.clone());
    drop(pool.allocate(4 * KIB).unwrap());
    device.fail(SimCall::Free, 0, 2);
    assert!(pool.clear().is_err());
    for held in [4 * KIB, 0] {
        device.reclaim_refused(); // the first is refused too
        assert_eq!(device.held_bytes(), held);
    }
    let again = pool.allocate(4 * KIB).unwrap();
    device.reclaim_refused();
    assert_eq!(device.held_bytes(), 4 * KIB, "{again:?} is live");
}
