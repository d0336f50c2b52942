//! A backend that breaks a promise: the conformance suite says which one.
#![expect(clippy::unwrap_used, reason = "tests")]

use pool_core::port::Memory;
use pool_core::{DeviceAllocator, DeviceError, Why};
use pool_sim::conformance;
use pool_sim::{Call, Claims, Hooked, Hooks, SimDevice};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What the backend does wrong.
#[derive(Clone, Copy)]
enum Fault {
    /// It accepts every alignment.
    AnyAlignment,
    /// It refuses alignments with another kind of error.
    OtherRefusal,
    /// It zeroes all of a block where a part is to be zeroed.
    ZeroesTooMuch,
    /// It refuses every block.
    Full,
    /// Its views begin at the start of the block.
    IgnoresOffset,
    /// It claims that fresh memory is zero.
    FalseClaim,
}

/// The hooks of a simulated device with a fault.
struct Broken(Fault);

/// The claim that fresh memory is zero.
struct FreshIsZeroed;

impl Claims<SimDevice> for FreshIsZeroed {
    const MEMORY: Memory = Memory { fresh_is_zeroed: true, ..Memory::DEVICE };
}

impl Hooks<SimDevice> for Broken {
    fn before(&self, _: &SimDevice, call: &Call<'_, SimDevice>) -> Result<(), DeviceError> {
        match (self.0, call) {
            (Fault::Full, Call::Allocate { .. }) => Err(other()),
            _ => Ok(()),
        }
    }

    fn aligned(&self, device: &SimDevice, kind: (), alignment: u64) -> Result<(), DeviceError> {
        match self.0 {
            Fault::AnyAlignment => Ok(()),
            Fault::OtherRefusal => device.aligned(kind, alignment).map_err(|_| other()),
            _ => device.aligned(kind, alignment),
        }
    }

    fn view_offset(&self, offset: u64) -> u64 {
        if matches!(self.0, Fault::IgnoresOffset) { 0 } else { offset }
    }

    fn bytes_to_zero(&self, bytes: u64) -> u64 {
        if matches!(self.0, Fault::ZeroesTooMuch) { 2 * bytes } else { bytes }
    }
}

fn other() -> DeviceError {
    DeviceError::new(Why::Other, "a broken call").code(7)
}

/// Returns the text of the panic of the suite.
fn report<M: Claims<SimDevice>>(fault: Fault) -> String {
    let run = || conformance::run(|| Hooked::with(SimDevice::new(), Broken(fault)).claiming::<M>());
    let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
    *panic.downcast::<String>().unwrap()
}

#[test]
fn the_suite_names_the_promise_that_a_backend_breaks() {
    let reports = [
        report::<()>(Fault::AnyAlignment),
        report::<()>(Fault::OtherRefusal),
        report::<()>(Fault::ZeroesTooMuch),
        report::<()>(Fault::Full),
        report::<()>(Fault::IgnoresOffset),
        report::<FreshIsZeroed>(Fault::FalseClaim),
    ];
    insta::assert_snapshot!(reports.join("\n"));
}
