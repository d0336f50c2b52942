//! Host memory as a slice of bytes.
#![expect(unsafe_code, reason = "a slice over memory that an allocator vouches for")]

use crate::port::allocator::DeviceAllocator;
use crate::port::clock::StreamClock;
use crate::port::error::{DeviceError, Why};
use std::ops::Range;
use std::ptr::NonNull;

/// Memory that the CPU reads and writes through a pointer. A buffer of it derefs to its bytes.
///
/// # Safety
///
/// [`HostMemory::bytes`] of a view returns at most as many bytes as [`DeviceAllocator::view`] was
/// called with, and always the same bytes for the same block, offset and size. The bytes of a view
/// at offset `o` begin `o` bytes after the bytes of the view at offset 0; only a view of 0 bytes
/// may have any address. Until the block is freed, the bytes are valid for reads and writes,
/// initialised, and used by no other block. The bytes of a fresh block are initialised too, because
/// a slice must not contain bytes that were never written. All this also holds in a forked child: a
/// live buffer keeps its contents there, and the child does not share its bytes with the parent.
///
/// The clock has no streams: the work of a call is done when the call returns.
///
/// Sizes and alignments are not part of this promise. They come from safe methods, so code that
/// needs them checks the slice that it gets.
#[diagnostic::on_unimplemented(
    message = "the CPU cannot reach `{Self}` through a slice",
    note = "on other memory write and read by `write_at`, `read_at` and `contents`, or use it \
            on a stream by `on(&stream)`"
)]
pub unsafe trait HostMemory:
    DeviceAllocator<Clock: StreamClock<Stream = (), Mark = ()>>
{
    /// The bytes of a view.
    fn bytes(view: &Self::View<'_>) -> NonNull<[u8]>;

    /// Copies `from` into a view from byte `offset` on: the body of
    /// [`Transfer::write`](crate::Transfer::write) of host memory.
    ///
    /// # Safety
    ///
    /// No other code uses these bytes of the view meanwhile.
    ///
    /// # Errors
    ///
    /// [`Why::OutOfRange`] if they lie outside of the view.
    unsafe fn copy_in(view: &Self::View<'_>, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        let bytes = Self::bytes(view);
        let range = part(bytes.len(), offset, from.len(), "write to host memory")?;
        // SAFETY: the range lies in the view.
        let to = unsafe { bytes.cast::<u8>().add(range.start) };
        // SAFETY: the trait promises valid bytes. No other code uses them, as the caller promises,
        // so `from` is elsewhere.
        unsafe { to.copy_from_nonoverlapping(NonNull::from(from).cast(), from.len()) };
        Ok(())
    }

    /// Copies bytes of a view from byte `offset` on into `to`: the body of
    /// [`Transfer::read`](crate::Transfer::read) of host memory.
    ///
    /// # Safety
    ///
    /// No other code writes these bytes of the view meanwhile.
    ///
    /// # Errors
    ///
    /// [`Why::OutOfRange`] if they lie outside of the view.
    unsafe fn copy_out(
        view: &Self::View<'_>,
        offset: u64,
        to: &mut [u8],
    ) -> Result<(), DeviceError> {
        let bytes = Self::bytes(view);
        let range = part(bytes.len(), offset, to.len(), "read from host memory")?;
        // SAFETY: the range lies in the view.
        let from = unsafe { bytes.cast::<u8>().add(range.start) };
        // SAFETY: the trait promises valid, initialised bytes. No other code writes them, as the
        // caller promises, so `to`, which is borrowed alone, is elsewhere.
        unsafe { from.copy_to_nonoverlapping(NonNull::from(&mut *to).cast(), to.len()) };
        Ok(())
    }
}

/// Returns the range of `part` bytes from `offset` on, if it lies inside of `bytes` bytes; else an
/// error of `call`.
fn part(
    bytes: usize,
    offset: u64,
    part: usize,
    call: &'static str,
) -> Result<Range<usize>, DeviceError> {
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    let end = start.saturating_add(part);
    if end <= bytes {
        return Ok(start..end);
    }
    let [end, bytes] = [end, bytes].map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
    Err(DeviceError::new(Why::OutOfRange, call).code(end).expected(bytes))
}
