//! The background thread, which reads the clock for a program that sleeps, so that cached memory
//! returns to the system then too.
#![expect(
    unsafe_code,
    reason = "a thread is made through C, which allocates nothing of ours first"
)]

use crate::system;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Milliseconds of sleep between two reads of the clock while the cached bytes change.
const SOON: u32 = 50;
/// Milliseconds of sleep between two reads of the clock while the cached bytes do not change.
const LATER: u32 = 500;
/// Consecutive reads with unchanged cached bytes, after which the thread sleeps for [`LATER`].
const SAME: u32 = 40;

const NOT_REQUESTED: u8 = 0;
const REQUESTED: u8 = 1;
const THERE: u8 = 2;

/// Whether a background thread is wanted, and whether it is there.
#[derive(Debug)]
pub(crate) struct Background(AtomicU8);

impl Background {
    /// Creates the state of a thread that no code has requested.
    pub(crate) const fn new() -> Self {
        Self(AtomicU8::new(NOT_REQUESTED))
    }

    /// Requests the thread. The next call of [`Background::start`] starts it.
    pub(crate) fn request(&self) {
        // Another thread may have come here at once, and may have started it.
        let _ = self.0.compare_exchange(NOT_REQUESTED, REQUESTED, Relaxed, Relaxed);
    }

    /// Returns whether the thread was requested and is not yet started.
    #[inline]
    pub(crate) fn is_requested(&self) -> bool {
        self.0.load(Relaxed) == REQUESTED
    }

    /// Notes that the thread ends, or that this is a forked child, which does not inherit it. A
    /// later call of [`Background::start`] starts it again.
    pub(crate) fn end(&self) {
        let _ = self.0.compare_exchange(THERE, REQUESTED, Relaxed, Relaxed);
    }

    /// Takes [`Background::end`] back. Returns false if another thread was started since.
    pub(crate) fn stay(&self) -> bool {
        self.0.compare_exchange(REQUESTED, THERE, Relaxed, Relaxed).is_ok()
    }

    /// Starts the thread if it was requested and is not yet started. It runs `run`.
    ///
    /// Allocations that starting the thread causes are served as usual: the state no longer
    /// requests the thread. If the system cannot create it, a line on stderr says so, and no call
    /// tries again. Returns false if this call could not create it.
    #[cold]
    pub(crate) fn start(&self, run: extern "C" fn(*mut c_void) -> *mut c_void) -> bool {
        if self.0.compare_exchange(REQUESTED, THERE, Relaxed, Relaxed).is_err() {
            return true;
        }
        let (mut thread, mut before) = (0, system::no_signals());
        // The new thread inherits the mask of this one. It must block all signals, so that the
        // handlers of the program never run on it.
        let block = |how, set: &libc::sigset_t, old: *mut libc::sigset_t| {
            // SAFETY: `set` is a reference to an initialised set. `old` is null, or points to
            // `before`, a local variable of this function that is live and not otherwise borrowed
            // in this call.
            unsafe { libc::pthread_sigmask(how, set, old) }
        };
        block(libc::SIG_SETMASK, &system::all_signals(), &raw mut before);
        // SAFETY: `thread` is a live local variable, which the call writes to. Null attributes
        // stand for the defaults. `run` has the signature that is asked for, and lives as long as
        // the process.
        let failed = unsafe {
            libc::pthread_create(&raw mut thread, ptr::null(), run, ptr::null_mut()) != 0
        };
        block(libc::SIG_SETMASK, &before, ptr::null_mut());
        if failed {
            system::say(&[b"bucketpool: the system makes no background thread\n"]);
            return false;
        }
        // SAFETY: `pthread_create` succeeded, so `thread` is a joinable thread. No code joins or
        // detaches it elsewhere.
        unsafe { libc::pthread_detach(thread) };
        true
    }
}

/// Reads the clock again and again. `look` runs the work that is due and returns the cached
/// bytes.
///
/// Returns once the cached bytes have not changed for a while and `ends` says so.
pub(crate) fn look_again(mut look: impl FnMut() -> usize, mut ends: impl FnMut() -> bool) {
    system::name_thread(c"bucketpool");
    let (mut idle, mut same) = (0, 0);
    while same < SAME || !ends() {
        system::sleep_milliseconds(if same < SAME { SOON } else { LATER });
        let now = look();
        same = if now == idle { same + 1 } else { 0 };
        idle = now;
    }
}
