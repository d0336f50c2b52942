//! The simulated device passes the suite, and so do arenas over it.

use pool_core::conformance::{self, Probe};
use pool_core::sim::SimDevice;
use pool_core::{Arena, ArenaConfig, KIB};

#[test]
fn simulated_memory_passes_the_suite() {
    conformance::run(SimDevice::new, Probe::sim());
}

#[test]
fn arenas_over_simulated_memory_pass_the_suite() {
    for config in [ArenaConfig::grow(), ArenaConfig::pages(4 * KIB, 0.0)] {
        let arena = || Arena::over_pages(SimDevice::new().seeded(7), config.clone());
        conformance::run_layered(arena, Probe::sim_arena());
    }
    for config in [ArenaConfig::segments(16 * KIB), ArenaConfig::grow().uncached()] {
        let arena = || Arena::new(SimDevice::new().seeded(7), config.clone());
        conformance::run_layered(arena, Probe::sim_arena());
    }
}
