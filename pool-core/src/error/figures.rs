//! The figures of a pool when it refused a request, and the reason that follows from them.

use crate::port::{DeviceError, Why};

/// The figures of a pool when it refused a request. All sizes are bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figures {
    /// The last error of the device or of the limit.
    pub cause: DeviceError,
    /// What is wrong with an argument, such as a shape or an alignment, and what was expected;
    /// `None` if the arguments are valid. The error displays it in place of all figures.
    pub wrong_argument: Option<Box<str>>,
    /// Bytes that the caller requested; 0 if the call was not an allocation.
    pub requested_bytes: u64,
    /// Bytes that the request would have taken from the device, after rounding.
    pub rounded_bytes: u64,
    /// Bytes that the pool has taken from the device and not given back.
    pub reserved_bytes: u64,
    /// The limit on reserved bytes; `u64::MAX` if there is none.
    pub reserved_limit_bytes: u64,
    /// Bytes that all pools of the [`Budget`](crate::limits::Budget) have reserved.
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
    /// The part of the cached bytes that the [`StealPolicy`](crate::stream::StealPolicy) does not
    /// let this request steal, because its stream would have to wait for another stream.
    pub stranded_bytes: u64,
    /// Bytes that the device has free for all programs; `None` unless the device was out of memory
    /// and its driver reports them.
    pub device_free_bytes: Option<u64>,
    /// The bytes of the largest cached block, or free range, that is left.
    pub largest_free_bytes: u64,
    /// Cached bytes that were given back to the device in the attempt.
    pub given_back_bytes: u64,
    /// The cached bytes by the id of the stream that used them last
    /// ([`StreamClock::stream_id`](crate::StreamClock::stream_id)), the most first; `None` where no
    /// stream, or several, used them.
    pub cached_by_stream: Vec<CachedOnStream>,
    /// Buffers of the pool that were freed while the request waited; `None` if it did not wait.
    pub freed_while_waiting: Option<u64>,
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
    /// Enough memory is free, but streams are not done with it. The CPU can access it, so it cannot
    /// be reused after a wait on the device.
    Pending,
    /// Enough memory is free, but it waits for work that was not submitted.
    Unsubmitted,
    /// The request waited until its timeout ended. If no buffer was freed in that time
    /// ([`Figures::freed_while_waiting`]), those who have the buffers may wait themselves.
    TimedOut,
    /// The cause was not a lack of memory.
    Refused,
}

/// Cached bytes that one stream used last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CachedOnStream {
    /// The number of the stream; `None` for memory that no stream used last.
    pub stream_id: Option<u64>,
    /// Its cached bytes.
    pub bytes: u64,
}

impl Verdict {
    /// Returns the verdict that follows from the cause alone, before free memory is considered.
    pub(crate) fn of_cause(cause: DeviceError) -> Self {
        match cause.why {
            Why::OutOfMemory => Self::TruePeak,
            Why::Limit(_) => Self::Limit,
            Why::TimedOut => Self::TimedOut,
            Why::TooLarge
            | Why::OutOfAddresses
            | Why::Unsupported
            | Why::Lost
            | Why::Forked
            | Why::Foreign
            | Why::NotSubmitted
            | Why::OutOfRange
            | Why::Unaligned
            | Why::WrongLength
            | Why::ShapeMismatch
            | Why::Broken
            | Why::Other => Self::Refused,
        }
    }
}

impl Figures {
    /// Returns the figures of a pool that cannot be inspected: threads that do not exist any more
    /// hold its locks.
    pub(crate) fn unknown(cause: DeviceError) -> Self {
        Self {
            cause,
            wrong_argument: None,
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
            freed_while_waiting: None,
            in_pages: false,
            verdict: Verdict::of_cause(cause),
        }
    }

    /// Returns the bytes that could serve the request if all free memory was contiguous and ready:
    /// the cached bytes, plus the bytes that the limits and the device still allow. A device that
    /// was out of memory and does not report its free memory counts as full.
    fn free_bytes(&self) -> u64 {
        let by_limit = self.reserved_limit_bytes.saturating_sub(self.reserved_bytes);
        let by_budget = self.budget_limit_bytes.saturating_sub(self.budget_reserved_bytes);
        let at_device = match (self.device_free_bytes, self.cause.why) {
            (Some(free), _) => free,
            (None, Why::Limit(_)) => u64::MAX,
            (None, _) => 0,
        };
        self.cached_bytes.saturating_add(by_limit.min(by_budget).min(at_device))
    }

    /// Returns the verdict of an error of this cause that follows from the figures.
    pub(super) fn judge(&self, cause: DeviceError, cpu_touches: bool) -> Verdict {
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
