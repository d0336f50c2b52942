//! Errors: the error of the device, and the figures of the pool when it refused a request.

use crate::size::Bytes;
use std::{error, fmt};
use thiserror::Error;

/// The error of a device, or of a wrapper in front of it.
///
/// It is small, `Copy` and needs no heap, because it is made when memory has run out, and inside a
/// global allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{call}: {why}{}", Code(*why, *code))]
pub struct DeviceError {
    /// The kind of the error, on which a caller can act.
    pub why: Why,
    /// The name of the call that failed, as the device names it, such as `cuMemAlloc`.
    pub call: &'static str,
    /// The device's own error code, 0 if it has none. For [`Why::TooLarge`] the most bytes that are
    /// possible, for [`Why::OutOfRange`] the last byte that was requested, where known, and for
    /// [`Why::Unaligned`] the offset or the length.
    pub code: i64,
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
    /// A request waited for memory until its timeout ended.
    TimedOut,
    /// Any other error; the code says more.
    Other,
}

impl DeviceError {
    /// Returns an error of `call`, with the device's own `code`.
    #[must_use]
    pub const fn new(why: Why, call: &'static str, code: i64) -> Self {
        Self { why, call, code }
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
            Self::TimedOut => "no memory in time",
            Self::Other => "the device refused",
        })
    }
}

/// The code of an error as it is displayed behind the call: nothing if there is no code.
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

/// The error of a pool that could not do what the caller requested, with the pool's figures at that
/// moment.
///
/// It is one pointer wide, so that a `Result` of it costs the hit path nothing. The error of the
/// device is its [`source`](error::Error::source).
#[derive(Debug)]
pub struct AllocError(Box<Figures>);

/// The figures of a pool when it refused a request. All sizes are bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figures {
    /// The last error of the device or of the limit.
    pub cause: DeviceError,
    /// Bytes that the caller requested; 0 if the call was not an allocation.
    pub requested_bytes: u64,
    /// Bytes that the request would have taken from the device, after rounding.
    pub rounded_bytes: u64,
    /// Bytes that the pool has taken from the device and not given back.
    pub reserved_bytes: u64,
    /// The limit on reserved bytes; `u64::MAX` if there is none.
    pub reserved_limit_bytes: u64,
    /// Bytes that all pools of the [`Budget`](crate::Budget) have reserved.
    pub budget_reserved_bytes: u64,
    /// The limit of the budget; `u64::MAX` if there is none.
    pub budget_limit_bytes: u64,
    /// Bytes of the blocks that buffers have, after rounding.
    pub allocated_bytes: u64,
    /// Bytes that the program requested for these buffers.
    pub live_requested_bytes: u64,
    /// Bytes that are kept for graphs ([`PrivatePool`](crate::PrivatePool)).
    pub private_bytes: u64,
    /// Bytes that the device did not take back, which are out of reach.
    pub lost_bytes: u64,
    /// Bytes that are cached in the pool after it gave back all that it could.
    pub cached_bytes: u64,
    /// The part of the cached bytes with work on a stream that is not yet seen to be done.
    pub pending_bytes: u64,
    /// The part of the cached bytes that waits for work that has not been submitted.
    pub unsubmitted_bytes: u64,
    /// The part of the cached bytes that only another stream could have used without a wait, where
    /// the [`StealPolicy`](crate::StealPolicy) rules a wait out.
    pub stranded_bytes: u64,
    /// Bytes that the device has free for all programs, where its driver reports them and memory of
    /// the device was short.
    pub device_free_bytes: Option<u64>,
    /// The bytes of the largest cached block, or free range, that is left.
    pub largest_free_bytes: u64,
    /// Cached bytes that were given back to the device in the attempt.
    pub given_back_bytes: u64,
    /// The cached bytes by the id of the stream that used them last
    /// ([`StreamClock::stream_id`](crate::StreamClock::stream_id)), the most first; `None` where no
    /// stream, or several, used them.
    pub cached_by_stream: Vec<(Option<u64>, u64)>,
    /// True for an arena in pages, which gives memory back by the page.
    pub in_pages: bool,
    /// The reason of the failure.
    pub verdict: Verdict,
}

/// The reason why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// Buffers in use and the request together need more than the device has.
    TruePeak,
    /// Buffers in use and the request together need more than a limit that the program set.
    Limit,
    /// Buffers in use and the request together would fit as they were requested, but not after
    /// rounding to size classes, granules or pages.
    Rounding,
    /// Enough memory is free, but not in one piece.
    Fragmentation,
    /// Enough memory is free, but other streams used it last and the policy allows no wait for
    /// them.
    Stranded,
    /// Enough memory is free, but a stream is not done with it, and the CPU may access it.
    Pending,
    /// Enough memory is free, but it waits for work that was not submitted.
    Unsubmitted,
    /// The request waited until its timeout ended.
    TimedOut,
    /// The cause was not a lack of memory.
    Refused,
}

impl Verdict {
    /// Returns the verdict that follows from the cause alone, before free memory is considered.
    pub(crate) fn of_cause(cause: DeviceError) -> Self {
        match cause.why {
            Why::OutOfMemory => Self::TruePeak,
            Why::Limit => Self::Limit,
            Why::TimedOut => Self::TimedOut,
            _ => Self::Refused,
        }
    }
}

impl AllocError {
    #[cold]
    pub(crate) fn new(figures: Figures) -> Self {
        Self(Box::new(figures))
    }

    /// An error of this cause. Its verdict follows from the figures and their own cause, which is
    /// that of the last search. `cpu_touches`: the CPU may access the memory without a stream.
    #[cold]
    pub(crate) fn judged(figures: Figures, cause: DeviceError, cpu_touches: bool) -> Self {
        let verdict = figures.judge(cause, cpu_touches);
        Self::new(Figures { cause, verdict, ..figures })
    }

    /// Returns the kind of the error.
    #[must_use]
    pub fn why(&self) -> Why {
        self.0.cause.why
    }

    /// Returns the reason of the failure.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.0.verdict
    }

    /// Returns the figures of the pool when it refused the request.
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
        if e.allocated_bytes > 0 {
            write!(f, ", in buffers {}", Bytes(e.allocated_bytes))?;
            if e.allocated_bytes != e.live_requested_bytes {
                write!(f, " ({} requested)", Bytes(e.live_requested_bytes))?;
            }
        }
        for (bytes, what) in [(e.private_bytes, "kept for graphs"), (e.lost_bytes, "lost")] {
            if bytes > 0 {
                write!(f, ", {what} {}", Bytes(bytes))?;
            }
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
            for (at, (stream_id, bytes)) in e.cached_by_stream.iter().enumerate() {
                f.write_str(if at == 0 { " " } else { ", " })?;
                match stream_id {
                    Some(stream_id) => write!(f, "{stream_id}: {}", Bytes(*bytes))?,
                    None => write!(f, "none: {}", Bytes(*bytes))?,
                }
            }
        }
        if e.fragmentation() > 0.0 {
            write!(f, "; fragmentation {:.0} %", 100.0 * e.fragmentation())?;
        }
        match e.advice() {
            "" => Ok(()),
            advice => write!(f, "; {advice}"),
        }
    }
}

impl Figures {
    /// Returns the figures of a pool that cannot be inspected: threads that do not exist any more
    /// hold its locks.
    pub(crate) fn unknown(cause: DeviceError) -> Self {
        Self {
            cause,
            requested_bytes: 0,
            rounded_bytes: 0,
            reserved_bytes: 0,
            reserved_limit_bytes: u64::MAX,
            budget_reserved_bytes: 0,
            budget_limit_bytes: u64::MAX,
            allocated_bytes: 0,
            live_requested_bytes: 0,
            private_bytes: 0,
            lost_bytes: 0,
            device_free_bytes: None,
            cached_bytes: 0,
            pending_bytes: 0,
            unsubmitted_bytes: 0,
            stranded_bytes: 0,
            largest_free_bytes: 0,
            given_back_bytes: 0,
            cached_by_stream: Vec::new(),
            in_pages: false,
            verdict: Verdict::of_cause(cause),
        }
    }

    /// Returns the bytes that would serve the request if all free memory were in one piece and
    /// ready: those that are cached, and those that the limits and the device still have. A device
    /// that does not report its memory, and was short of it, has none.
    fn free_bytes(&self) -> u64 {
        let by_limit = self.reserved_limit_bytes.saturating_sub(self.reserved_bytes);
        let by_budget = self.budget_limit_bytes.saturating_sub(self.budget_reserved_bytes);
        let at_device = match (self.device_free_bytes, self.cause.why) {
            (Some(free), _) => free,
            (None, Why::Limit) => u64::MAX,
            (None, _) => 0,
        };
        self.cached_bytes.saturating_add(by_limit.min(by_budget).min(at_device))
    }

    /// Returns the verdict of an error of this cause that follows from the figures.
    fn judge(&self, cause: DeviceError, cpu_touches: bool) -> Verdict {
        let plain = Verdict::of_cause(cause);
        if plain == Verdict::Refused {
            return plain;
        }
        let free = self.free_bytes();
        let is_enough_without = |bytes: u64| free.saturating_sub(bytes) >= self.rounded_bytes;
        if !is_enough_without(0) {
            let rounding = self.allocated_bytes.saturating_sub(self.live_requested_bytes);
            let would_fit = free.saturating_add(rounding) >= self.requested_bytes;
            return if would_fit && plain != Verdict::TimedOut { Verdict::Rounding } else { plain };
        }
        match self.unsubmitted_bytes {
            bytes if !is_enough_without(bytes) => Verdict::Unsubmitted,
            _ if cpu_touches && !is_enough_without(self.pending_bytes) => Verdict::Pending,
            _ if !is_enough_without(self.stranded_bytes) => Verdict::Stranded,
            _ => Verdict::Fragmentation,
        }
    }

    /// Whether memory is reserved that neither a buffer nor the cache of this pool has.
    fn is_kept_elsewhere(&self) -> bool {
        let limit = self.reserved_limit_bytes.min(self.budget_limit_bytes);
        let in_pool = self.cached_bytes < self.reserved_bytes;
        let in_budget = limit != u64::MAX && self.budget_reserved_bytes > self.reserved_bytes;
        self.allocated_bytes == 0 && (in_pool || in_budget) && self.rounded_bytes <= limit
    }

    /// Returns the advice that the error displays; an empty string where the cause is clear without
    /// one.
    fn advice(&self) -> &'static str {
        let limit = self.reserved_limit_bytes.min(self.budget_limit_bytes);
        match self.verdict {
            Verdict::TruePeak | Verdict::Limit if self.is_kept_elsewhere() => {
                "no buffer has it: drop graphs that keep memory, or other pools"
            }
            Verdict::TruePeak if self.allocated_bytes == 0 => {
                "this request alone needs more than the device has free"
            }
            Verdict::TruePeak => "a true peak: keep less alive at once, or take a larger device",
            Verdict::Limit if self.rounded_bytes > limit => {
                "this request alone is above the limit: raise the limit"
            }
            Verdict::Limit => "the limit: raise it, or keep less alive at once",
            Verdict::Rounding if self.in_pages => {
                "rounding to whole pages: it would fit as requested; take smaller pages"
            }
            Verdict::Rounding => {
                "rounding: it would fit as requested; take a policy with finer classes, or an arena"
            }
            Verdict::Fragmentation if self.in_pages => {
                "fragmentation: buffers that live long lie between the free pages; smaller pages \
                 would serve this"
            }
            Verdict::Fragmentation => {
                "fragmentation: an arena in pages, or fewer different sizes, would serve this"
            }
            Verdict::Stranded => {
                "stranded in other streams: StealPolicy::Wait, or retiring streams that have ended"
            }
            Verdict::Pending => "pending on events: wait for the streams, then ask again",
            Verdict::Unsubmitted => "behind work that is not submitted: submit it, then ask again",
            Verdict::TimedOut => {
                "buffers and earlier requests have the memory: wait longer, raise the limit, or \
                 keep less alive at once"
            }
            Verdict::Refused => "",
        }
    }

    /// Returns the share of cached bytes outside the largest free block, 0 to 1; 0 if nothing is
    /// cached.
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
