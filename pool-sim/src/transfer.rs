//! Bytes into simulated memory and out of it.
#![expect(unsafe_code, reason = "the port's; nothing here is unsafe")]

use crate::device::{SimDevice, SimStream, SimView};
use crate::engine::{Access, Contents};
use parking_lot::Mutex;
use pool_core::port::{Arrival, TransferLater};
use pool_core::stream::Mark;
use pool_core::{DeviceAllocator, DeviceError, StreamClock, Transfer, Why};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A part of a view.
fn part(view: &SimView<'_>, offset: u64, bytes: u64) -> Range<u64> {
    let start = view.at + offset;
    start..start + bytes
}

impl Transfer for SimDevice {
    unsafe fn write(
        &self,
        to: &SimView<'_>,
        offset: u64,
        from: &[u8],
        on: &SimStream,
    ) -> Result<(), DeviceError> {
        let bytes = part(to, offset, from.len() as u64);
        self.driver.0.lock().write(on.raw().number(), bytes.start, from.to_vec());
        Ok(())
    }

    unsafe fn read(
        &self,
        from: &SimView<'_>,
        offset: u64,
        to: &mut [u8],
        on: &SimStream,
    ) -> Result<(), DeviceError> {
        if !self.clock().takes_work(on) {
            return Err(DeviceError::new(Why::NotSubmitted, "read in a capture"));
        }
        let bytes = part(from, offset, to.len() as u64);
        to.copy_from_slice(&self.driver.0.lock().read(on.raw().number(), bytes));
        Ok(())
    }
}

impl TransferLater for SimDevice {
    type Arrival = SimArrival;

    unsafe fn write_later(
        &self,
        to: &SimView<'_>,
        offset: u64,
        from: &[u8],
        on: &SimStream,
    ) -> Result<(), DeviceError> {
        // SAFETY: nothing to vouch for: simulated memory is no memory of this process.
        unsafe { self.write(to, offset, from, on) }
    }

    unsafe fn read_later(
        &self,
        from: &SimView<'_>,
        offset: u64,
        bytes: u64,
        on: &SimStream,
    ) -> Result<SimArrival, DeviceError> {
        let range = part(from, offset, bytes);
        let arrived = Arc::new(Mutex::new(None));
        let (to, shown) = (arrived.clone(), range.clone());
        let copy = move |memory: &mut Contents<'_>| *to.lock() = Some(memory.read(&shown));
        let uses = [(range, Access::reading("read")), (0..0, Access::reading("read"))];
        self.driver.0.lock().later(on.raw().number(), uses, copy);
        Ok(SimArrival { device: self.clone(), arrived, mark: self.clock().mark(on) })
    }
}

/// Bytes on their way from a [`SimDevice`].
pub struct SimArrival {
    device: SimDevice,
    /// `None` until the copy has run.
    arrived: Arc<Mutex<Option<Vec<u8>>>>,
    mark: Mark,
}

impl Arrival for SimArrival {
    fn is_here(&self) -> Result<bool, DeviceError> {
        Ok(self.arrived.lock().is_some())
    }

    fn wait(self) -> Result<Vec<u8>, DeviceError> {
        self.device.clock().synchronize(self.mark)?;
        Ok(self.arrived.lock().take().unwrap_or_default())
    }
}

impl fmt::Debug for SimArrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimArrival").finish_non_exhaustive()
    }
}
