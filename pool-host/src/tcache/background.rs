//! The background thread of a tcache.
//!
//! It is off by default: a library should not start threads that the program did not ask for.
#![expect(unsafe_code, reason = "the thread makes a reference to an inner allocator of no size")]

use super::inner::Inner;
use super::thread::CACHE;
use crate::background::{Background, LOOKING_STACK, look_again};
use crate::stderr;
use std::alloc::GlobalAlloc;
use std::ffi::c_void;
use std::mem::needs_drop;
use std::ptr::{self, NonNull};

/// The thread of the process's tcache.
pub(super) static THREAD: Background = Background::new(LOOKING_STACK);

/// Requests the background thread. The next request on the slow path starts it.
///
/// The thread needs an inner allocator of type `A` without a reference to the program's one, so `A`
/// must have no size and no destructor. Otherwise there is no thread, and a line on stderr says
/// why.
pub(super) fn request<A>() {
    if size_of::<A>() == 0 && !needs_drop::<A>() {
        THREAD.request();
    } else {
        stderr::say(&[b"bucketpool: no background thread: the inner allocator has a state\n"]);
    }
}

/// Starts the thread if it was requested and is not yet started.
#[cold]
pub(super) fn start<A: GlobalAlloc + Sync + 'static>() {
    THREAD.start(run::<A>);
}

/// Reads the clock forever, and has the cache run the work that is due.
extern "C" fn run<A: GlobalAlloc>(_: *mut c_void) -> *mut c_void {
    // SAFETY: `request` requests the thread only if `A` has no size and needs no drop. A reference
    // to a value of no bytes accesses no memory, so the dangling pointer, which is aligned and not
    // null, is enough for one. A value of `A` exists: the `Tcache` that owns the cache has one.
    let inner = Inner(unsafe { NonNull::<A>::dangling().as_ref() });
    let look = || {
        CACHE.look_now(None, &inner);
        CACHE.idle_bytes()
    };
    look_again(look, || false);
    ptr::null_mut()
}
