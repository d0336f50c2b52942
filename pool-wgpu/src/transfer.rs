//! Bytes into buffers of the queue's own stream and out of them, by the port's copies.
#![expect(unsafe_code, reason = "the port's; wgpu checks every range")]

use crate::allocator::WgpuAllocator;
use crate::clock::WgpuStream;
use crate::readback::ReadBack;
use crate::slabs::{Role, SlabView, WgpuSlabs};
use crate::view::WgpuView;
use pool_core::port::{Arrival, TransferLater};
use pool_core::{DeviceError, Transfer, Why};
use std::fmt;
use wgpu::COPY_BUFFER_ALIGNMENT;

const WORD: u64 = COPY_BUFFER_ALIGNMENT;

/// Bytes on their way to the program: what [`TransferLater::read_later`] gives.
pub struct WgpuArrival {
    back: ReadBack,
    /// Bytes that were read before those that were asked for, since copies are in words.
    skipped: usize,
}

impl WgpuAllocator {
    /// Copies back, by a scope that is submitted at once.
    fn get(
        &self,
        from: &WgpuView<'_>,
        offset: u64,
        bytes: u64,
        on: &WgpuStream,
    ) -> Result<WgpuArrival, DeviceError> {
        if !on.is_queue() {
            let call = "read in an open scope: Scope::read_back";
            return Err(DeviceError::new(Why::NotSubmitted, call));
        }
        let mut scope = self.uncounted_scope();
        let (buffer, clock) = (from.buffer, from.clock);
        let view = WgpuView { buffer, clock, on: scope.stream(), ..*from };
        let start = offset - offset % WORD;
        let back = scope.read_back(self.read_through(), &view, start, offset + bytes - start)?;
        scope.submit()?;
        let skipped = usize::try_from(offset - start).unwrap_or_default();
        Ok(WgpuArrival { back, skipped })
    }
}

impl Transfer for WgpuAllocator {
    /// Writes on the queue's own stream only; in a scope, [`Scope::upload`](crate::Scope::upload)
    /// does. A length that is no multiple of 4 bytes is possible at the end of a buffer.
    unsafe fn write(
        &self,
        to: &WgpuView<'_>,
        offset: u64,
        from: &[u8],
        _on: &WgpuStream,
    ) -> Result<(), DeviceError> {
        to.write(offset, from)
    }

    /// Reads on the queue's own stream only, by its own submission; not in a browser.
    unsafe fn read(
        &self,
        from: &WgpuView<'_>,
        offset: u64,
        to: &mut [u8],
        on: &WgpuStream,
    ) -> Result<(), DeviceError> {
        let arrival = self.get(from, offset, to.len() as u64, on)?;
        arrival.back.wait(|bytes| to.copy_from_slice(&bytes[arrival.skipped..]))
    }
}

impl TransferLater for WgpuAllocator {
    type Arrival = WgpuArrival;

    /// The queue stages what it writes.
    unsafe fn write_later(
        &self,
        to: &WgpuView<'_>,
        offset: u64,
        from: &[u8],
        _on: &WgpuStream,
    ) -> Result<(), DeviceError> {
        to.write(offset, from)
    }

    unsafe fn read_later(
        &self,
        from: &WgpuView<'_>,
        offset: u64,
        bytes: u64,
        on: &WgpuStream,
    ) -> Result<WgpuArrival, DeviceError> {
        self.get(from, offset, bytes, on)
    }
}

impl<R: Role> Transfer for WgpuSlabs<R> {
    unsafe fn write(
        &self,
        to: &SlabView<'_, R>,
        offset: u64,
        from: &[u8],
        _on: &WgpuStream,
    ) -> Result<(), DeviceError> {
        to.view().write(offset, from)
    }

    unsafe fn read(
        &self,
        from: &SlabView<'_, R>,
        offset: u64,
        to: &mut [u8],
        on: &WgpuStream,
    ) -> Result<(), DeviceError> {
        let arrival = self.device().get(from.view(), offset, to.len() as u64, on)?;
        arrival.back.wait(|bytes| to.copy_from_slice(&bytes[arrival.skipped..]))
    }
}

impl Arrival for WgpuArrival {
    fn is_here(&self) -> Result<bool, DeviceError> {
        self.back.is_here()
    }

    fn wait(self) -> Result<Vec<u8>, DeviceError> {
        self.back.wait(|bytes| bytes[self.skipped..].to_vec())
    }
}

impl fmt::Debug for WgpuArrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WgpuArrival").field("back", &self.back).finish_non_exhaustive()
    }
}
