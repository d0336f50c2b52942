//! A refused request as text: what was requested, the cause, where the memory is, and what to do.

use crate::error::{AllocError, Figures, Verdict};
use crate::port::{DeviceError, Limit, Why};
use crate::size::{Bytes, KIB};
use std::fmt;

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let e = &self.0;
        if let Some(argument) = &e.wrong_argument {
            return f.write_str(argument);
        }
        if e.requested_bytes > 0 {
            write!(f, "{} B", e.requested_bytes)?;
            if e.requested_bytes >= KIB {
                write!(f, " ({})", Bytes(e.requested_bytes))?;
            }
            if e.rounded_bytes > e.requested_bytes {
                write!(f, " in a block of {}", Bytes(e.rounded_bytes))?;
            }
            f.write_str(" refused: ")?;
        }
        write!(f, "{}", e.cause)?;
        if e.verdict == Verdict::Refused {
            return Ok(());
        }
        f.write_str("; ")?;
        e.fmt_memory(f)?;
        write!(f, "; {}", e.advice())
    }
}

impl fmt::Debug for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match f.alternate() {
            true => f.debug_tuple("AllocError").field(&self.0).finish(),
            false => fmt::Display::fmt(self, f),
        }
    }
}

/// The sentence of `Display`, which a `main` that returns the error prints.
impl fmt::Debug for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Figures {
    /// Writes the figures that are not 0: how much memory the pool has, and where it is.
    fn fmt_memory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reserved_bytes {
            0 => f.write_str("nothing reserved")?,
            bytes => write!(f, "reserved {}", Bytes(bytes))?,
        }
        if self.reserved_limit_bytes != u64::MAX {
            write!(f, " of {}", Bytes(self.reserved_limit_bytes))?;
        }
        match self.device_free_bytes {
            None => {}
            Some(0) => f.write_str(", the device has nothing free")?,
            Some(free) => write!(f, ", the device has {} free", Bytes(free))?,
        }
        if self.budget_limit_bytes != u64::MAX {
            match self.budget_reserved_bytes {
                0 => f.write_str(", in its budget nothing")?,
                bytes => write!(f, ", in its budget {}", Bytes(bytes))?,
            }
            write!(f, " of {}", Bytes(self.budget_limit_bytes))?;
        }
        if self.allocated_bytes > 0 {
            write!(f, ", in buffers {}", Bytes(self.allocated_bytes))?;
            if self.allocated_bytes != self.live_requested_bytes {
                write!(f, " ({} requested)", Bytes(self.live_requested_bytes))?;
            }
        }
        fmt_bytes(f, ", kept for graphs ", self.private_bytes)?;
        fmt_bytes(f, ", lost ", self.lost_bytes)?;
        self.fmt_cached(f)?;
        fmt_bytes(f, ", given back ", self.given_back_bytes)
    }

    /// Writes the cached bytes and why they do not serve; nothing if nothing is cached.
    fn fmt_cached(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.cached_bytes == 0 {
            return Ok(());
        }
        write!(f, ", cached {}", Bytes(self.cached_bytes))?;
        write!(f, " (largest {}", Bytes(self.largest_free_bytes))?;
        if self.fragmentation() > 0.0 {
            write!(f, ", fragmentation {:.0} %", 100.0 * self.fragmentation())?;
        }
        fmt_bytes(f, ", pending ", self.pending_bytes)?;
        fmt_bytes(f, ", unsubmitted ", self.unsubmitted_bytes)?;
        fmt_bytes(f, ", stranded ", self.stranded_bytes)?;
        if self.cached_by_stream.len() > 1 {
            f.write_str("; by stream")?;
            for (at, cached) in self.cached_by_stream.iter().enumerate() {
                f.write_str(if at == 0 { " " } else { ", " })?;
                match cached.stream_id {
                    Some(stream_id) => write!(f, "{stream_id}: {}", Bytes(cached.bytes))?,
                    None => write!(f, "none: {}", Bytes(cached.bytes))?,
                }
            }
        }
        f.write_str(")")
    }

    /// Whether the pool has reserved memory that neither a buffer nor its cache has.
    fn is_kept_for_graphs(&self) -> bool {
        self.allocated_bytes == 0
            && self.cached_bytes.saturating_add(self.lost_bytes) < self.reserved_bytes
    }

    /// Whether other pools of the budget have what is missing under its limit.
    fn is_in_other_pools(&self) -> bool {
        self.cause.why == Why::Limit(Limit::Budget)
            && self.budget_reserved_bytes > self.reserved_bytes
    }

    /// Whether the request waited, and no buffer was freed meanwhile.
    fn is_held_by_waiters(&self) -> bool {
        self.freed_while_waiting == Some(0) && self.allocated_bytes > 0
    }

    /// Whether the request needs more than the device has free and the pool could give back.
    fn is_above_device(&self) -> bool {
        let bytes = self.device_free_bytes.map(|free| free.saturating_add(self.reserved_bytes));
        bytes.is_some_and(|bytes| self.rounded_bytes > bytes)
    }

    /// Returns the advice that the error displays; an empty string where the cause is clear without
    /// one.
    fn advice(&self) -> &'static str {
        let limit = self.reserved_limit_bytes.min(self.budget_limit_bytes);
        match self.verdict {
            Verdict::TruePeak | Verdict::Limit | Verdict::TimedOut
                if self.rounded_bytes > limit =>
            {
                "this request alone is above the limit: raise the limit"
            }
            Verdict::TruePeak | Verdict::Limit | Verdict::TimedOut if self.is_above_device() => {
                "this request alone needs more than the device has free"
            }
            Verdict::Limit if self.is_in_other_pools() && self.allocated_bytes == 0 => {
                "other pools of the budget have it: drop their buffers, wait with \
                 `allocate_timeout`, or raise the limit of the budget"
            }
            Verdict::Limit if self.is_in_other_pools() => {
                "this pool and others of the budget have it: raise its limit, wait with \
                 `allocate_timeout`, or keep less alive at once"
            }
            Verdict::TruePeak | Verdict::Limit if self.is_kept_for_graphs() => {
                "no buffer has it: drop graphs that keep memory"
            }
            Verdict::TruePeak if self.allocated_bytes == 0 => {
                "this request alone needs more than the device has free"
            }
            Verdict::TruePeak => "a true peak: keep less alive at once, or take a larger device",
            Verdict::Limit if self.allocated_bytes == 0 && self.cached_bytes > 0 => {
                "the limit: raise it, or take less ahead of time"
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
            Verdict::TimedOut if self.is_held_by_waiters() => {
                "no buffer of the pool was freed in that time: if those who wait have the buffers, no \
                 time is enough; take all that a step needs in one request, or drop before you wait"
            }
            Verdict::TimedOut => {
                "buffers and earlier requests have the memory: wait longer, raise the limit, or \
                 keep less alive at once"
            }
            Verdict::Refused => "",
        }
    }
}

/// Writes a number of bytes behind its name; nothing for 0.
fn fmt_bytes(f: &mut fmt::Formatter<'_>, name: &str, bytes: u64) -> fmt::Result {
    if bytes == 0 { Ok(()) } else { write!(f, "{name}{}", Bytes(bytes)) }
}
