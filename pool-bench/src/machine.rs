//! What the machine tells: time that a thread worked, and memory that is free.

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

/// Runs `work`; returns what it took in nanoseconds of the wall clock.
pub fn timed_wall<R>(work: impl FnOnce() -> R) -> (R, u64) {
    let start = std::time::Instant::now();
    let result = work();
    (result, u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// Bytes that this machine could give to programs, where the system tells.
#[must_use]
pub fn free_memory() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("MemAvailable:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib << 10)
}
