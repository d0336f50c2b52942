//! All page heaps of the process: what happens to them on a fork, and their background thread.

use super::{PageHeap, THREAD_FROM};
use crate::background::{Background, look_forever};
use crate::pages::Pages;
use crate::pages::lock::ForkLock;
use crate::system;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;

/// The heap that was started last. Each knows the one before it, so this is the list of all.
///
/// Lock order: this lock, then those of the heaps.
static HEAPS: ForkLock<Heaps> = ForkLock::new(Heaps { last: None, watches_forks: false });

/// The thread that looks after all heaps that want it.
static THREAD: Background = Background::new();

#[derive(Debug)]
struct Heaps {
    last: Option<&'static PageHeap>,
    /// Whether the handlers for a fork are registered.
    watches_forks: bool,
}

/// Adds a heap to the list; with `background`, the thread will look after all heaps. A heap that is
/// in the list already is not added again.
///
/// Returns false if the C library cannot register the handlers for a fork.
pub(super) fn add(heap: &'static PageHeap, background: bool) -> bool {
    // Registering may allocate, and then the lock must be free.
    if !HEAPS.enter(|heaps| std::mem::replace(&mut heaps.watches_forks, true)) && !watch_forks() {
        HEAPS.enter(|heaps| heaps.watches_forks = false);
        return false;
    }
    HEAPS.enter(|heaps| {
        if each(heaps.last).any(|other| ptr::eq(other, heap)) {
            return;
        }
        let before = heaps.last.map_or(ptr::null_mut(), |last| ptr::from_ref(last).cast_mut());
        heap.next.store(before, Relaxed);
        heaps.last = Some(heap);
    });
    if background {
        want_thread();
    }
    true
}

/// Requests the background thread, which starts once a heap has many pages.
pub(super) fn want_thread() {
    THREAD.want();
}

/// Iterates over the heaps from this one on.
fn each(last: Option<&'static PageHeap>) -> impl Iterator<Item = &'static PageHeap> {
    #[expect(unsafe_code, reason = "the list is of addresses")]
    // SAFETY: `add` stored null, or the address of a static heap, before it published this heap
    // under the lock, which the caller holds or has held since.
    let before = |heap: &&'static PageHeap| unsafe { heap.next.load(Relaxed).as_ref() };
    std::iter::successors(last, before)
}

/// Iterates over all heaps.
fn all() -> impl Iterator<Item = &'static PageHeap> {
    each(HEAPS.enter(|heaps| heaps.last))
}

/// Starts the background thread if it is wanted and these pages are many.
#[inline]
pub(super) fn wake_thread(pages: &Pages) {
    if !THREAD.is_wanted() {
        return;
    }
    let stats = pages.stats();
    if stats.used + stats.dirty >= THREAD_FROM {
        THREAD.start(run);
    }
}

extern "C" fn run(_: *mut c_void) -> *mut c_void {
    look_forever(|| all().map(PageHeap::look).sum())
}

/// Registers handlers that hold all locks over a fork, so that the child finds the heaps
/// consistent.
fn watch_forks() -> bool {
    extern "C" fn before() {
        HEAPS.before_fork();
        all().for_each(|heap| heap.pages.before_fork());
    }
    extern "C" fn in_parent() {
        all().for_each(|heap| heap.pages.after_fork());
        HEAPS.after_fork();
    }
    extern "C" fn in_child() {
        in_parent();
        THREAD.in_child();
    }
    #[expect(unsafe_code, reason = "the system is called through C")]
    // SAFETY: the three functions have the signature that `pthread_atfork` asks for, live as long
    // as the process, and call no code of the program.
    let registered =
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) == 0 };
    registered
}

/// Has each heap that served a request print its statistics when the process exits. It is called
/// once in a process.
pub(super) fn print_at_exit() {
    extern "C" fn print() {
        let stats = all().map(PageHeap::stats);
        stats.filter(|stats| stats.allocations > 0).for_each(|stats| system::summarize(&stats));
    }
    system::at_exit(print);
}
