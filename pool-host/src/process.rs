//! Which process this code runs in: a child has the memory of its parent, and not its threads.
//!
//! Handlers of `pthread_atfork` run in glibc's `fork` only. So one page is mapped that the system
//! clears in each child, however it was made (`_Fork`, a raw `clone`). A child of `vfork` shares
//! all memory with its parent, and is found by its number.
#![expect(unsafe_code, reason = "the system is called through C")]

use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32};

/// Bytes of the page, of any size that the system may have.
const BYTES: usize = 64 << 10;

/// What is known in this process; all zero in a child that has not looked yet.
#[derive(Debug, Default)]
struct Here {
    /// The number that [`generation`] returns.
    generation: AtomicU32,
    /// The number of the process; 0 in a child that has not asked for it.
    process: AtomicU32,
}

/// In the page that the system clears in a child; null before [`watch`], and where the system does
/// not do that.
static HERE: AtomicPtr<Here> = AtomicPtr::new(ptr::null_mut());
/// The last generation. A child inherits it.
static LAST: AtomicU32 = AtomicU32::new(1);

/// Returns a number that differs between a process and each of its ancestors, if [`watch`] was
/// called before the fork. It is never 0.
#[inline]
pub(crate) fn generation() -> u32 {
    let Some(here) = here() else { return LAST.load(Relaxed) };
    match here.generation.load(Acquire) {
        0 => begin(here),
        generation => generation,
    }
}

/// Begins a generation, in a process that looks for the first time.
#[cold]
fn begin(here: &Here) -> u32 {
    // Of two threads that come here at once, the first decides.
    let next = LAST.fetch_add(1, Relaxed) + 1;
    let first = here.generation.compare_exchange(0, next, AcqRel, Acquire);
    first.err().unwrap_or(next)
}

/// Returns whether this is a child of `vfork`, which uses the memory of its parent. It makes a
/// system call.
pub(crate) fn is_borrowed() -> bool {
    let Some(here) = here() else { return false };
    let own = number();
    // A child that asks for the first time is taken for no child of `vfork`.
    let known = here.process.compare_exchange(0, own, Relaxed, Relaxed);
    known.is_err_and(|known| known != own)
}

/// Notes that this is a child, where the system does not clear the page. For handlers of a fork.
pub(crate) fn in_child() {
    if here().is_none() {
        LAST.fetch_add(1, Relaxed);
    }
}

/// Starts to tell children from their parents. Later calls change nothing.
pub(crate) fn watch() {
    if here().is_some() {
        return;
    }
    let (access, how) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: the address is null and `MAP_FIXED` is not set, so no existing mapping changes.
    let page = unsafe { libc::mmap(ptr::null_mut(), BYTES, access, how, -1, 0) };
    if page == libc::MAP_FAILED {
        return;
    }
    // SAFETY: `mmap` just mapped these bytes.
    let clears = unsafe { libc::madvise(page, BYTES, libc::MADV_WIPEONFORK) == 0 };
    let none = ptr::null_mut();
    if !clears || HERE.compare_exchange(none, page.cast(), Release, Relaxed).is_err() {
        // SAFETY: as above; no code has the address.
        unsafe { libc::munmap(page, BYTES) };
    }
    generation();
    is_borrowed(); // notes the number
}

fn here() -> Option<&'static Here> {
    // SAFETY: null, or the address of a page that `watch` mapped, which is never unmapped. Its
    // bytes are zero or were written as a `Here`, whose fields are atomic.
    unsafe { HERE.load(Acquire).as_ref() }
}

fn number() -> u32 {
    // SAFETY: `getpid` has no preconditions.
    unsafe { libc::getpid() }.cast_unsigned()
}

#[cfg(test)]
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
        watch();
        let own = generation();
        assert!(own > 0 && !is_borrowed());
        assert!(holds_in_child(|| generation() > own && !is_borrowed()));
        assert!(holds_in_child(|| generation() == generation()));
        assert_eq!(generation(), own);
    }
}
