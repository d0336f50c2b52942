//! The simulated device, of any size. Its calls are counted and take no time.

use super::MemoryKind;
use crate::machine::Clock;
use crate::pass::{Pass, Tally};
use crate::source::{Steps, on_device};
use crate::spec::NamedPolicy;
use bucketpool::sim::SimDevice;

/// The simulated device.
#[derive(Debug)]
pub(super) struct Sim;

impl MemoryKind for Sim {
    fn name(&self) -> &'static str {
        "sim"
    }
    fn title(&self) -> &'static str {
        "The simulated device"
    }
    fn clock(&self) -> Clock {
        Clock::Thread
    }
    fn is_simulated(&self) -> bool {
        true
    }
    fn replay(&self, pass: &Pass<'_>) -> Result<Tally, String> {
        Ok(pass.run(SimDevice::with_capacity(pass.capacity), NamedPolicy::builder))
    }
    fn source(&self, spec: Option<&NamedPolicy>, _keeps: bool) -> Result<Box<dyn Steps>, String> {
        Ok(on_device(SimDevice::new(), NamedPolicy::builder, spec, false))
    }
}
