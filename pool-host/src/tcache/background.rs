//! The background thread of a tcache, for as long as there is much that it can give back.
#![expect(unsafe_code, reason = "the thread makes a reference to an inner allocator of no size")]

use super::inner::Inner;
use super::thread::CACHE;
use crate::background::{Background, LOOKING_STACK};
use crate::pages::Pages;
use std::alloc::GlobalAlloc;
use std::ffi::c_void;
use std::mem::needs_drop;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

/// Bytes of pages from which there is a thread.
const MUCH: u64 = 8 << 20;

/// The thread of the process's tcache.
pub(super) static THREAD: Background = Background::new(LOOKING_STACK);
/// What the thread runs; it depends on the type of the inner allocator.
static RUN: OnceLock<extern "C" fn(*mut c_void) -> *mut c_void> = OnceLock::new();

/// Requests the background thread, which starts once much is cached.
///
/// The thread needs an inner allocator of type `A` without a reference to the program's one, so `A`
/// must have no size and no destructor. Otherwise there is no thread.
pub(super) fn request<A: GlobalAlloc + Sync + 'static>() {
    if size_of::<A>() == 0 && !needs_drop::<A>() {
        RUN.get_or_init(|| run::<A>);
        THREAD.request();
    }
}

/// Starts the thread if it is requested and not there, and much is used or cached.
#[inline]
pub(super) fn wake() {
    if THREAD.is_requested() && is_much() {
        start();
    }
}

#[cold]
fn start() {
    if let Some(run) = RUN.get() {
        THREAD.start(*run);
    }
}

/// Returns whether there is enough memory for a thread to look after it.
fn is_much() -> bool {
    CACHE.pages.recent_bytes() >= MUCH
}

/// Returns whether there is enough memory for a thread to look after it, and none is there. A build that
/// counts has none, and counts what it does where there is one.
pub(super) fn is_missed(pages: &Pages) -> bool {
    !cfg!(pool_counts) && pages.recent_bytes() >= MUCH && !THREAD.is_there()
}

/// Reads the clock again and again, and has the cache run the work that is due.
extern "C" fn run<A: GlobalAlloc>(_: *mut c_void) -> *mut c_void {
    // SAFETY: `request` requests the thread only if `A` has no size and needs no drop. A reference
    // to a value of no bytes accesses no memory, so the dangling pointer, which is aligned and not
    // null, is enough for one. A value of `A` exists: the `Tcache` that owns the cache has one.
    let inner = Inner(unsafe { NonNull::<A>::dangling().as_ref() });
    let look = || {
        CACHE.look_now(None, &inner);
        CACHE.idle_bytes()
    };
    // A process whose last thread has ended, as that of a child of `fork`, ends when this one does.
    let is_alone = || CACHE.thread_caches.owners() == 0;
    THREAD.look_again(look, || !is_much() || is_alone());
    ptr::null_mut()
}
