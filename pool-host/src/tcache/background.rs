//! The background thread, which reads the clock for a program that sleeps, so that cached blocks
//! decay then too.
//!
//! It is off by default: a library should not start threads that the program did not ask for.
#![expect(
    unsafe_code,
    reason = "a thread is made through C, which allocates nothing of ours first"
)]

use super::inner::Inner;
use super::thread::CACHE;
use crate::system;
use std::alloc::GlobalAlloc;
use std::ffi::c_void;
use std::mem::needs_drop;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Milliseconds of sleep between two reads of the clock while the cached bytes change.
const SOON: u32 = 50;
/// Milliseconds of sleep between two reads of the clock while the cached bytes do not change.
const LATER: u32 = 500;
/// Consecutive reads with unchanged cached bytes, after which the thread sleeps for [`LATER`].
const SAME: u32 = 40;

const UNWANTED: u8 = 0;
const WANTED: u8 = 1;
const THERE: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(UNWANTED);

/// Requests the background thread. The next request on the slow path starts it.
///
/// The thread needs an inner allocator of type `A` without a reference to the program's one, so `A`
/// must have no size and no destructor. Otherwise there is no thread, and a line on stderr says
/// why.
pub(super) fn want<A>() {
    if size_of::<A>() == 0 && !needs_drop::<A>() {
        // Another thread may have come here at once, and may have started it.
        let _ = STATE.compare_exchange(UNWANTED, WANTED, Relaxed, Relaxed);
    } else {
        system::say(&[b"bucketpool: no background thread: the inner allocator has a state\n"]);
    }
}

/// Returns whether the thread was requested and is not yet started.
pub(super) fn is_wanted() -> bool {
    STATE.load(Relaxed) == WANTED
}

/// Requests the thread again in a forked child, which does not inherit it.
pub(super) fn in_child() {
    let _ = STATE.compare_exchange(THERE, WANTED, Relaxed, Relaxed);
}

/// Starts the thread if it was requested and is not yet started.
///
/// Allocations that starting the thread causes are served as usual: the state no longer requests
/// the thread. If the system cannot create it, a line on stderr says so, and no call tries again.
#[cold]
pub(super) fn start<A: GlobalAlloc + Sync + 'static>() {
    if STATE.compare_exchange(WANTED, THERE, Relaxed, Relaxed).is_err() {
        return;
    }
    let (mut thread, mut before) = (0, system::no_signals());
    // The new thread inherits the mask of this one. It must block all signals, so that the handlers
    // of the program never run on it.
    let block = |how, set: &libc::sigset_t, old: *mut libc::sigset_t| {
        // SAFETY: `set` is a reference to an initialised set. `old` is null, or points to `before`,
        // a local variable of this function that is live and not otherwise borrowed in this call.
        unsafe { libc::pthread_sigmask(how, set, old) }
    };
    block(libc::SIG_SETMASK, &system::all_signals(), &raw mut before);
    // SAFETY: `thread` is a live local variable, which the call writes to. Null attributes stand
    // for the defaults. `run::<A>` has the signature that is asked for, ignores its argument, and
    // lives as long as the process.
    let failed = unsafe {
        libc::pthread_create(&raw mut thread, ptr::null(), run::<A>, ptr::null_mut()) != 0
    };
    block(libc::SIG_SETMASK, &before, ptr::null_mut());
    if failed {
        return system::say(&[b"bucketpool: the system makes no background thread\n"]);
    }
    // SAFETY: `pthread_create` succeeded, so `thread` is a joinable thread. It never ends, and no
    // code joins or detaches it elsewhere.
    unsafe { libc::pthread_detach(thread) };
}

/// Reads the clock forever, and has the cache run the work that is due.
extern "C" fn run<A: GlobalAlloc>(_: *mut c_void) -> *mut c_void {
    // SAFETY: `want` requests the thread only if `A` has no size and needs no drop. A reference to
    // a value of no bytes accesses no memory, so the dangling pointer, which is aligned and not
    // null, is enough for one. A value of `A` exists: the `Tcache` that owns the cache has one.
    let inner = Inner(unsafe { NonNull::<A>::dangling().as_ref() });
    let (mut idle, mut same) = (0, 0);
    loop {
        system::sleep_milliseconds(if same < SAME { SOON } else { LATER });
        CACHE.look_now(None, &inner);
        let now = CACHE.idle_bytes();
        same = if now == idle { same + 1 } else { 0 };
        idle = now;
    }
}
