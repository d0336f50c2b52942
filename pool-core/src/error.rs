//! What can go wrong: the device's own word for it, and the pool's figures beside it.

use crate::size::Bytes;
use std::{error, fmt};
use thiserror::Error;

/// Why a device, or a wrapper in front of it, refused.
///
/// Small, `Copy` and without a heap: it is made when memory has run out, inside a global allocator
/// too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{call}: {why}{}", Code(*why, *code))]
pub struct DeviceError {
    /// What kind of refusal this is; what a caller can act on.
    pub why: Why,
    /// The call that failed, in the device's own words, such as `cuMemAlloc`.
    pub call: &'static str,
    /// The device's own code for it, 0 where it has none. For [`Why::TooLarge`] the most bytes that
    /// are possible, for [`Why::OutOfRange`] the last byte that was asked for, where known, and for
    /// [`Why::Unaligned`] the offset or the length.
    pub code: i64,
}

/// The kinds of refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// The device has no memory for it. Giving idle blocks back may help.
    OutOfMemory,
    /// A limit that somebody set would be passed. Giving idle blocks back may help.
    Limit,
    /// No device of this kind could ever serve it: the size does not fit its address space.
    TooLarge,
    /// The device, or this way of using it, cannot do that at all.
    Unsupported,
    /// The device is gone; nothing but dropping what it handed out makes sense.
    Lost,
    /// This process was forked from the one that made the device's handles, which are no use here.
    Forked,
    /// The block, or the stream, belongs to somebody else.
    Foreign,
    /// The work to wait for has not reached the device, so nothing can be ordered after it.
    NotSubmitted,
    /// Bytes beyond the end of a buffer.
    OutOfRange,
    /// An offset or a length is no multiple of the device's words.
    Unaligned,
    /// A request waited for memory, and its time is over.
    TimedOut,
    /// Anything else; the code says more.
    Other,
}

impl DeviceError {
    /// A refusal of `call`, with the device's own `code`.
    #[must_use]
    pub const fn new(why: Why, call: &'static str, code: i64) -> Self {
        Self { why, call, code }
    }

    /// Whether giving memory back could turn this refusal into success.
    pub(crate) fn is_want_of_memory(self) -> bool {
        matches!(self.why, Why::OutOfMemory | Why::Limit)
    }

    /// Whether the device, as far as this process goes, holds nothing any more.
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
            Self::TimedOut => "no memory in time",
            Self::Other => "the device refused",
        })
    }
}

/// A code as it is shown behind its call: not at all where there is none.
struct Code(Why, i64);

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self(_, 0) => Ok(()),
            Self(Why::TooLarge, most) => write!(f, ", at most {most} B"),
            Self(Why::OutOfRange, end) => write!(f, ", at byte {end}"),
            Self(Why::Unaligned, bytes) => write!(f, ": {bytes} B"),
            Self(_, code) => write!(f, " (code {code})"),
        }
    }
}

/// Why a pool could not do what it was asked, with its figures at that moment.
///
/// One pointer wide, so that a `Result` of it costs the hit path nothing. The device's own error is
/// its [`source`](error::Error::source).
#[derive(Debug)]
pub struct AllocError(Box<Figures>);

/// The state of a pool when it refused. All sizes are bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figures {
    /// What the device, or the limit, said last.
    pub cause: DeviceError,
    /// What the caller asked for; 0 if the call was not an allocation.
    pub requested_bytes: u64,
    /// What would have been taken from the device for it, after rounding.
    pub rounded_bytes: u64,
    /// What the pool has taken from the device and not given back.
    pub reserved_bytes: u64,
    /// The ceiling on that; `u64::MAX` if there is none.
    pub reserved_limit_bytes: u64,
    /// What all pools of the [`Budget`](crate::Budget) have taken.
    pub budget_reserved_bytes: u64,
    /// The limit of the budget; `u64::MAX` if there is none.
    pub budget_limit_bytes: u64,
    /// Idle in the pool after everything that could go back went back.
    pub cached_bytes: u64,
    /// Of the cached bytes, those that a stream is not seen to have finished with.
    pub pending_bytes: u64,
    /// Of the cached bytes, those behind work that has not been submitted.
    pub unsubmitted_bytes: u64,
    /// Of the cached bytes, those that only another stream could have had without a wait that the
    /// [`StealPolicy`](crate::StealPolicy) rules out.
    pub stranded_bytes: u64,
    /// What the device has free for anybody, where its driver tells and memory of the device was
    /// short.
    pub device_free_bytes: Option<u64>,
    /// The largest idle block, or free range, that is left.
    pub largest_free_bytes: u64,
    /// Idle bytes given back to the device in the attempt.
    pub given_back_bytes: u64,
    /// The cached bytes by the lane of the stream that used them last
    /// ([`StreamClock::lane`](crate::StreamClock::lane)), the most first; `None` where no stream
    /// did, or several.
    pub cached_by_stream: Vec<(Option<u64>, u64)>,
    /// Why it failed.
    pub verdict: Verdict,
}

/// Why memory ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// Buffers in use and the request together need more than the device has.
    TruePeak,
    /// The same, with a limit that somebody set instead of the device.
    Limit,
    /// Enough is free, but not in one piece.
    Fragmentation,
    /// Enough is free, but other streams used it last and may not be waited for.
    Stranded,
    /// Enough is free, but a stream is not done with it, and the CPU may touch it.
    Pending,
    /// Enough is free, but behind work that nobody submitted.
    Unsubmitted,
    /// The request waited for its whole time.
    TimedOut,
    /// Memory was not what was lacking.
    Refused,
}

impl Verdict {
    /// What can be said before free memory is looked at.
    pub(crate) fn of_cause(cause: DeviceError) -> Self {
        match cause.why {
            Why::OutOfMemory => Self::TruePeak,
            Why::Limit => Self::Limit,
            Why::TimedOut => Self::TimedOut,
            _ => Self::Refused,
        }
    }

    /// What to do about it; nothing where the cause says it all.
    fn advice(self) -> &'static str {
        match self {
            Self::TruePeak => "a true peak: keep less alive at once, or take a larger device",
            Self::Limit => "the limit: raise it, or keep less alive at once",
            Self::Fragmentation => {
                "fragmentation: an arena in pages, or fewer different sizes, would serve this"
            }
            Self::Stranded => {
                "stranded in other streams: StealPolicy::Wait, or retiring streams that have ended"
            }
            Self::Pending => "pending on events: wait for the streams, then ask again",
            Self::Unsubmitted => "behind work that is not submitted: submit it, then ask again",
            Self::TimedOut => {
                "buffers and earlier requests have the memory: wait longer, raise the limit, or \
                 keep less alive at once"
            }
            Self::Refused => "",
        }
    }
}

impl AllocError {
    #[cold]
    pub(crate) fn new(figures: Figures) -> Self {
        Self(Box::new(figures))
    }

    /// The same with a verdict, now that it is known how much is out of the taker's reach.
    #[cold]
    pub(crate) fn judged(mut self, stranded: u64, cpu_touches: bool) -> Self {
        let e = &mut *self.0;
        e.stranded_bytes = stranded;
        let left_without = |bytes: u64| e.cached_bytes.saturating_sub(bytes) < e.rounded_bytes;
        e.verdict = match Verdict::of_cause(e.cause) {
            Verdict::Refused => Verdict::Refused,
            plain if left_without(0) => plain,
            _ if left_without(e.unsubmitted_bytes) => Verdict::Unsubmitted,
            _ if cpu_touches && left_without(e.pending_bytes) => Verdict::Pending,
            _ if left_without(stranded) => Verdict::Stranded,
            _ => Verdict::Fragmentation,
        };
        self
    }

    /// What kind of refusal this is.
    #[must_use]
    pub fn why(&self) -> Why {
        self.0.cause.why
    }

    /// Why it failed.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.0.verdict
    }

    /// The state of the pool when it refused.
    #[must_use]
    pub fn figures(&self) -> &Figures {
        &self.0
    }
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let e = &self.0;
        if e.requested_bytes > 0 {
            write!(f, "{} B ({})", e.requested_bytes, Bytes(e.requested_bytes))?;
            if e.rounded_bytes > e.requested_bytes {
                write!(f, " in a block of {}", Bytes(e.rounded_bytes))?;
            }
            f.write_str(" refused: ")?;
        }
        write!(f, "{}; reserved {}", e.cause, Bytes(e.reserved_bytes))?;
        match e.reserved_limit_bytes {
            u64::MAX => f.write_str(" without a limit")?,
            limit => write!(f, " of {}", Bytes(limit))?,
        }
        if let Some(free) = e.device_free_bytes {
            write!(f, ", the device has {} free", Bytes(free))?;
        }
        if e.budget_limit_bytes != u64::MAX {
            let (reserved, limit) = (e.budget_reserved_bytes, e.budget_limit_bytes);
            write!(f, ", in its budget {} of {}", Bytes(reserved), Bytes(limit))?;
        }
        write!(
            f,
            ", cached {} (largest {}, pending {}, unsubmitted {}), given back {}",
            Bytes(e.cached_bytes),
            Bytes(e.largest_free_bytes),
            Bytes(e.pending_bytes),
            Bytes(e.unsubmitted_bytes),
            Bytes(e.given_back_bytes),
        )?;
        if e.cached_by_stream.len() > 1 {
            f.write_str("; cached by stream")?;
            for (at, (lane, bytes)) in e.cached_by_stream.iter().enumerate() {
                f.write_str(if at == 0 { " " } else { ", " })?;
                match lane {
                    Some(lane) => write!(f, "{lane}: {}", Bytes(*bytes))?,
                    None => write!(f, "none: {}", Bytes(*bytes))?,
                }
            }
        }
        if e.cached_bytes > 0 {
            write!(f, "; fragmentation {:.0} %", 100.0 * e.fragmentation())?;
        }
        match e.verdict.advice() {
            "" => Ok(()),
            advice => write!(f, "; {advice}"),
        }
    }
}

impl Figures {
    /// A refusal by a pool that may not be looked into: its locks are a dead thread's.
    pub(crate) fn unknown(cause: DeviceError, requested_bytes: u64, rounded_bytes: u64) -> Self {
        Self {
            cause,
            requested_bytes,
            rounded_bytes,
            reserved_bytes: 0,
            reserved_limit_bytes: u64::MAX,
            budget_reserved_bytes: 0,
            budget_limit_bytes: u64::MAX,
            device_free_bytes: None,
            cached_bytes: 0,
            pending_bytes: 0,
            unsubmitted_bytes: 0,
            stranded_bytes: 0,
            largest_free_bytes: 0,
            given_back_bytes: 0,
            cached_by_stream: Vec::new(),
            verdict: Verdict::of_cause(cause),
        }
    }

    /// The share of cached bytes outside the largest free block, 0 to 1; 0 if nothing is cached.
    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        match self.cached_bytes {
            0 => 0.0,
            cached => 1.0 - self.largest_free_bytes as f64 / cached as f64,
        }
    }
}

impl error::Error for AllocError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        Some(&self.0.cause)
    }
}
