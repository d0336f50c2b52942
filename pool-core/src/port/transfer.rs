//! Copies of bytes into memory and out of it, and memory that the CPU touches.
#![expect(unsafe_code, reason = "a slice over memory that an allocator vouches for")]

use crate::port::allocator::{DeviceAllocator, StreamOf};
use crate::port::clock::StreamClock;
use crate::port::error::{DeviceError, Why};
use std::ops::Range;
use std::ptr::NonNull;

/// Memory that a program can write to and read from, by copies in the order of a stream.
///
/// [`PooledBuffer::write_at`](crate::PooledBuffer::write_at) and
/// `PooledArray` are made of it.
///
/// # Examples
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
/// use bucketpool::{DeviceAllocator, Transfer, Why, port::Request, sim::SimDevice};
///
/// let device = SimDevice::new();
/// let stream = device.stream();
/// let block = device.allocate(Request { bytes: 4, kind: () }, &stream)?;
/// let (view, mut to) = (device.view(&block, 0, 4, &stream), [0; 2]);
/// // SAFETY: both ranges lie inside of the view, and no other code uses the block.
/// unsafe {
///     device.write(&view, 0, b"1234", &stream)?;
///     Transfer::read(&device, &view, 1, &mut to, &stream)?;
/// }
/// assert_eq!(&to, b"23");
/// device.begin_capture(&stream)?; // work of the stream does not run now
/// // SAFETY: as above.
/// let refused = unsafe { Transfer::read(&device, &view, 1, &mut to, &stream) };
/// assert_eq!(refused.unwrap_err().why, Why::NotSubmitted);
/// # Ok::<(), pool_core::DeviceError>(())
/// ```
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
    /// The error of the device; the contents are unknown then.
    #[expect(unsafe_code, reason = "who calls it vouches for the bytes")]
    unsafe fn write(
        &self,
        to: &Self::View<'_>,
        offset: u64,
        from: &[u8],
        on: &StreamOf<Self>,
    ) -> Result<(), DeviceError>;

    /// Copies bytes of the view from `offset` on into `to`, after all work that `on` was given.
    /// Blocks until the bytes are in `to`.
    ///
    /// # Safety
    ///
    /// As for [`Transfer::write`].
    ///
    /// # Errors
    ///
    /// The error of the device; [`Why::NotSubmitted`] where waiting would
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

/// Memory with asynchronous copies: the bytes go through staging memory that the device accesses by
/// itself, so the caller does not wait.
///
/// # Examples
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
/// use bucketpool::{DeviceAllocator, Why, port::{Arrival, Request, TransferLater}, sim::SimDevice};
///
/// let device = SimDevice::new();
/// let stream = device.stream();
/// let block = device.allocate(Request { bytes: 4, kind: () }, &stream)?;
/// let view = device.view(&block, 0, 4, &stream);
/// // SAFETY: both ranges lie inside of the view, and no other code uses the block.
/// let arrival = unsafe {
///     device.write_later(&view, 0, b"1234", &stream)?;
///     device.read_later(&view, 1, 2, &stream)?
/// };
/// assert!(!arrival.is_here()?); // the stream has not run yet
/// assert_eq!(arrival.wait()?, b"23");
/// // SAFETY: as above.
/// let arrival = unsafe { device.read_later(&view, 1, 2, &stream)? };
/// device.lose_after(0);
/// assert_eq!(arrival.wait().unwrap_err().why, Why::Lost);
/// # Ok::<(), pool_core::DeviceError>(())
/// ```
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
    /// The error of the device, also of the staging memory.
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
    /// The error of the device, also of the staging memory.
    #[expect(unsafe_code, reason = "who calls it vouches for the bytes")]
    unsafe fn read_later(
        &self,
        from: &Self::View<'_>,
        offset: u64,
        bytes: u64,
        on: &StreamOf<Self>,
    ) -> Result<Self::Arrival, DeviceError>;
}

/// A read that the device may not have finished. Dropping it discards the bytes.
///
/// See [`TransferLater`] for an example.
pub trait Arrival: Send {
    /// Returns whether the bytes have arrived. Does not wait.
    ///
    /// # Errors
    ///
    /// The error of the device.
    fn is_here(&self) -> Result<bool, DeviceError>;

    /// Blocks until the bytes have arrived, and returns them.
    ///
    /// # Errors
    ///
    /// The error of the device.
    fn wait(self) -> Result<Vec<u8>, DeviceError>;
}

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
    /// [`Transfer::write`] of host memory.
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
    /// [`Transfer::read`] of host memory.
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
