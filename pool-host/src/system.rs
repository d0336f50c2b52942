//! The few things that an allocator asks the system without allocating.
#![expect(unsafe_code, reason = "the system is called through C")]

use std::ffi::CStr;

/// The time in milliseconds since some moment, as of the last tick of the system's clock (1 to 10
/// ms ago). It is read from memory that the system shares, in about 10 ns.
pub(crate) fn coarse_milliseconds() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to the value that it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
    let part = |value: i64, per: u64| u64::try_from(value).unwrap_or(0).saturating_mul(per);
    part(now.tv_sec, 1000) + part(now.tv_nsec, 1) / 1_000_000
}

/// A variable of the environment. Read through C, since the standard library makes a string of it.
pub(crate) fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: the name ends with a zero byte.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: not null, so it is the environment's own string, which ends with a zero byte. It is
    // read before the caller returns to a program that could change it.
    Some(unsafe { CStr::from_ptr(value) }.to_bytes())
}

/// Whether a program was built with a sanitizer that keeps its own books of all memory, or runs
/// under Valgrind.
pub(crate) fn is_watched() -> bool {
    let watchers = [c"__asan_init", c"__msan_init", c"__tsan_init", c"__hwasan_init"];
    // SAFETY: looks for a symbol by name; it is compared, not called.
    let has = |name: &CStr| !unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }.is_null();
    let preloaded = variable(c"LD_PRELOAD").unwrap_or_default();
    watchers.into_iter().any(has) || preloaded.windows(9).any(|part| part == b"vgpreload")
}

/// Writes to stderr, piece by piece.
pub(crate) fn say(pieces: &[&[u8]]) {
    for piece in pieces {
        // SAFETY: so many bytes are there to be read. What cannot be written is lost.
        unsafe { libc::write(libc::STDERR_FILENO, piece.as_ptr().cast(), piece.len()) };
    }
}

/// The memory of this machine in bytes.
pub(crate) fn physical_bytes() -> Option<u64> {
    setting(libc::_SC_PHYS_PAGES)?.checked_mul(page_bytes())
}

/// What can be had without swapping, as the kernel reckons it; a container may have less.
pub(crate) fn available_bytes() -> Option<u64> {
    let told = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = told.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The size of a page in bytes.
pub(crate) fn page_bytes() -> u64 {
    setting(libc::_SC_PAGESIZE).unwrap_or(4096)
}

fn setting(name: libc::c_int) -> Option<u64> {
    // SAFETY: asks the system for a number.
    let value = unsafe { libc::sysconf(name) };
    u64::try_from(value).ok()
}

/// How many bytes this process may lock; none if there is no limit.
pub(crate) fn lock_limit_bytes() -> Option<u64> {
    // SAFETY: writes to the value that it is given.
    limit_by(|limit| unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, limit) })
}

/// How many bytes of addresses this process may have; none if there is no limit.
pub(crate) fn address_limit_bytes() -> Option<u64> {
    // SAFETY: as above.
    limit_by(|limit| unsafe { libc::getrlimit(libc::RLIMIT_AS, limit) })
}

/// The limit that `read` writes. The type of a resource's number differs between C libraries.
fn limit_by(read: impl FnOnce(&mut libc::rlimit) -> libc::c_int) -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let known = read(&mut limit) == 0;
    (known && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}
