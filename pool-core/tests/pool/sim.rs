//! The simulated device passes the suite, with an arena and without.

use pool_core::conformance;
use pool_core::sim::SimDevice;
use pool_core::{ArenaConfig, KIB};

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
