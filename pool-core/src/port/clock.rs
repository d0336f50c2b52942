//! The order of a device's work: streams, marks, and the order between them.
//!
//! A mark is a point in a stream: the end of the work that the stream was given so far. It costs no
//! call of the driver and no event. The clock records an event only when it has to order another
//! stream after a mark, or to query a mark.

use crate::port::error::DeviceError;
use std::fmt::Debug;
use std::sync::Weak;

/// The clock of one device. Wrappers pass on the clock of the allocator that they wrap, so that all
/// pools over one device share its epochs.
///
/// # Examples
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
/// use bucketpool::{DeviceAllocator, StreamClock, Why, port::{Order, Request}, sim::SimDevice};
///
/// let device = SimDevice::new();
/// let (clock, load, compute) = (device.clock(), device.stream(), device.stream());
/// let block = device.allocate(Request { bytes: 4, kind: () }, &load)?;
/// device.kernel(&load, &device.view(&block, 0, 4, &load));
/// let loaded = clock.mark(&load);
/// assert!(!clock.is_done(loaded)?); // the kernel has not run
/// assert_eq!(clock.order(&compute, &[loaded])?, Order::Ordered); // the host does not wait
/// clock.synchronize(loaded)?;
/// assert!(clock.is_done(loaded)?);
/// let foreign = SimDevice::new().stream();
/// assert_eq!(clock.order(&foreign, &[loaded]).unwrap_err().why, Why::Foreign);
/// # Ok::<(), pool_core::DeviceError>(())
/// ```
pub trait StreamClock: Send + Sync + 'static {
    /// An ordered queue of work.
    type Stream: Clone + Send + Sync + 'static;
    /// A point in a stream.
    type Mark: Copy + Debug + Send + Sync + 'static;

    /// True if each use lasts until its buffer is dropped, because a program can keep an object
    /// that refers to the buffer, such as a bind group, and use it again later in the same stream.
    const UNTIL_DROP: bool = false;

    /// Whether [`StreamClock::stream_id`] tells streams apart. If not, a pool divides requests between
    /// its shards by thread, and not by stream: so do memory without streams, and memory of command
    /// encoders, each of which is a stream and is gone soon.
    const HAS_STREAMS: bool = true;

    /// Returns the stream that `allocate` uses when the caller names none, so that one program text
    /// serves all devices.
    fn default_stream(&self) -> &Self::Stream;

    /// Returns whether `on` is a stream of this device. The pool refuses a stream of another
    /// device.
    fn owns(&self, on: &Self::Stream) -> bool;

    /// Returns whether `on` is or was a stream of this device. Memory may go behind the work of one
    /// that has ended.
    fn has_owned(&self, on: &Self::Stream) -> bool {
        self.owns(on)
    }

    /// Returns the reason why no call to the device can succeed any more: the device is lost, or
    /// this process is a fork.
    ///
    /// The pool asks before each allocation, so that a hit does not hide the fault. Makes no device
    /// call.
    fn fault(&self) -> Option<DeviceError> {
        None
    }

    /// Returns whether work given to `on` reaches the device by itself. False under a capture into
    /// a graph, which runs the work later, and more than once. Makes no device call.
    fn takes_work(&self, _on: &Self::Stream) -> bool {
        true
    }

    /// Returns a stream whose work runs before the work that `on` is given from here on, for
    /// zeroing ([`Zeroing::Ahead`](crate::port::Zeroing::Ahead)).
    ///
    /// Memory can be zeroed ahead of `on` only if it is ready for the returned stream. Makes no
    /// device call.
    fn ahead_of(&self, _on: &Self::Stream) -> Self::Stream {
        self.default_stream().clone()
    }

    /// Returns the point that `on` has reached: after everything given to it so far. Makes no
    /// device call.
    fn mark(&self, on: &Self::Stream) -> Self::Mark;

    /// Returns the point that the stream of an earlier mark has reached now. Makes no device call.
    fn latest(&self, mark: Self::Mark) -> Self::Mark;

    /// Returns whether both marks lie in one stream.
    fn same_stream(&self, a: Self::Mark, b: Self::Mark) -> bool;

    /// Returns whether a mark lies in `on`, as [`StreamClock::same_stream`] says of it and of the point that `on`
    /// has reached. Makes no device call, so a pool may ask while it holds a lock.
    #[inline]
    fn is_on(&self, on: &Self::Stream, mark: Self::Mark) -> bool {
        self.same_stream(mark, self.mark(on))
    }

    /// Returns the later of two marks of one stream.
    fn later(&self, a: Self::Mark, b: Self::Mark) -> Self::Mark;

    /// Returns whether `a` is `b`, or a later point of the same stream.
    fn is_later(&self, a: Self::Mark, b: Self::Mark) -> bool;

    /// Returns the stream that memory must be ready for before a request on `on` has it again, even if
    /// the memory is not zeroed; `None` if that is `on` itself. Makes no device call.
    ///
    /// A search asks [`StreamClock::is_ordered`] of that stream while it holds the lock of the memory, so
    /// the answer may depend on what other threads have dropped until then.
    #[inline]
    fn reuse_of(&self, _on: &Self::Stream) -> Option<Self::Stream> {
        None
    }

    /// Returns the stream id of a mark. A request tries cached blocks with its stream's id first.
    fn stream_id(&self, mark: Self::Mark) -> u64;

    /// Returns whether the work that `on` is given from here on already runs after `after`. Makes
    /// no device call, so a pool may ask while it holds a lock.
    fn is_ordered(&self, on: &Self::Stream, after: Self::Mark) -> bool;

    /// Makes the work that `on` is given from here on run after all of `after`, on the device. The
    /// host does not wait.
    ///
    /// # Errors
    ///
    /// The device's error if an event could not be recorded or waited for. Some marks of `after`
    /// may be ordered by then, which does no harm.
    fn order(&self, on: &Self::Stream, after: &[Self::Mark]) -> Result<Order, DeviceError>;

    /// Refuses a request on `on` that the device would serve, or a launch, where the stream is in a
    /// capture that the clock does not know: its graph would keep the memory's address beyond the
    /// buffer's life.
    ///
    /// # Errors
    ///
    /// [`Why::NotSubmitted`](crate::Why::NotSubmitted) for such a stream, or the device's error.
    #[inline]
    fn takes_memory(&self, _on: &Self::Stream) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Returns whether the work before a mark has reached the device, so that it will complete
    /// eventually. Makes no device call.
    fn is_submitted(&self, _after: Self::Mark) -> bool {
        true
    }

    /// Keeps `told`, and calls it each time that work has reached the device which no stream could be
    /// ordered after before ([`Order::NotYet`]): requests may wait for memory behind it. It is called
    /// with no lock held, and may run foreign code.
    fn tell_of_submissions(&self, _told: Weak<dyn Fn() + Send + Sync>) {}

    /// Returns whether an earlier query has seen `after` done. Makes no device call.
    fn is_seen_done(&self, after: Self::Mark) -> bool;

    /// Returns whether the clock can order a stream after `after` without recording an event: an
    /// event exists already, or the work is done. Makes no device call.
    fn has_event(&self, after: Self::Mark) -> bool {
        self.is_seen_done(after)
    }

    /// Returns whether a stream can be ordered after `after` without a wait of the host. False for
    /// work on a stream that only another thread can record an event on. Makes no device call.
    #[inline]
    fn can_order(&self, _after: Self::Mark) -> bool {
        true
    }

    /// Returns whether the stream of a mark has ended, so that no later request on it can reuse its
    /// memory. Makes no device call.
    fn is_retired(&self, _mark: Self::Mark) -> bool {
        false
    }

    /// Returns whether no stream has to wait for the stream of a mark any more, so that a buffer
    /// may forget the mark.
    ///
    /// This is the case if the stream is given no more work, every other stream is ordered after
    /// its work, and, for memory that the CPU can access, a query has seen that work done. Makes no
    /// device call.
    #[inline]
    fn is_obsolete(&self, _mark: Self::Mark) -> bool {
        false
    }

    /// Returns whether the program may take the stream of a mark for ended, although the clock does not know
    /// that it is: it has the stream's work, and submits that by itself. Makes no device call.
    #[inline]
    fn may_have_ended(&self, mark: Self::Mark) -> bool {
        self.is_obsolete(mark)
    }

    /// Returns the marks of all streams that the program may record work for and that began after the
    /// stream of `since`, where uses last until the drop ([`StreamClock::UNTIL_DROP`]).
    ///
    /// A buffer that was used on a stream which may have ended ([`StreamClock::may_have_ended`]) counts as
    /// used by all of them when it is dropped: the program may have recorded it again without telling.
    /// Makes no device call.
    fn open_marks(&self, _since: Self::Mark) -> Vec<Self::Mark> {
        Vec::new()
    }

    /// Queries the device, and returns whether `after` is done.
    ///
    /// # Errors
    ///
    /// The device's error.
    fn is_done(&self, after: Self::Mark) -> Result<bool, DeviceError>;

    /// Blocks the host until `after` is done.
    ///
    /// # Errors
    ///
    /// The device's error; [`Why::NotSubmitted`](crate::Why::NotSubmitted) where the wait would
    /// never end.
    fn synchronize(&self, after: Self::Mark) -> Result<(), DeviceError>;
}

/// The result of an attempt to order a stream behind marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The work that the stream is given from here on runs after the marks.
    Ordered,
    /// The work before a mark has not reached the device (an open command encoder, a graph
    /// capture), so no stream can be ordered after it yet. A cached block stays cached.
    NotYet,
}

/// The clock of memory without streams: work is done when the call returns.
#[derive(Clone, Copy, Debug, Default)]
pub struct Immediate;

impl StreamClock for Immediate {
    type Stream = ();
    type Mark = ();
    const HAS_STREAMS: bool = false;

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
    fn stream_id(&self, _mark: ()) -> u64 {
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
