//! Memory that belongs to one process: what says that a fork has made another.
#![expect(unsafe_code, reason = "the system calls back in a forked child")]

use pool_core::{DeviceError, Immediate, Order, StreamClock, Why};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Forks between the process that first asked and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The clock of memory whose promise does not survive `fork`. It has no streams: work has happened
/// when the call returns.
///
/// In a child of the process that made the clock every call says [`Why::Forked`]. A child that is
/// made without the C library's `fork` (a bare `clone`) is not noticed.
#[derive(Clone, Copy, Debug)]
pub struct ProcessClock {
    /// [`FORKS`] when the clock was made.
    forks: u32,
}

impl ProcessClock {
    /// A clock of this process.
    pub(crate) fn new() -> Self {
        static ONCE: Once = Once::new();
        extern "C" fn in_child() {
            FORKS.fetch_add(1, Relaxed);
        }
        ONCE.call_once(|| {
            // SAFETY: registers a function that changes one number, which is legal in a forked
            // child. If the system refuses, a fork is not noticed.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        Self { forks: FORKS.load(Relaxed) }
    }
}

impl StreamClock for ProcessClock {
    type Stream = ();
    type Mark = ();

    #[inline]
    fn default_stream(&self) -> &() {
        &()
    }
    #[inline]
    fn owns(&self, on: &()) -> bool {
        Immediate.owns(on)
    }
    #[inline]
    fn fault(&self) -> Option<DeviceError> {
        let fault = DeviceError::new(Why::Forked, "use locked memory of the parent process", 0);
        (self.forks != FORKS.load(Relaxed)).then_some(fault)
    }
    #[inline]
    fn mark(&self, _on: &()) {}
    #[inline]
    fn latest(&self, _mark: ()) {}
    #[inline]
    fn same_stream(&self, a: (), b: ()) -> bool {
        Immediate.same_stream(a, b)
    }
    #[inline]
    fn later(&self, _a: (), _b: ()) {}
    #[inline]
    fn is_later(&self, a: (), b: ()) -> bool {
        Immediate.is_later(a, b)
    }
    #[inline]
    fn lane(&self, mark: ()) -> u64 {
        Immediate.lane(mark)
    }
    #[inline]
    fn is_ordered(&self, on: &(), after: ()) -> bool {
        Immediate.is_ordered(on, after)
    }
    #[inline]
    fn order(&self, on: &(), after: &[()]) -> Result<Order, DeviceError> {
        Immediate.order(on, after)
    }
    #[inline]
    fn is_seen_done(&self, after: ()) -> bool {
        Immediate.is_seen_done(after)
    }
    #[inline]
    fn is_done(&self, after: ()) -> Result<bool, DeviceError> {
        Immediate.is_done(after)
    }
    #[inline]
    fn synchronize(&self, after: ()) -> Result<(), DeviceError> {
        Immediate.synchronize(after)
    }
}
