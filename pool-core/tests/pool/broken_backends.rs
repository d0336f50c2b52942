//! A backend that breaks a promise: the conformance suite says which one.
#![expect(clippy::unwrap_used, reason = "tests")]

use pool_core::port::{MarkOf, Memory, Request};
use pool_core::stream::Timeline;
use pool_core::{DeviceAllocator, DeviceError, StreamOf, Transfer, Why};
use pool_sim::conformance;
use pool_sim::{SimBlock, SimDevice, SimDriver, SimStream, SimView};
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

/// The simulated device with a fault.
struct Broken<const FRESH_IS_ZEROED: bool>(SimDevice, Fault);

impl<const FRESH_IS_ZEROED: bool> DeviceAllocator for Broken<FRESH_IS_ZEROED> {
    type Block = SimBlock;
    type View<'b> = SimView<'b>;
    type Kind = ();
    type Clock = Timeline<SimDriver>;
    const MEMORY: Memory = Memory { fresh_is_zeroed: FRESH_IS_ZEROED, ..Memory::DEVICE };

    fn clock(&self) -> &Timeline<SimDriver> {
        self.0.clock()
    }

    fn aligned(&self, kind: (), alignment: u64) -> Result<(), DeviceError> {
        match self.1 {
            Fault::AnyAlignment => Ok(()),
            Fault::OtherRefusal => self.0.aligned(kind, alignment).map_err(|_| other()),
            _ => self.0.aligned(kind, alignment),
        }
    }

    fn allocate(&self, request: Request<()>, on: &SimStream) -> Result<SimBlock, DeviceError> {
        match self.1 {
            Fault::Full => Err(other()),
            _ => self.0.allocate(request, on),
        }
    }

    fn free(&self, block: SimBlock, after: &[MarkOf<Self>]) -> Result<(), DeviceError> {
        self.0.free(block, after)
    }

    fn view<'b>(
        &'b self,
        block: &'b SimBlock,
        offset: u64,
        bytes: u64,
        on: &SimStream,
    ) -> SimView<'b> {
        let offset = if matches!(self.1, Fault::IgnoresOffset) { 0 } else { offset };
        self.0.view(block, offset, bytes, on)
    }

    fn zero(&self, block: &mut SimBlock, bytes: u64, on: &SimStream) -> Result<(), DeviceError> {
        let bytes = if matches!(self.1, Fault::ZeroesTooMuch) { 2 * bytes } else { bytes };
        self.0.zero(block, bytes, on)
    }
}

#[expect(unsafe_code, reason = "the port's")]
impl<const FRESH_IS_ZEROED: bool> Transfer for Broken<FRESH_IS_ZEROED> {
    unsafe fn write(
        &self,
        to: &SimView<'_>,
        offset: u64,
        from: &[u8],
        on: &StreamOf<Self>,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller promises what the device's own method demands.
        unsafe { Transfer::write(&self.0, to, offset, from, on) }
    }

    unsafe fn read(
        &self,
        from: &SimView<'_>,
        offset: u64,
        to: &mut [u8],
        on: &StreamOf<Self>,
    ) -> Result<(), DeviceError> {
        // SAFETY: as for `write`.
        unsafe { Transfer::read(&self.0, from, offset, to, on) }
    }
}

fn other() -> DeviceError {
    DeviceError::new(Why::Other, "a broken call").code(7)
}

/// Returns the text of the panic of the suite.
fn report<const FRESH_IS_ZEROED: bool>(fault: Fault) -> String {
    let run = || conformance::run(|| Broken::<FRESH_IS_ZEROED>(SimDevice::new(), fault));
    let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
    *panic.downcast::<String>().unwrap()
}

#[test]
fn the_suite_names_the_promise_that_a_backend_breaks() {
    let reports = [
        report::<false>(Fault::AnyAlignment),
        report::<false>(Fault::OtherRefusal),
        report::<false>(Fault::ZeroesTooMuch),
        report::<false>(Fault::Full),
        report::<false>(Fault::IgnoresOffset),
        report::<true>(Fault::FalseClaim),
    ];
    insta::assert_snapshot!(reports.join("\n"));
}
