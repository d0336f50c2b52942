//! Bytes into memory and out of it.

use crate::device::{DeviceAllocator, StreamOf};
use crate::error::DeviceError;

/// Memory that a program can write to and read from, by copies in the order of a stream.
///
/// [`PooledBuffer::write_at`](crate::PooledBuffer::write_at) and
/// [`PooledArray`](crate::PooledArray) are made of it.
#[diagnostic::on_unimplemented(
    message = "a program cannot write and read `{Self}` by copies",
    note = "generic code asks for `A: Transfer`; a new kind of memory implements it beside \
            `DeviceAllocator`"
)]
pub trait Transfer: DeviceAllocator {
    /// Copies `from` into the view from byte `offset` on, in the order of `on`. `from` may be used
    /// again when the call returns; work that `on` is given from then on sees the bytes.
    ///
    /// # Safety
    ///
    /// The bytes lie inside of the view, and no other code uses them meanwhile, other than by work
    /// that `on` is ordered after.
    ///
    /// # Errors
    ///
    /// What the device said; the contents are unknown then.
    #[expect(unsafe_code, reason = "who calls it vouches for the bytes")]
    unsafe fn write(
        &self,
        to: &Self::View<'_>,
        offset: u64,
        from: &[u8],
        on: &StreamOf<Self>,
    ) -> Result<(), DeviceError>;

    /// Copies bytes of the view from `offset` on into `to`, after all work that `on` was given.
    /// Blocks until they are there.
    ///
    /// # Safety
    ///
    /// As for [`Transfer::write`].
    ///
    /// # Errors
    ///
    /// What the device said; [`Why::NotSubmitted`](crate::Why::NotSubmitted) where waiting would
    /// never end.
    #[expect(unsafe_code, reason = "who calls it vouches for the bytes")]
    unsafe fn read(
        &self,
        from: &Self::View<'_>,
        offset: u64,
        to: &mut [u8],
        on: &StreamOf<Self>,
    ) -> Result<(), DeviceError>;
}

/// Memory whose copies need not be waited for: the bytes go through staging memory that the device
/// reaches by itself.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no staging memory, so its copies are waited for",
    note = "use `write_at` and `read_at`"
)]
pub trait TransferLater: Transfer {
    /// Bytes on their way to the program.
    type Arrival: Arrival;

    /// Copies `from` to staging memory, and from there into the view in the order of `on`. Does not
    /// wait for the device.
    ///
    /// # Safety
    ///
    /// As for [`Transfer::write`].
    ///
    /// # Errors
    ///
    /// What the device said, also of the staging memory.
    #[expect(unsafe_code, reason = "who calls it vouches for the bytes")]
    unsafe fn write_later(
        &self,
        to: &Self::View<'_>,
        offset: u64,
        from: &[u8],
        on: &StreamOf<Self>,
    ) -> Result<(), DeviceError>;

    /// Copies `bytes` bytes of the view from `offset` on to staging memory, after all work that
    /// `on` was given. Does not wait for the device.
    ///
    /// # Safety
    ///
    /// As for [`Transfer::write`].
    ///
    /// # Errors
    ///
    /// What the device said, also of the staging memory.
    #[expect(unsafe_code, reason = "who calls it vouches for the bytes")]
    unsafe fn read_later(
        &self,
        from: &Self::View<'_>,
        offset: u64,
        bytes: u64,
        on: &StreamOf<Self>,
    ) -> Result<Self::Arrival, DeviceError>;
}

/// Bytes on their way to the program. Dropping it gives them up.
pub trait Arrival: Send {
    /// Returns whether they are there. Does not wait.
    ///
    /// # Errors
    ///
    /// What the device said.
    fn is_here(&self) -> Result<bool, DeviceError>;

    /// Blocks until they are there, and returns them.
    ///
    /// # Errors
    ///
    /// What the device said.
    fn wait(self) -> Result<Vec<u8>, DeviceError>;
}
