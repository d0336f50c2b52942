//! The error of a device.

use std::fmt;
use thiserror::Error;

/// The error of a device, or of a wrapper in front of it.
///
/// It is small, `Copy` and needs no heap, because it is made when memory has run out, and inside a
/// global allocator.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[error("{}{why}{}", Call(call), Numbers(self))]
pub struct DeviceError {
    /// The kind of the error, on which a caller can act.
    pub why: Why,
    /// The call that failed, by the device's name for it, such as `cuMemAlloc`, or the operation of
    /// the pool that failed. Empty if a limit refused the request before the device was called.
    pub call: &'static str,
    /// The device's own error code, 0 if it has none. These kinds store another number here:
    /// [`Why::TooLarge`] the largest possible size in bytes; [`Why::OutOfRange`] the end of the
    /// requested range in bytes, where known; [`Why::Unaligned`] the offset or the length in bytes;
    /// an alignment that is [`Why::Unsupported`] the alignment in bytes; [`Why::WrongLength`] the
    /// number of elements that were given; and [`Why::TimedOut`] the timeout in milliseconds.
    pub code: i64,
    /// The value that was expected in place of `code`, or the bound on it: for [`Why::OutOfRange`]
    /// the bytes of the buffer, 0 if unknown; for [`Why::WrongLength`] the number of elements of
    /// the array; for an alignment that is [`Why::Unsupported`] the largest supported alignment;
    /// for [`Why::OutOfMemory`] and [`Why::Limit`] the largest possible size in bytes, where known.
    /// Otherwise 0.
    pub expected: i64,
}

/// The kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// The device has too little memory for the request. Giving cached blocks back may help.
    OutOfMemory,
    /// The process or the device has no addresses left for a reservation. Giving cached blocks back
    /// does not help, since they keep their addresses.
    OutOfAddresses,
    /// The request would exceed a limit. Giving cached blocks back may help.
    Limit(Limit),
    /// No device of this kind can serve the request: the size does not fit its address space.
    TooLarge,
    /// The device, or the way in which it is used, cannot do this at all.
    Unsupported,
    /// The device is lost. The program can only drop what the device handed out.
    Lost,
    /// This process is a forked child of the process that made the device's handles, so it cannot
    /// use them.
    Forked,
    /// The block, or the stream, belongs to another allocator or device.
    Foreign,
    /// The work to wait for has not reached the device, so nothing can be ordered after it.
    NotSubmitted,
    /// The range of bytes ends beyond the end of the buffer.
    OutOfRange,
    /// An offset or a length is not a multiple of the device's word.
    Unaligned,
    /// A slice has another number of elements than the array that it is copied to or from.
    WrongLength,
    /// Arrays that an operation combines have different shapes.
    ShapeMismatch,
    /// A request waited for memory until its timeout ended.
    TimedOut,
    /// A fault of this library was noticed, and the pool serves no more requests. The call names
    /// what does not hold, and where: report it. Buffers that the program has go on; their memory
    /// is not reused.
    Broken,
    /// Any other error; the code says more.
    Other,
}

/// A limit that a request would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// The limit on what the pool reserves
    /// ([`PoolBuilder::reserved_limit`](crate::PoolBuilder::reserved_limit)).
    Reserved,
    /// The limit that several pools share ([`Budget`](crate::limits::Budget)).
    Budget,
    /// The limit on cached bytes ([`PoolBuilder::cached_limit`](crate::PoolBuilder::cached_limit)).
    Cached,
    /// The limit on cached blocks of one size
    /// ([`PoolBuilder::bucket_limit`](crate::PoolBuilder::bucket_limit)).
    Bucket,
    /// A limit of the system or of the backend, such as `RLIMIT_MEMLOCK`, or one that the program gave to
    /// something beside the pool: the call of the error names it.
    Device,
}

impl DeviceError {
    /// Returns an error of `call`.
    ///
    /// ```
    /// use pool_core::{DeviceError, Why};
    ///
    /// let error = DeviceError::new(Why::OutOfMemory, "cuMemAlloc").code(2);
    /// assert_eq!(error.to_string(), "cuMemAlloc: out of memory (code 2)");
    /// ```
    #[must_use]
    pub const fn new(why: Why, call: &'static str) -> Self {
        Self { why, call, code: 0, expected: 0 }
    }

    /// Returns the error of a limit that refused before a call was made.
    ///
    /// ```
    /// use pool_core::{DeviceError, port::Limit};
    ///
    /// assert_eq!(DeviceError::limit(Limit::Reserved).to_string(), "over the reserved limit");
    /// ```
    #[must_use]
    pub const fn limit(limit: Limit) -> Self {
        Self::new(Why::Limit(limit), "")
    }

    /// Returns the error with the device's own code, or the number that [`DeviceError::code`]
    /// (the field) has for its kind.
    #[must_use]
    pub const fn code(self, code: i64) -> Self {
        Self { code, ..self }
    }

    /// Returns the error with the value, or the bound, that was expected in place of `code`.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{DeviceError, Why};
    ///
    /// let error = DeviceError::new(Why::OutOfRange, "write to a buffer").code(40).expected(32);
    /// assert_eq!(error.to_string(), "write to a buffer: beyond the end, at byte 40 of 32");
    /// ```
    #[must_use]
    pub const fn expected(self, expected: i64) -> Self {
        Self { expected, ..self }
    }

    /// Checks an alignment in bytes for a [`DeviceAllocator::aligned`](crate::DeviceAllocator::aligned)
    /// whose memory offers the powers of two up to `most`.
    ///
    /// # Errors
    ///
    /// [`Why::Unsupported`] for another number.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::DeviceError;
    ///
    /// assert!(DeviceError::check_alignment(256, 4096).is_ok());
    /// let error = DeviceError::check_alignment(48, 4096).unwrap_err().to_string();
    /// assert_eq!(error, "alignment: not supported: 48 B, expected a power of two up to 4096");
    /// ```
    pub fn check_alignment(alignment: u64, most: u64) -> Result<(), Self> {
        if alignment.is_power_of_two() && alignment <= most {
            return Ok(());
        }
        let [alignment, most] = [alignment, most].map(|n| i64::try_from(n).unwrap_or(i64::MAX));
        Err(Self::new(Why::Unsupported, "alignment").code(alignment).expected(most))
    }

    /// Returns whether the call could succeed after memory was given back.
    pub(crate) fn is_out_of_memory(self) -> bool {
        matches!(self.why, Why::OutOfMemory | Why::Limit(_))
    }

    /// Returns whether this process can no longer use any memory of the device.
    pub(crate) fn is_end_of_device(self) -> bool {
        matches!(self.why, Why::Lost | Why::Forked)
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OutOfMemory => "out of memory",
            Self::OutOfAddresses => "out of addresses, not of memory",
            Self::Limit(Limit::Reserved) => "over the reserved limit",
            Self::Limit(Limit::Budget) => "over the limit of the budget",
            Self::Limit(Limit::Cached) => "over the cached limit",
            Self::Limit(Limit::Bucket) => "over the bucket limit",
            Self::Limit(Limit::Device) => "over a limit of the system, the backend or the program",
            Self::TooLarge => "too large for any device of this kind",
            Self::Unsupported => "not supported",
            Self::Lost => "the device is lost",
            Self::Forked => "this process was forked from the device's",
            Self::Foreign => "it belongs to another allocator",
            Self::NotSubmitted => "the work before it is not submitted",
            Self::OutOfRange => "beyond the end",
            Self::Unaligned => "an offset or a length is no multiple of a word",
            Self::WrongLength => "wrong number of elements",
            Self::ShapeMismatch => "the shapes differ",
            Self::TimedOut => "no memory in time",
            Self::Broken => "an invariant of the pool is broken",
            Self::Other => "the device refused",
        })
    }
}

/// The call of an error as it is displayed before its kind; nothing if there was none.
struct Call<'e>(&'e str);

impl fmt::Display for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "{}: ", self.0) }
    }
}

/// The numbers of an error as they are displayed behind its kind; nothing if there are none.
struct Numbers<'e>(&'e DeviceError);

impl fmt::Display for Numbers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeviceError { why, code, expected, .. } = *self.0;
        match (why, code, expected) {
            (Why::WrongLength, given, expected) => write!(f, ": {given}, expected {expected}"),
            (Why::Unsupported, alignment, most @ 1..) => {
                write!(f, ": {alignment} B, expected a power of two up to {most}")
            }
            (Why::OutOfMemory | Why::Limit(_), 0, most @ 1..) => write!(f, ", at most {most} B"),
            (Why::TimedOut, ms @ 1.., _) => write!(f, ", after {ms} ms"),
            (_, 0, _) => Ok(()),
            (Why::TooLarge, most, _) => write!(f, ", at most {most} B"),
            (Why::OutOfRange, end, 0) => write!(f, ", at byte {end}"),
            (Why::OutOfRange, end, bytes) => write!(f, ", at byte {end} of {bytes}"),
            (Why::Unaligned, bytes, _) => write!(f, ": {bytes} B"),
            (_, code, _) => write!(f, " (code {code})"),
        }
    }
}
