//! The cache of the process, and the thread-local pointer to each thread's thread cache.
//!
//! The pointer is never null. It points to a static, empty thread cache before the thread has its
//! own and after the thread has left it, so a hit needs no check for null.

use super::cache::Cache;
use super::thread_cache::ThreadCache;
use crate::sync::atomic::Ordering::Relaxed;
use crate::{process, system};
use std::cell::Cell;
use std::ptr;

/// The cache of the process.
pub(crate) static CACHE: Cache = Cache::new();

/// The empty thread cache. It has no blocks and no capacity, so no thread writes to it.
static EMPTY: ThreadCache = ThreadCache::EMPTY;

/// The stage of a thread's life.
#[derive(Clone, Copy)]
enum Stage {
    /// It has made no request yet.
    New,
    /// It is getting its thread cache. The depot serves its requests meanwhile.
    Entering,
    /// It owns a thread cache.
    Entered,
    /// It is ending and has given up its thread cache. The depot serves requests of its last
    /// destructors.
    Left,
}

thread_local! {
    // `THREAD_CACHE` and `STAGE` have no destructor, so they can be read at any time in the life of
    // a thread.
    static THREAD_CACHE: Cell<&'static ThreadCache> = const { Cell::new(&EMPTY) };
    static STAGE: Cell<Stage> = const { Cell::new(Stage::New) };
    static AT_EXIT: AtExit = const { AtExit };
}

/// Registers handlers that the C library calls before and after each fork.
///
/// The locks of the depot and of the pages are held over the fork, so that the child finds them
/// consistent. Requests of other threads that need one go to the inner allocator meanwhile. In the child the thread
/// caches of the other threads become free to use, except one that a thread held during the fork.
///
/// The handlers are registered with the first request. Those before a fork run in reverse order of
/// registration and those after it in order, so these are the last to run before a fork and the
/// first to run after it.
///
/// False if the C library has no memory for that: a child could then wait for ever.
pub(super) fn watch_forks() -> bool {
    extern "C" fn before() {
        CACHE.depot.before_fork();
        CACHE.pages.before_fork();
    }
    extern "C" fn in_parent() {
        CACHE.pages.after_fork();
        CACHE.depot.after_fork();
    }
    extern "C" fn in_child() {
        process::in_child();
        let own = THREAD_CACHE.get();
        if matches!(STAGE.get(), Stage::Entered) && own.is_torn() {
            // Another thread was taking back what this one did not use.
            THREAD_CACHE.set(&EMPTY);
            STAGE.set(Stage::New);
        }
        CACHE.in_child(own);
    }
    if cfg!(miri) {
        return true;
    }
    process::watch();
    #[expect(unsafe_code, reason = "the system is called through C")]
    // SAFETY: the three functions have the signature that `pthread_atfork` asks for, live as long
    // as the process, and call no code of the program.
    unsafe {
        libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) == 0
    }
}

/// Gives up the thread cache when the thread ends.
struct AtExit;

impl Drop for AtExit {
    fn drop(&mut self) {
        STAGE.set(Stage::Left);
        let local = THREAD_CACHE.replace(&EMPTY);
        if !ptr::eq(local, &raw const EMPTY) {
            CACHE.leave(local);
        }
    }
}

/// Returns this thread's thread cache, or the empty one.
#[inline]
pub(crate) fn thread_cache() -> &'static ThreadCache {
    THREAD_CACHE.get()
}

/// Returns this thread's thread cache, and gets one if the thread has none.
///
/// `None` while the thread gets one, if the system has no memory for one, and after the thread has
/// given it up.
pub(crate) fn own_thread_cache() -> Option<&'static ThreadCache> {
    match STAGE.get() {
        Stage::Entered => Some(thread_cache()),
        Stage::New => enter(),
        Stage::Entering | Stage::Left => None,
    }
}

/// Gets a thread cache for this thread, and registers the destructor that gives it up.
#[cold]
fn enter() -> Option<&'static ThreadCache> {
    STAGE.set(Stage::Entering);
    // Registers the destructor. The standard library does not use the global allocator for that; if
    // it did, the stage `Entering` would send the request to the depot.
    let registered = AT_EXIT.try_with(|_| ()).is_ok();
    let entered = if registered { CACHE.thread_caches.enter() } else { None };
    match entered {
        Some(local) => {
            local.looked_at.store(system::coarse_milliseconds(), Relaxed);
            THREAD_CACHE.set(local);
            STAGE.set(Stage::Entered);
        }
        None if registered => STAGE.set(Stage::New), // no memory: the next request tries again
        None => STAGE.set(Stage::Left),
    }
    entered
}
