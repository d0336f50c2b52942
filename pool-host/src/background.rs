//! The background thread, which reads the clock for a program that sleeps, so that cached memory
//! returns to the system then too.
#![expect(
    unsafe_code,
    reason = "a thread is made through C, which allocates nothing of ours first"
)]

mod thread;

pub(crate) use thread::confine;

use crate::{stderr, system};
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

/// Stack in bytes of a thread that calls [`look_again`].
pub(crate) const LOOKING_STACK: usize = 128 << 10;

/// Whether a background thread is wanted, and whether it is there.
#[derive(Debug)]
pub(crate) struct Background {
    state: AtomicU8,
    /// Bytes of its stack, beside the thread-local variables of the program.
    stack: usize,
}

impl Background {
    /// Creates the state of a thread that no code has requested, with a stack of that many bytes.
    pub(crate) const fn new(stack: usize) -> Self {
        Self { state: AtomicU8::new(NOT_REQUESTED), stack }
    }

    /// Requests the thread. The next call of [`Background::start`] starts it.
    ///
    /// It calls `dlsym`, which may allocate.
    pub(crate) fn request(&self) {
        thread::find_least_stack();
        // Another thread may have come here at once, and may have started it.
        let _ = self.state.compare_exchange(NOT_REQUESTED, REQUESTED, Relaxed, Relaxed);
    }

    /// Returns whether the thread was requested and is not yet started.
    #[inline]
    pub(crate) fn is_requested(&self) -> bool {
        self.state.load(Relaxed) == REQUESTED
    }

    /// Notes that the thread ends, or that this is a forked child, which does not inherit it. A
    /// later call of [`Background::start`] starts it again.
    pub(crate) fn end(&self) {
        let _ = self.state.compare_exchange(THERE, REQUESTED, Relaxed, Relaxed);
    }

    /// Takes [`Background::end`] back. Returns false if another thread was started since.
    pub(crate) fn stay(&self) -> bool {
        self.state.compare_exchange(REQUESTED, THERE, Relaxed, Relaxed).is_ok()
    }

    /// Starts the thread if it was requested and is not yet started. It runs `run`.
    ///
    /// Allocations that starting the thread causes are served as usual: the state no longer
    /// requests the thread. If the system cannot create it, a line on stderr says so, and no call
    /// tries again. Returns false if this call could not create it.
    #[cold]
    pub(crate) fn start(&self, run: thread::Run) -> bool {
        if self.state.compare_exchange(REQUESTED, THERE, Relaxed, Relaxed).is_err() {
            return true;
        }
        if !thread::create(run, self.stack) {
            stderr::say(&[b"bucketpool: the system makes no background thread\n"]);
            return false;
        }
        true
    }
}

/// Reads the clock again and again. `look` runs the work that is due and returns the cached
/// bytes.
///
/// Returns once the cached bytes have not changed for a while and `ends` says so. The thread has
/// its name once it is confined.
pub(crate) fn look_again(mut look: impl FnMut() -> usize, mut ends: impl FnMut() -> bool) {
    confine();
    system::name_thread(c"bucketpool");
    let (mut idle, mut same) = (0, 0);
    while same < SAME || !ends() {
        system::sleep_milliseconds(if same < SAME { SOON } else { LATER });
        let now = look();
        same = if now == idle { same + 1 } else { 0 };
        idle = now;
    }
}
