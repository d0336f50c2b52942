//! The simulated device passes the suite.

use pool_core::conformance::{self, Probe};
use pool_core::sim::SimDevice;

#[test]
fn simulated_memory_passes_the_suite() {
    conformance::run(SimDevice::new, Probe::sim());
}
