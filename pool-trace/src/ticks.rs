//! A clock that costs a recorded event few nanoseconds: the processor's counter of ticks.
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "an instruction of the processor")
)]

use std::time::Instant;

/// Returns the ticks of now. The counter of x86-64 runs at a constant rate on processors since
/// 2008; elsewhere ticks are nanoseconds.
#[inline]
pub(crate) fn now() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: each x86-64 processor has the instruction, and it touches no memory.
        unsafe { std::arch::x86_64::_rdtsc() }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        use std::sync::OnceLock;
        static START: OnceLock<Instant> = OnceLock::new();
        u64::try_from(START.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Converts ticks to nanoseconds.
#[derive(Debug)]
pub(crate) struct Ticks {
    start: (u64, Instant),
    /// Nanoseconds in a tick.
    length: f64,
}

impl Ticks {
    pub(crate) fn new() -> Self {
        Self { start: (now(), Instant::now()), length: 1.0 }
    }

    /// Measures the length of a tick over all the time since the start.
    pub(crate) fn measure(&mut self) {
        let (ticks, at) = self.start;
        let ticks = now().saturating_sub(ticks);
        if ticks > 0 {
            self.length = at.elapsed().as_nanos() as f64 / ticks as f64;
        }
    }

    /// Returns a number of ticks in nanoseconds.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float cast saturates, and lengths are positive"
    )]
    pub(crate) fn nanoseconds(&self, ticks: u64) -> u64 {
        (ticks as f64 * self.length) as u64
    }
}
