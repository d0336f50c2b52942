//! Devices and suites for tests of pools: no program needs them to run.
//!
//! [`SimDevice`] is a simulated device under the production code: it counts its calls, runs its
//! streams late, fails on demand, and reports each use that is not ordered. [`Hooked`] is the wrapper for memory that
//! refuses, panics or lies. [`conformance`] has the
//! suites that every backend passes.
#![deny(unsafe_code)]

pub mod conformance;
mod device;
pub mod engine;
mod hooked;
mod mapped;
mod memory;
mod script;
mod shadow;
mod transfer;

pub use device::{
    SimAllocator, SimBlock, SimDevice, SimDriver, SimEvent, SimRaw, SimStream, SimView,
};
pub use engine::Graph;
pub use hooked::{Call, Claims, Hooked, HookedBlock, Hooks};
pub use mapped::{CpuTouches, MappedSim};
pub use pool_core::check::TestThreads;
pub use script::{SimCall, SimCalls};
pub use transfer::SimArrival;
