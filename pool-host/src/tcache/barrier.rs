//! An asymmetric memory barrier.
//!
//! The side that runs often calls [`light`], which only keeps the compiler from reordering loads
//! and stores. The side that runs seldom calls [`heavy`], which has the system run a barrier in all
//! running threads of the process (Linux, `membarrier(2)`; about 1.4 us).
#![expect(unsafe_code, reason = "the system is called through C")]

use crate::sync::atomic::{AtomicU8, Ordering::Relaxed, Ordering::SeqCst, compiler_fence, fence};
use crate::{kernel, system};

/// Whether a tool runs the program by the rules of the language (Miri, shuttle). Such tools do not
/// model `membarrier`, so both sides use a fence.
const MODELLED: bool = cfg!(any(miri, shuttle));

/// Lets another thread run, in a shuttle model. Does nothing otherwise.
#[inline]
pub(super) fn switch() {
    #[cfg(shuttle)]
    shuttle::thread::yield_now();
}

const UNKNOWN: u8 = 0;
const THERE: u8 = 1;
const MISSING: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Orders a store before a load that follows it, on the side that runs often.
#[inline]
pub(super) fn light() {
    if MODELLED {
        fence(SeqCst);
    } else {
        compiler_fence(SeqCst);
    }
    switch();
}

/// Orders a store before a load that follows it, on the side that runs seldom. Returns false if the
/// system cannot run the barrier.
///
/// After it returns true, the store of each thread that is past its [`light`] is visible to the
/// caller. Each thread that is not yet past its `light` will see the stores that the caller made
/// before.
pub(super) fn heavy() -> bool {
    fence(SeqCst);
    switch();
    #[cfg(pool_counts)]
    pool_core::counts::barrier();
    MODELLED || (is_there() && call(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED))
}

/// Returns whether the system has the barrier. Registers the process for it on the first call.
pub(super) fn is_there() -> bool {
    if MODELLED {
        return true;
    }
    if STATE.load(Relaxed) == UNKNOWN {
        // A process registers once, and a forked child inherits that. Two threads may both register
        // here; the second registration changes nothing.
        let there = call(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
        let found = if there { THERE } else { MISSING };
        // Another thread may have decided to do without meanwhile.
        let _ = STATE.compare_exchange(UNKNOWN, found, Relaxed, Relaxed);
    }
    STATE.load(Relaxed) == THERE
}

/// Never calls the system again: there is no barrier from now on.
pub(super) fn do_without() {
    STATE.store(MISSING, Relaxed);
}

/// Calls `membarrier(2)`. Returns whether it succeeded.
fn call(command: libc::c_int) -> bool {
    let Ok(command) = usize::try_from(command) else { return false };
    // SAFETY: `membarrier` takes three numbers (command, flags, processor) and no pointer, so it
    // accesses no memory of the program. An unknown command returns an error.
    let call = || unsafe { kernel::call(libc::SYS_membarrier, [command, 0, 0, 0, 0, 0]).is_ok() };
    system::keeping_errno(call)
}
