//! The suites that every backend passes, whatever its memory.
//!
//! A test of a backend is one line, `conformance::run(MyAllocator::new)`, and one with an arena is
//! `conformance::run_arena(MyAllocator::new, &config)`. Both write and read memory by the copies of
//! [`Transfer`].
//!
//! - The port: what each method of [`DeviceAllocator`](pool_core::DeviceAllocator) promises.
//! - The pool: what a program relies on.
//! - Secrets: what a [`ZeroPolicy`](pool_core::ZeroPolicy) zeroes.
//! - Scripts: random operations, compared with a naive model after each ([`Script`]).

mod model;
mod pool_suite;
mod port_suite;
mod promise;
mod script;
mod secrets;
mod shrink;
mod subject;

pub use script::{BadScript, Script, Settings, Step};
pub use subject::Subject;

use pool_core::port::Sliceable;
use pool_core::{ArenaConfig, BucketPool, Transfer};

/// Scripts of one run of the suite, and the steps of each.
const SCRIPTS: u64 = if cfg!(miri) { 2 } else { 60 };
const STEPS: usize = if cfg!(miri) { 20 } else { 60 };

/// Runs the suites over allocators that `make` makes. Each check gets a fresh one.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; pub use pool_sim::conformance; }
/// use bucketpool::{conformance, sim::SimDevice};
///
/// conformance::run(SimDevice::new);
/// ```
///
/// # Panics
///
/// At the first promise that the backend does not keep, with the promise and what was seen.
pub fn run<A: Transfer>(make: impl Fn() -> A) {
    port_suite::run(&make);
    pool_suite::run(&make);
    pool_suite::run_on(&|| BucketPool::builder(make()));
    secrets::run(&make);
    Subject::new(make).try_random(0..SCRIPTS, STEPS);
}

/// Runs the suites over pools with an arena, where a free is no call of the device.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; pub use pool_sim::conformance; }
/// use bucketpool::{ArenaConfig, conformance, sim::SimDevice};
///
/// conformance::run_arena(SimDevice::new, &ArenaConfig::torch());
/// ```
///
/// # Panics
///
/// As for [`run`].
pub fn run_arena<A: Sliceable + Transfer>(make: impl Fn() -> A, config: &ArenaConfig) {
    port_suite::run_parts(&make);
    pool_suite::run_on(&|| BucketPool::builder(make()).arena(config.clone()));
    secrets::run_arena(|| BucketPool::builder(make()).arena(config.clone()));
    Subject::new(make).arena(config).try_random(0..SCRIPTS, STEPS);
}
