//! A memory barrier on all processors that run this process, so that a thread that is seldom
//! stopped needs none.

use crate::heap::lock::atomics::fence;
use std::sync::atomic::Ordering::SeqCst;

/// Whether [`everywhere`] reaches the other threads. Registers the process on first use.
#[cfg(all(target_os = "linux", not(any(miri, loom, shuttle, single_fence))))]
pub(crate) fn is_available() -> bool {
    use crate::sys::atomic::{AtomicU8, Ordering::Relaxed};
    use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};
    // Several threads may ask at once. A lock here could be held for ever in a child of `fork`.
    const YES: u8 = 1;
    const NO: u8 = 2;
    static AVAILABLE: AtomicU8 = AtomicU8::new(0);
    match AVAILABLE.load(Relaxed) {
        YES => true,
        NO => false,
        _ => {
            let is = membarrier_query().contains(MembarrierQuery::PRIVATE_EXPEDITED)
                && membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok();
            AVAILABLE.store(if is { YES } else { NO }, Relaxed);
            is
        }
    }
}

/// Miri and the checkers have no such call, and `ThreadSanitizer` (`--cfg single_fence`) does not
/// know what it orders.
#[cfg(not(all(target_os = "linux", not(any(miri, loom, shuttle, single_fence)))))]
pub(crate) fn is_available() -> bool {
    false
}

/// When it returns, each other thread of the process has had a full barrier since it was called
/// (membarrier(2), `PRIVATE_EXPEDITED`). Costs about 0.5 us. Only if [`is_available`]. Aborts the
/// process if the system refuses the call later, as a seccomp filter can.
#[cfg_attr(
    all(target_os = "linux", not(any(miri, loom, shuttle, single_fence))),
    expect(clippy::print_stderr, reason = "the last words of the process")
)]
pub(crate) fn everywhere() {
    fence(SeqCst);
    #[cfg(pool_counts)]
    crate::sys::counts::barrier();
    #[cfg(all(target_os = "linux", not(any(miri, loom, shuttle, single_fence))))]
    {
        // `is_available` has registered the process; a child of `fork` inherits that.
        let done = rustix::thread::membarrier(rustix::thread::MembarrierCommand::PrivateExpedited);
        if let Err(error) = done {
            // Owners enter by a plain store, so without the barrier two threads may be inside.
            eprintln!("bucketpool: membarrier was allowed and is refused now: {error}; aborting");
            std::process::abort();
        }
    }
}
