//! The error of a device.

use std::fmt;
use thiserror::Error;

/// The error of a device, or of a wrapper in front of it.
///
/// It is small, `Copy` and needs no heap, because it is made when memory has run out, and inside a
/// global allocator.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[error("{call}: {why}{}", Numbers(self))]
pub struct DeviceError {
    /// The kind of the error, on which a caller can act.
    pub why: Why,
    /// The name of the call that failed, as the device names it, such as `cuMemAlloc`.
    pub call: &'static str,
    /// The device's own error code, 0 if it has none. For [`Why::TooLarge`] the most bytes that are
    /// possible, for [`Why::OutOfRange`] the last byte that was requested, where known, for
    /// [`Why::Unaligned`] the offset or the length, for [`Why::WrongLength`] the elements that were
    /// given, and for [`Why::TimedOut`] the timeout in milliseconds.
    pub code: i64,
    /// The number that `code` should have kept to: for [`Why::OutOfRange`] the bytes of the buffer,
    /// 0 if unknown, for [`Why::WrongLength`] the elements of the array, and for an alignment that
    /// is [`Why::Unsupported`] the largest one, and for [`Why::OutOfMemory`] and [`Why::Limit`] the
    /// most bytes, where known. Otherwise 0.
    pub expected: i64,
}

/// The kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// The device has too little memory for the request. Giving cached blocks back may help.
    OutOfMemory,
    /// The request would exceed a limit that the program set. Giving cached blocks back may help.
    Limit,
    /// No device of this kind can serve the request: the size does not fit its address space.
    TooLarge,
    /// The device, or the way in which it is used, cannot do this at all.
    Unsupported,
    /// The device is lost. The program can only drop what the device handed out.
    Lost,
    /// This process was forked from the one that made the device's handles, which it cannot use.
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
    /// Any other error; the code says more.
    Other,
}

impl DeviceError {
    /// Returns an error of `call`, with the device's own `code`.
    #[must_use]
    pub const fn new(why: Why, call: &'static str, code: i64) -> Self {
        Self { why, call, code, expected: 0 }
    }

    /// Returns the error with the number that `code` should have kept to.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{DeviceError, Why};
    ///
    /// let error = DeviceError::new(Why::OutOfRange, "write to a buffer", 40).expected(32);
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
        Err(Self::new(Why::Unsupported, "alignment", alignment).expected(most))
    }

    /// Returns whether the call could succeed after memory was given back.
    pub(crate) fn is_out_of_memory(self) -> bool {
        matches!(self.why, Why::OutOfMemory | Why::Limit)
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
            Self::Limit => "over the limit",
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
            Self::Other => "the device refused",
        })
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
            (Why::OutOfMemory | Why::Limit, 0, most @ 1..) => write!(f, ", at most {most} B"),
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
