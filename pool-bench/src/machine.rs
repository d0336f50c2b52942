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

/// Pages of this process that the system has had to find so far, without reading them from a disk.
#[must_use]
pub fn page_faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program is in brackets and may hold spaces; the count is eighth behind it.
    let behind = stat.rsplit_once(')').map_or("", |(_, behind)| behind);
    behind.split_whitespace().nth(7).and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// Bytes of this process that are in memory.
#[must_use]
pub fn resident() -> u64 {
    of_this_process("VmRSS:")
}

/// The most that ever were, or have been since [`reset_resident_peak`].
#[must_use]
pub fn resident_peak() -> u64 {
    of_this_process("VmHWM:")
}

/// Lets [`resident_peak`] start again from what is in memory now.
pub fn reset_resident_peak() {
    // Where the system refuses, the peak is that of the whole run, which is no less.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

fn of_this_process(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(key));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}
