//! All page heaps of the process: what happens to them on a fork, and their background thread.

use super::{PageHeap, THREAD_FROM};
use crate::background::{Background, LOOKING_STACK};
use crate::pages::Pages;
use crate::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use pool_core::is_vfork_child;
use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;

/// The heap that was started last; null before the first. Each knows the one before it, so this is
/// the list of all. A heap is added once, and stays.
static LAST: AtomicPtr<PageHeap> = AtomicPtr::new(ptr::null_mut());
/// Whether the handlers for a fork are registered.
static WATCHES_FORKS: OnceLock<bool> = OnceLock::new();

/// The thread that looks after all heaps that want it.
static THREAD: Background = Background::new(LOOKING_STACK);

/// Adds a heap to the list, in which it must not be yet; with `background`, the thread will look
/// after all heaps.
///
/// Returns false if the C library cannot register the handlers for a fork.
pub(super) fn add(heap: &'static PageHeap, background: bool) -> bool {
    pool_core::watch_forks();
    if !WATCHES_FORKS.get_or_init(watch_forks) {
        return false;
    }
    let mut last = LAST.load(Relaxed);
    loop {
        heap.next.store(last, Relaxed);
        let added = ptr::from_ref(heap).cast_mut();
        // Release: the heap and its link happen before what others do with them.
        match LAST.compare_exchange_weak(last, added, Release, Relaxed) {
            Ok(_) => break,
            Err(other) => last = other,
        }
    }
    if background {
        request_thread();
    }
    be_quiet_in_sandbox(&heap.pages);
    true
}

/// Whether the program has said that it limits its calls.
pub(super) fn is_in_sandbox() -> bool {
    THREAD.is_forbidden()
}

/// Has pages call the system by what allocators need, if the program said that it limits its calls.
pub(super) fn be_quiet_in_sandbox(pages: &Pages) {
    if is_in_sandbox() {
        pages.be_quiet();
    }
}

/// Requests the background thread, which starts once a heap has many pages.
pub(super) fn request_thread() {
    THREAD.request();
}

/// Iterates over all heaps.
fn all() -> impl Iterator<Item = &'static PageHeap> {
    #[expect(unsafe_code, reason = "the list is of addresses")]
    // SAFETY: `add` stores null, or the address of a static heap, in `LAST` and in `next` of a heap
    // before it puts that heap into the list.
    let at = |heap: &AtomicPtr<PageHeap>| unsafe { heap.load(Acquire).as_ref() };
    std::iter::successors(at(&LAST), move |heap| at(&heap.next))
}

/// Starts the background thread if it is wanted and these pages are many.
#[inline]
pub(super) fn wake_thread(pages: &Pages) {
    if THREAD.is_requested() && is_much(pages) {
        THREAD.start(run);
    }
}

/// Returns whether there are enough pages for a thread to look after them.
#[inline]
fn is_much(pages: &Pages) -> bool {
    pages.recent_bytes() >= THREAD_FROM
}

/// Looks after all heaps, and ends when none has many pages: a process whose main thread has ended
/// lives as long as its other threads.
extern "C" fn run(_: *mut c_void) -> *mut c_void {
    let look = || all().map(PageHeap::look).sum();
    THREAD.look_again(look, || !all().any(|heap| is_much(&heap.pages)));
    ptr::null_mut()
}

/// Ends the background thread, starts it no more, and has all heaps call the system by what
/// allocators need.
pub(super) fn enter_sandbox() {
    // The second question is a system call, which the filter of a sandbox may not permit.
    if THREAD.is_forbidden() || is_vfork_child() {
        return;
    }
    THREAD.forbid();
    all().for_each(|heap| heap.pages.be_quiet());
}

/// Does the same, and has no heap give memory back.
pub(super) fn enter_strict_sandbox() {
    if !is_vfork_child() {
        enter_sandbox();
        all().for_each(|heap| heap.pages.be_silent());
    }
}

/// Has all heaps heed a limit on addresses that the program is about to set.
pub(super) fn expect_address_limit(bytes: u64) {
    all().for_each(|heap| heap.pages.expect_address_limit(bytes));
}

/// Has all heaps heed a limit on addresses that the program has set.
pub(super) fn hear_address_limit(bytes: u64) {
    all().for_each(|heap| heap.pages.hear_address_limit(bytes));
}

/// Has all heaps heed limits that the program has set.
pub(super) fn heed_limits() {
    all().for_each(|heap| heap.pages.heed_limits());
}

/// Registers handlers that hold the locks of all heaps over a fork, so that the child finds them
/// consistent.
fn watch_forks() -> bool {
    extern "C" fn before() {
        all().for_each(|heap| heap.pages.before_fork());
    }
    extern "C" fn in_parent() {
        all().for_each(|heap| heap.pages.after_fork());
    }
    extern "C" fn in_child() {
        pool_core::note_process();
        all().for_each(|heap| heap.pages.in_child());
    }
    #[expect(unsafe_code, reason = "the system is called through C")]
    // SAFETY: the three functions have the signature that `pthread_atfork` asks for, live as long
    // as the process, and call no code of the program.
    let registered =
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) == 0 };
    registered
}
