//! The clock of memory that only one process may use: it reports a fault after a fork.

use pool_core::port::{Immediate, Order};
use pool_core::{DeviceError, StreamClock, Why, forks, watch_forks};

/// The clock of memory whose guarantee does not survive `fork`, such as locked memory.
///
/// It has no streams: work is complete when the call that does it returns. In a child of the
/// process that made the clock, [`StreamClock::fault`] returns [`Why::Forked`], and a pool with
/// this clock refuses requests.
#[derive(Clone, Copy, Debug)]
pub struct ProcessClock {
    /// The value of [`forks`] when the clock was made.
    forks: u32,
}

impl ProcessClock {
    /// Creates a clock for memory of this process.
    pub(crate) fn new() -> Self {
        watch_forks();
        Self { forks: forks() }
    }
}

impl StreamClock for ProcessClock {
    type Stream = ();
    type Mark = ();
    const HAS_STREAMS: bool = false;

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
        let fault = DeviceError::new(Why::Forked, "use locked memory of the parent process");
        (self.forks != forks()).then_some(fault)
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
    fn stream_id(&self, mark: ()) -> u64 {
        Immediate.stream_id(mark)
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
