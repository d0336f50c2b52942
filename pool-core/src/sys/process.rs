//! Which process this code runs in: a child has the memory of its parent, and not its threads.
//!
//! Handlers of `pthread_atfork` run in the C library's `fork` only. So, on Linux, one page is mapped
//! that the system clears in each child, however it was made (`_Fork`, a raw `clone`); elsewhere, and
//! where the system cannot do that, a handler counts. A child of `vfork` shares all memory with its
//! parent, and is found by its number.
#![expect(unsafe_code, reason = "the system is called through C")]

use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32};

/// Bytes of the page, of any size that the system may have.
#[cfg(target_os = "linux")]
const BYTES: usize = 64 << 10;

/// What is known in this process; all zero in a child that has not looked yet.
#[derive(Debug, Default)]
struct Here {
    /// The number that [`forks`] returns.
    forks: AtomicU32,
    /// The number of the process; 0 in a child that has not asked for it.
    process: AtomicU32,
}

/// What is known before [`watch_forks`], and where the system cannot clear a page.
static INHERITED: Here = Here { forks: AtomicU32::new(1), process: AtomicU32::new(0) };
/// In the page that the system clears in a child, or [`INHERITED`].
static HERE: AtomicPtr<Here> = AtomicPtr::new((&raw const INHERITED).cast_mut());
/// The last number of a process. A child inherits it.
static LAST: AtomicU32 = AtomicU32::new(1);
/// Whether the number of the process may be asked for.
static ASKS: AtomicBool = AtomicBool::new(true);

/// Returns a number that differs between a process and each of its ancestors, if [`watch_forks`] was
/// called before the fork, or a pool was made. It is never 0. A backend whose memory or handles do not
/// survive a fork stores the number when it makes them, and compares it later.
///
/// It costs two loads. On Linux a child that is made without the C library's `fork` (`_Fork`, a bare
/// `clone`) has another number too. A child of `vfork` has that of its parent.
#[inline]
#[must_use]
pub fn forks() -> u32 {
    match forks_seen() {
        0 => begin(here()),
        forks => forks,
    }
}

/// Returns what [`forks`] returns, or 0 in a child that has not looked yet.
#[inline]
pub(crate) fn forks_seen() -> u32 {
    here().forks.load(Acquire)
}

/// Takes a number, in a process that looks for the first time.
#[cold]
fn begin(here: &Here) -> u32 {
    // Of two threads that come here at once, the first decides.
    let next = LAST.fetch_add(1, Relaxed) + 1;
    let first = here.forks.compare_exchange(0, next, AcqRel, Acquire);
    note_process();
    first.err().unwrap_or(next)
}

/// Notes the number of the process, in a handler of `fork` in the child: the first who asks later may be
/// a child of `vfork`, which would take its parent for such a child. The first call of [`forks`] does the
/// same, in a child that no handler has seen.
pub fn note_process() {
    if is_mapped() && ASKS.load(Relaxed) {
        let process = &here().process;
        if process.load(Relaxed) == 0 {
            process.store(std::process::id(), Relaxed);
        }
    }
}

/// Makes no system call from now on to find out whether a process is a child of `vfork`, for a program
/// that limits its calls: [`is_vfork_child`] returns false.
pub fn stop_asking() {
    ASKS.store(false, Relaxed);
}

/// Returns whether this is a child of `vfork`, which uses the memory of its parent. It makes a
/// system call. False where the parent did not call [`watch_forks`], where the system cannot
/// clear a page in a child, and after [`stop_asking`].
#[must_use]
pub fn is_vfork_child() -> bool {
    if !is_mapped() || !ASKS.load(Relaxed) {
        return false;
    }
    let own = std::process::id();
    // A child that asks for the first time is taken for no child of `vfork`.
    let known = here().process.compare_exchange(0, own, Relaxed, Relaxed);
    known.is_err_and(|known| known != own)
}

/// Starts to tell children from their parents. Later calls change nothing.
///
/// It allocates nothing on Linux from 4.14 on.
pub fn watch_forks() {
    extern "C" fn in_child() {
        INHERITED.forks.store(LAST.fetch_add(1, Relaxed) + 1, Release);
    }
    // Without a lock, which could be held for ever in a child.
    static COUNTED: AtomicBool = AtomicBool::new(false);
    if is_mapped() || COUNTED.load(Relaxed) {
        return;
    }
    map_page();
    if !is_mapped() && !COUNTED.swap(true, Relaxed) {
        // SAFETY: registers a function that adds to a word, which is legal in a forked child. If
        // the system refuses for want of memory, a fork is not noticed.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    }
}

/// Maps the page that the system clears in a child.
#[cfg(target_os = "linux")]
fn map_page() {
    let (access, how) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: the address is null and `MAP_FIXED` is not set, so no existing mapping changes.
    let page = unsafe { libc::mmap(ptr::null_mut(), BYTES, access, how, -1, 0) };
    if page == libc::MAP_FAILED {
        return;
    }
    // SAFETY: `mmap` just mapped these bytes.
    let clears = unsafe { libc::madvise(page, BYTES, libc::MADV_WIPEONFORK) == 0 };
    let none = (&raw const INHERITED).cast_mut();
    if clears {
        // SAFETY: zero bytes are a valid `Here`, the page is larger, and is unmapped below only if no
        // code has its address.
        let here = unsafe { &*page.cast::<Here>() };
        // The number of a process does not change.
        here.forks.store(INHERITED.forks.load(Relaxed), Relaxed);
        here.process.store(std::process::id(), Relaxed);
    }
    if !clears || HERE.compare_exchange(none, page.cast(), AcqRel, Relaxed).is_err() {
        // SAFETY: as above; no code has the address.
        unsafe { libc::munmap(page, BYTES) };
    }
}

/// Other systems cannot clear a page in a child.
#[cfg(not(target_os = "linux"))]
fn map_page() {}

#[inline]
fn here() -> &'static Here {
    // SAFETY: the static, or the address of a page that `map_page` mapped, which is never unmapped. Its
    // bytes are zero or were written as a `Here`, whose fields are atomic.
    unsafe { &*HERE.load(Acquire) }
}

/// Returns whether the system clears what is known in a child.
fn is_mapped() -> bool {
    !ptr::eq(here(), &raw const INHERITED)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// Runs `check` in a child that no handler of a fork has seen, and returns whether it held.
    fn holds_in_child(check: impl FnOnce() -> bool) -> bool {
        // SAFETY: a child with one thread, which makes no call of the C library that needs another.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        if child == 0 {
            // SAFETY: `_exit` has no preconditions.
            unsafe { libc::_exit(i32::from(!check())) };
        }
        let mut status = 1;
        let child = i32::try_from(child).unwrap_or(-1);
        // SAFETY: `child` is this process's child, and `status` is valid for the write.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        (waited, status) == (child, 0)
    }

    #[test]
    fn a_child_that_no_handler_has_seen_is_another_process() {
        watch_forks();
        let own = forks();
        assert!(own > 0 && !is_vfork_child());
        assert!(holds_in_child(|| forks() > own && !is_vfork_child()));
        assert!(holds_in_child(|| forks() == forks()));
        assert_eq!(forks(), own);
    }

    /// The first who asks may be a child of `vfork`.
    #[test]
    fn a_child_that_has_looked_knows_its_number() {
        watch_forks();
        let knows = || here().process.load(Relaxed) == std::process::id();
        assert!(holds_in_child(|| !knows() && forks() > 0 && knows()));
        assert!(holds_in_child(|| {
            note_process();
            knows()
        }));
        assert!(holds_in_child(|| {
            stop_asking();
            forks() > 0 && !knows() && !is_vfork_child() && !knows()
        }));
    }

    #[test]
    fn the_number_of_a_process_does_not_change() {
        // Another test may have begun to watch. That the number stays is so in each order.
        let before = forks();
        watch_forks();
        assert_eq!(forks(), before);
        assert_eq!(INHERITED.forks.load(Relaxed), before, "no test forks by the C library");
    }

    #[test]
    fn a_pool_with_a_held_lock_is_unusable_in_such_a_child() {
        let check = crate::sys::ForkCheck::new();
        assert!(!check.is_unusable_after_fork(|| true), "it is of this process");
        assert!(holds_in_child(|| check.is_unusable_after_fork(|| true)));
        assert!(holds_in_child(|| !check.is_unusable_after_fork(|| false)));
    }
}
