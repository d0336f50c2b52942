//! The order of a device's work: streams, marks, and what is ordered after what.
//!
//! A mark is a point in a stream: "everything given to it so far". Taking one costs nothing.
//! Events are how a clock keeps its promises, and nobody else's business.

use crate::error::DeviceError;
use std::fmt::Debug;

/// The clock of one device. Wrappers pass on the clock of what they wrap, so that all pools over
/// one device share its epochs.
pub trait StreamClock: Send + Sync + 'static {
    /// An ordered queue of work.
    type Stream: Clone + Send + Sync + 'static;
    /// A point in a stream.
    type Mark: Copy + Debug + Send + Sync + 'static;

    /// Whether a use lasts until its buffer is dropped: where a program can keep what it was lent,
    /// such as a bind group, and use it again later in the same stream.
    const UNTIL_DROP: bool = false;

    /// The stream that `allocate` without a stream means, so that one program text serves all
    /// devices.
    fn default_stream(&self) -> &Self::Stream;

    /// Whether `on` is a stream of this device. A stranger's stream is refused, not trusted.
    fn owns(&self, on: &Self::Stream) -> bool;

    /// Why no call to the device can succeed any more: it is lost, or this process is a fork. Asked
    /// before each allocation, so that a hit does not hide it. Makes no device call.
    fn fault(&self) -> Option<DeviceError> {
        None
    }

    /// Whether what `on` is given reaches the device by itself: false under a capture into a graph,
    /// which runs the work later, and again. Makes no device call.
    fn takes_work(&self, _on: &Self::Stream) -> bool {
        true
    }

    /// A stream for zeroing that runs ahead of what `on` is given from here on
    /// ([`Clearing::Ahead`](crate::Clearing::Ahead)): memory that this stream may have can be
    /// zeroed ahead. Makes no device call.
    fn ahead_of(&self, _on: &Self::Stream) -> Self::Stream {
        self.default_stream().clone()
    }

    /// The point that `on` has reached: after everything given to it so far. Makes no device call.
    fn mark(&self, on: &Self::Stream) -> Self::Mark;

    /// The point that the stream of an earlier mark has reached by now. Makes no device call.
    fn latest(&self, mark: Self::Mark) -> Self::Mark;

    /// Whether both marks lie in one stream.
    fn same_stream(&self, a: Self::Mark, b: Self::Mark) -> bool;

    /// The later of two marks of one stream.
    fn later(&self, a: Self::Mark, b: Self::Mark) -> Self::Mark;

    /// Whether `a` is `b`, or a later point of the same stream.
    fn is_later(&self, a: Self::Mark, b: Self::Mark) -> bool;

    /// A number for the stream of a mark. Idle blocks of the taker's own lane are tried first.
    fn lane(&self, mark: Self::Mark) -> u64;

    /// Whether what `on` is given from here on already runs after `after`. Makes no device call,
    /// so a pool may ask while it holds a lock.
    fn is_ordered(&self, on: &Self::Stream, after: Self::Mark) -> bool;

    /// Makes what `on` is given from here on run after all of `after`, on the device: the host
    /// does not wait.
    ///
    /// # Errors
    ///
    /// What the device said when an event could not be recorded or waited for. Some of `after`
    /// may be ordered by then, which does no harm.
    fn order(&self, on: &Self::Stream, after: &[Self::Mark]) -> Result<Order, DeviceError>;

    /// Whether the work before a mark has reached the device, so that it will be done one day.
    /// Makes no device call.
    fn is_submitted(&self, _after: Self::Mark) -> bool {
        true
    }

    /// Whether an earlier query has seen `after` done. Makes no device call.
    fn is_seen_done(&self, after: Self::Mark) -> bool;

    /// Whether an order behind `after` needs no new event: one exists already, or nothing is left
    /// to wait for. Makes no device call.
    fn has_event(&self, after: Self::Mark) -> bool {
        self.is_seen_done(after)
    }

    /// Whether the stream of a mark has ended, so that nobody will come back for what it used.
    /// Makes no device call.
    fn is_retired(&self, _mark: Self::Mark) -> bool {
        false
    }

    /// Asks the device whether `after` is done.
    ///
    /// # Errors
    ///
    /// What the device said.
    fn is_done(&self, after: Self::Mark) -> Result<bool, DeviceError>;

    /// Blocks the host until `after` is done.
    ///
    /// # Errors
    ///
    /// What the device said; [`Why::NotSubmitted`](crate::Why::NotSubmitted) where waiting would
    /// never end.
    fn synchronize(&self, after: Self::Mark) -> Result<(), DeviceError>;
}

/// Whether an order could be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// What the stream is given from here on runs after the marks.
    Ordered,
    /// The work behind a mark has not reached the device (an open command encoder, a graph
    /// capture), so nothing can be ordered after it. The block is left where it is.
    NotYet,
}

/// The clock of memory without streams: what a program does has happened when the call returns.
#[derive(Clone, Copy, Debug, Default)]
pub struct Immediate;

impl StreamClock for Immediate {
    type Stream = ();
    type Mark = ();

    #[inline]
    fn default_stream(&self) -> &() {
        &()
    }
    #[inline]
    fn owns(&self, _on: &()) -> bool {
        true
    }
    #[inline]
    fn mark(&self, _on: &()) {}
    #[inline]
    fn latest(&self, _mark: ()) {}
    #[inline]
    fn same_stream(&self, _a: (), _b: ()) -> bool {
        true
    }
    #[inline]
    fn later(&self, _a: (), _b: ()) {}
    #[inline]
    fn is_later(&self, _a: (), _b: ()) -> bool {
        true
    }
    #[inline]
    fn lane(&self, _mark: ()) -> u64 {
        0
    }
    #[inline]
    fn is_ordered(&self, _on: &(), _after: ()) -> bool {
        true
    }
    #[inline]
    fn order(&self, _on: &(), _after: &[()]) -> Result<Order, DeviceError> {
        Ok(Order::Ordered)
    }
    #[inline]
    fn is_seen_done(&self, _after: ()) -> bool {
        true
    }
    #[inline]
    fn is_done(&self, _after: ()) -> Result<bool, DeviceError> {
        Ok(true)
    }
    #[inline]
    fn synchronize(&self, _after: ()) -> Result<(), DeviceError> {
        Ok(())
    }
}
