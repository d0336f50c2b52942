//! System calls and C library calls that the allocators need.
//!
//! Except for [`available_bytes`], none of them uses the global allocator, so an allocator may call
//! them.
#![expect(unsafe_code, reason = "the system is called through C")]

use crate::kernel;
use crate::sync::atomic::AtomicU32;
use once_cell::race::OnceBool;
use std::ffi::{CStr, c_int, c_long};
use std::time::Duration;

/// Returns a monotonic time in milliseconds, as of the last tick of the system's clock (1 to 10 ms
/// ago).
///
/// The call reads memory that the kernel shares with the process, which takes about 10 ns.
#[cfg(not(pool_counts))]
pub(crate) fn coarse_milliseconds() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `clock_gettime` writes one `timespec` to `now`, which lives through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
    // A negative number, which this clock does not return, would count as 0.
    let part = |value: i64, per: u64| u64::try_from(value).unwrap_or(0).saturating_mul(per);
    part(now.tv_sec, 1000) + part(now.tv_nsec, 1) / 1_000_000 + passed()
}

/// The milliseconds by which a test is ahead of the clock.
#[cfg(all(test, not(pool_counts)))]
pub(crate) mod ahead {
    use std::cell::Cell;

    thread_local!(static PASSED: Cell<u64> = const { Cell::new(0) });

    pub(super) fn passed() -> u64 {
        PASSED.get()
    }

    /// Has so many milliseconds pass for the calling thread.
    pub(crate) fn pass(milliseconds: u64) {
        PASSED.set(PASSED.get() + milliseconds);
    }
}
#[cfg(all(test, not(pool_counts)))]
use ahead::passed;

#[cfg(not(any(test, pool_counts)))]
const fn passed() -> u64 {
    0
}

/// The time of a build that counts, which is the same in each run.
#[cfg(pool_counts)]
pub(crate) fn coarse_milliseconds() -> u64 {
    pool_core::counts::milliseconds()
}

/// Has glibc give free memory back to the system; with another C library, does nothing.
pub(crate) fn trim_c_heap() {
    #[cfg(all(target_env = "gnu", not(miri)))]
    // SAFETY: `malloc_trim` has no preconditions. It is thread-safe, and gives back only memory
    // that the C library knows as free.
    keeping_errno(|| unsafe { libc::malloc_trim(0) });
}

/// Does work whose system calls may fail, and leaves this thread's `errno` as it was: a program
/// expects that a free does not change it.
pub(crate) fn keeping_errno<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: the address of a variable of this thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above; only this thread reads and writes it.
    let before = unsafe { errno.read() };
    let result = work();
    // SAFETY: as above.
    unsafe { errno.write(before) };
    result
}

/// Returns the empty set of signals.
pub(crate) fn no_signals() -> libc::sigset_t {
    signals(libc::sigemptyset)
}

/// Returns the set of all signals.
pub(crate) fn all_signals() -> libc::sigset_t {
    signals(libc::sigfillset)
}

/// Returns a set of signals that `fill` has initialized.
fn signals(fill: unsafe extern "C" fn(*mut libc::sigset_t) -> c_int) -> libc::sigset_t {
    let mut set = std::mem::MaybeUninit::zeroed();
    // SAFETY: `sigemptyset` and `sigfillset` write one `sigset_t`, and `set` has room for one.
    unsafe { fill(set.as_mut_ptr()) };
    // SAFETY: `sigset_t` consists of integers, which `zeroed` initialized; any value is valid.
    unsafe { set.assume_init() }
}

/// Returns whether the program has privileges that the user who started it may lack: it is
/// set-user-ID, set-group-ID or has file capabilities (`AT_SECURE`).
fn has_gained_privileges() -> bool {
    // SAFETY: `getauxval` takes a number and reads what the kernel passed to the process.
    !cfg!(miri) && unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Returns the value of an environment variable; `None` in a program that has gained privileges,
/// where the environment is a stranger's.
///
/// It calls `getenv`, because `std::env` allocates a string. The caller must not keep the value
/// after the next change of the environment.
pub(crate) fn variable(name: &CStr) -> Option<&'static [u8]> {
    if has_gained_privileges() {
        return None;
    }
    // SAFETY: `name` ends with a zero byte. A program that changes the environment guarantees that
    // no other thread reads it meanwhile (`std::env::set_var`).
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: `getenv` returned a string of the environment, not null, which ends with a zero byte.
    // It is valid until the program changes the environment; both callers read it at once and keep
    // no reference.
    Some(unsafe { CStr::from_ptr(value) }.to_bytes())
}

/// Returns whether the program has a sanitizer with a `malloc` of its own, or runs under Valgrind.
pub(crate) fn is_watched() -> bool {
    is_watched_beside(variable(c"LD_PRELOAD").unwrap_or_default())
}

/// As [`is_watched`], beside these preloaded libraries: for callers that may allocate, and read the
/// environment as programs do.
pub(crate) fn is_watched_beside(preloaded: &[u8]) -> bool {
    is_sanitized() || preloaded.windows(9).any(|part| part == b"vgpreload")
}

/// Returns whether the program has a sanitizer that tracks all memory itself.
///
/// The first call takes the lock of the dynamic linker, for which it may wait, and may allocate.
pub(crate) fn is_sanitized() -> bool {
    // Two threads that come here at once find the same.
    static FOUND: OnceBool = OnceBool::new();
    FOUND.get_or_init(|| has_linked_sanitizer() || has_loaded_sanitizer())
}

/// Whether the runtime of a sanitizer is linked into the same file as this code, as `rustc` does: the
/// dynamic linker knows no name of it then.
///
/// Each sanitizer with a `malloc` has this function (`sanitizer/allocator_interface.h`); that of
/// undefined behaviour has none.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn has_linked_sanitizer() -> bool {
    let function: usize;
    // SAFETY: it loads a word that the linker fills: the address of the function, or 0 if there is
    // none, which the name's being weak permits. The address is compared and not used.
    unsafe {
        std::arch::asm!(
            ".weak __sanitizer_get_allocated_size",
            "mov {}, qword ptr [rip + __sanitizer_get_allocated_size@GOTPCREL]",
            out(reg) function,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    function != 0
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn has_linked_sanitizer() -> bool {
    false
}

/// Whether a library of the process is the runtime of a sanitizer, or the program exports one.
fn has_loaded_sanitizer() -> bool {
    let name = c"__sanitizer_get_allocated_size".as_ptr();
    // SAFETY: `dlsym` reads a name that ends with a zero byte. The address is compared with null
    // and not used.
    let is_found = !unsafe { libc::dlsym(libc::RTLD_DEFAULT, name) }.is_null();
    // What was not found left an error, which the program would take for its own.
    // SAFETY: `dlerror` has no preconditions.
    unsafe { libc::dlerror() };
    is_found
}

/// Has the C library call a function when the process exits. If it cannot, nothing happens.
pub(crate) fn at_exit(function: extern "C" fn()) {
    // SAFETY: the function lives as long as the process, or as the library that contains it, with
    // which the C library forgets it.
    let _ = unsafe { libc::atexit(function) };
}

/// Names the calling thread, for those who list threads. At most 15 bytes.
pub(crate) fn name_thread(name: &CStr) {
    // SAFETY: `PR_SET_NAME` reads a string that ends with a zero byte.
    unsafe { prctl(libc::PR_SET_NAME, name.as_ptr().expose_provenance()) };
}

/// Makes the system call `prctl`. Not by the C library's function, which the preloaded library
/// replaces to learn what the program asks for. Returns -1 for an error.
///
/// # Safety
///
/// As for the call: if the argument is an address, it may be used as the call does.
pub(crate) unsafe fn prctl(what: c_int, argument: usize) -> c_long {
    let what = usize::try_from(what).unwrap_or(usize::MAX);
    // SAFETY: as the caller says. The other arguments must be 0 for some calls.
    let result = unsafe { kernel::call(libc::SYS_prctl, [what, argument, 0, 0, 0, 0]) };
    result.ok().and_then(|result| c_long::try_from(result).ok()).unwrap_or(-1)
}

/// Returns the memory of the machine in bytes.
pub(crate) fn physical_bytes() -> Option<u64> {
    setting(libc::_SC_PHYS_PAGES)?.checked_mul(page_bytes())
}

/// Returns the bytes that can be allocated without swapping, as the kernel estimates them
/// (`MemAvailable` in `/proc/meminfo`). A container may have less.
///
/// It allocates, so the tcache must not call it.
pub(crate) fn available_bytes() -> Option<u64> {
    let told = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = told.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns the size of a page in bytes.
pub(crate) fn page_bytes() -> u64 {
    setting(libc::_SC_PAGESIZE).unwrap_or(4096)
}

/// Returns a value of `sysconf`; `None` if the system does not know it or has no limit.
fn setting(name: c_int) -> Option<u64> {
    // SAFETY: `sysconf` takes a number and returns a number.
    let value = unsafe { libc::sysconf(name) };
    u64::try_from(value).ok()
}

/// Returns how many bytes this process may lock (`RLIMIT_MEMLOCK`); `None` if there is no limit.
pub(crate) fn lock_limit_bytes() -> Option<u64> {
    kernel::limit(libc::RLIMIT_MEMLOCK)
}

/// Returns how many bytes of addresses this process may have (`RLIMIT_AS`); `None` if there is no
/// limit.
pub(crate) fn address_limit_bytes() -> Option<u64> {
    kernel::limit(libc::RLIMIT_AS)
}

/// Returns how many bytes of data this process may have (`RLIMIT_DATA`); `None` if there is no
/// limit.
pub(crate) fn data_limit_bytes() -> Option<u64> {
    kernel::limit(libc::RLIMIT_DATA)
}

/// Sleeps until [`wake`] is called for the word, a signal arrives, or `time` is over; not at all if
/// the word is not `value`.
///
/// Not the function `nanosleep`: a thread that is to be cancelled would end in it, and `malloc`
/// must not end a thread. It does not change `errno`.
pub(crate) fn wait(word: &AtomicU32, value: u32, time: Option<Duration>) {
    let seconds = |time: Duration| libc::timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    };
    let time = time.map(seconds);
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let how = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the system reads the word, and `time` if it is not null; both live through the call.
    let _ = keeping_errno(|| unsafe { kernel::futex(word.as_ptr(), how, value, time) });
}

/// Returns whether there is this value at an address, at which there may be nothing, or what no code may
/// read. It does not change `errno`.
pub(crate) fn holds(at: *mut u32, value: u32) -> bool {
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let how = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the system reads the word, where it may, and `now`, which lives through the call.
    let waited = keeping_errno(|| unsafe { kernel::futex(at, how, value, &raw const now) });
    // It waits, until now, for a word that has the value.
    !matches!(waited, Err(libc::EAGAIN | libc::EFAULT))
}

/// Wakes threads that sleep in [`wait`] for a word, at most so many.
pub(crate) fn wake(word: &AtomicU32, threads: i32) {
    let threads = u32::try_from(threads).unwrap_or(0);
    let how = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the system uses the address of the word only to find who sleeps.
    let _ =
        keeping_errno(|| unsafe { kernel::futex(word.as_ptr(), how, threads, std::ptr::null()) });
}

/// Returns the number of the calling thread.
pub(crate) fn thread_number() -> i32 {
    // SAFETY: `gettid` has no preconditions.
    unsafe { libc::gettid() }
}

/// Returns a number of the calling thread, even and never 0. The thread's copy in a forked child has
/// the same number. It makes no call of the system, and uses no thread-local variable, since a library
/// may have to allocate memory for its variables.
#[inline]
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
pub(crate) fn thread_identity() -> usize {
    let pointer: usize;
    // SAFETY: reads the first word of the thread's control block, which holds its own address
    // (System V ABI for thread-local storage, x86-64).
    unsafe {
        std::arch::asm!(
            "mov {}, fs:0",
            out(reg) pointer,
            options(nostack, preserves_flags, readonly)
        );
    }
    pointer
}

/// As above: the C library knows the address of the thread's control block.
#[cfg(not(any(miri, all(target_arch = "x86_64", target_os = "linux"))))]
#[cfg_attr(
    target_env = "musl",
    expect(
        clippy::transmutes_expressible_as_ptr_casts,
        reason = "a cast of glibc's would be lossy"
    )
)]
pub(crate) fn thread_identity() -> usize {
    // SAFETY: `pthread_self` has no preconditions.
    let thread = unsafe { libc::pthread_self() };
    // SAFETY: `pthread_t` is a number of the width of a pointer (glibc) or a pointer (musl), of
    // which no bit is undefined: the address of the thread's control block in both.
    unsafe { std::mem::transmute::<libc::pthread_t, usize>(thread) }
}

/// As above: Miri's threads have small numbers, the first of them 0.
#[cfg(miri)]
pub(crate) fn thread_identity() -> usize {
    thread_local!(static PLACE: u64 = const { 0 });
    PLACE.with(|place| std::ptr::from_ref(place).addr())
}

/// Returns whether this process has a thread of that number.
pub(crate) fn has_thread(number: i32) -> bool {
    // SAFETY: `getpid` has no preconditions.
    let process = unsafe { libc::getpid() };
    // SAFETY: signal 0 is not sent; the call only looks for the thread.
    number > 0 && unsafe { libc::syscall(libc::SYS_tgkill, process, number, 0) == 0 }
}
