//! Measurements that the operating system provides: CPU time, page faults, memory.

use rustix::time::{ClockId, clock_gettime};

/// Returns the CPU time of this thread in nanoseconds. Other work on the machine does not count,
/// unlike for wall time.
#[must_use]
pub fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Runs `work`. Returns its result and its CPU time in nanoseconds.
pub fn timed<R>(work: impl FnOnce() -> R) -> (R, u64) {
    let start = cpu_ns();
    let result = work();
    (result, cpu_ns() - start)
}

/// Runs `work`. Returns its result and its wall time in nanoseconds.
pub fn timed_wall<R>(work: impl FnOnce() -> R) -> (R, u64) {
    let start = std::time::Instant::now();
    let result = work();
    (result, u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// The clock of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// CPU time of the thread.
    Thread,
    /// Wall time: the thread waits while a device works.
    Wall,
}

impl Clock {
    /// Runs `work`. Returns its result and its time in nanoseconds.
    pub fn time<R>(self, work: impl FnOnce() -> R) -> (R, u64) {
        match self {
            Self::Thread => timed(work),
            Self::Wall => timed_wall(work),
        }
    }
}

/// Returns the bytes that are available to programs, or `None` if the system does not report them.
#[must_use]
pub fn free_memory() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("MemAvailable:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Returns the minor page faults of this process so far: those served without a disk read.
#[must_use]
pub fn page_faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The program's name is in brackets and may contain spaces; the count is the eighth field after
    // it.
    let behind = stat.rsplit_once(')').map_or("", |(_, behind)| behind);
    behind.split_whitespace().nth(7).and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// Returns the resident bytes of this process.
#[must_use]
pub fn resident() -> u64 {
    of_this_process("VmRSS:")
}

/// Returns the peak of resident bytes since the start, or since [`reset_resident_peak`].
#[must_use]
pub fn resident_peak() -> u64 {
    of_this_process("VmHWM:")
}

/// Resets [`resident_peak`] to the bytes that are resident now.
pub fn reset_resident_peak() {
    // If the system refuses, the peak is that of the whole run, which is at least as high.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

fn of_this_process(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(key));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}
