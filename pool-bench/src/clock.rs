//! Time that the measured thread worked, and statistics of samples.

use rustix::time::{ClockId, clock_gettime};

/// CPU time of this thread, in nanoseconds. Not wall time: other work on the machine does not
/// count.
#[must_use]
pub fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Runs `work`; returns what it took in nanoseconds of CPU time.
pub fn timed<R>(work: impl FnOnce() -> R) -> (R, u64) {
    let start = cpu_ns();
    let result = work();
    (result, cpu_ns() - start)
}

/// The value below which a share of the samples lies, by the nearest rank.
///
/// ```
/// assert_eq!(pool_bench::clock::quantile(&mut [3.0, 1.0, 2.0], 0.5), 2.0);
/// ```
#[must_use]
pub fn quantile(samples: &mut [f64], share: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
    let rank = (samples.len() as f64 * share).ceil() as usize;
    samples.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}
