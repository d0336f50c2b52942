//! One stream of a timeline: its epochs, its latest events, the streams it is ordered after, and whether its work
//! is captured.

use crate::port::{DeviceError, StreamClock, Why};
use crate::stream::timeline::{EventDriver, Mark, Timeline};
use crate::sys::atomic::{AtomicBool, AtomicU64};
use crate::sys::{Mutex, RwLock};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, SeqCst};

/// A stream that a [`Timeline`] knows. Clones are the same stream.
pub struct Stream<D: EventDriver>(pub(super) Arc<Slot<D>>);

pub(super) struct Slot<D: EventDriver> {
    /// The timeline that knows this stream. No number is used twice.
    pub(super) timeline: u32,
    pub(super) id: u32,
    pub(super) raw: D::Raw,
    pub(super) epoch: AtomicU64,
    /// Marks of epochs below this were seen done by a query.
    pub(super) done_before: AtomicU64,
    /// True if the stream has ended: it is given no more work.
    pub(super) ended: AtomicBool,
    /// Epoch of the stream's final event; 0 while the stream lives. Marks taken after retirement
    /// are clamped to it.
    pub(super) final_epoch: AtomicU64,
    /// Held as a reader during calls on this stream that a pool makes for another stream: events
    /// and frees. The end of the stream and the begin of a capture take it as a writer, and so wait
    /// for these calls. Calls for requests on this stream do not hold it.
    pub(super) calls: RwLock<()>,
    /// Marks of this epoch and later ones lie in a capture that has not ended; 0 without one.
    pub(super) captured_from: AtomicU64,
    pub(super) known: Mutex<SyncState<D::Event>>,
}

/// What is seen done stays in a clock of at most so many streams: it saves queries.
pub(super) const MAX_KEPT_DONE: usize = 64;

/// For each stream, the epoch below which all its marks are covered; in the order of the streams.
/// Clones share it until one is raised, so an event has the clock of its stream for nothing.
#[derive(Clone, Default)]
pub(super) struct VectorClock(pub(super) Arc<[(u32, u64)]>);

impl VectorClock {
    fn at(&self, stream: u32) -> Result<usize, usize> {
        self.0.binary_search_by_key(&stream, |(known, _)| *known)
    }

    /// Returns the epoch of a stream.
    fn get(&self, stream: u32) -> Option<u64> {
        self.at(stream).ok().map(|at| self.0[at].1)
    }

    /// Raises the epochs of streams. `is_needless`: such an epoch tells nothing, since its marks
    /// count as done.
    pub(super) fn raise(
        &mut self,
        known: impl Iterator<Item = (u32, u64)>,
        is_needless: impl Fn(u32, u64) -> bool,
    ) {
        let mut of_new = Vec::new();
        for (stream, epoch) in known {
            match self.at(stream) {
                Ok(at) if self.0[at].1 < epoch => Arc::make_mut(&mut self.0)[at].1 = epoch,
                Ok(_) => {}
                Err(_) => of_new.push((stream, epoch)),
            }
        }
        if !of_new.is_empty() {
            let has_many = self.0.len() + of_new.len() > MAX_KEPT_DONE;
            of_new.extend(self.iter());
            of_new.retain(|(stream, epoch)| !has_many || !is_needless(*stream, *epoch));
            of_new.sort_unstable_by_key(|(stream, epoch)| (*stream, u64::MAX - epoch));
            of_new.dedup_by_key(|(stream, _)| *stream); // its highest epoch comes first
            self.0 = of_new.into();
        }
    }

    /// Forgets a stream.
    pub(super) fn remove(&mut self, stream: u32) {
        if self.at(stream).is_ok() {
            self.0 = self.iter().filter(|(known, _)| *known != stream).collect();
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, u64)> {
        self.0.iter().copied()
    }
}

pub(super) struct SyncState<E> {
    /// The latest events, oldest first. Those that are seen done are dropped.
    pub(super) events: VecDeque<Arc<Recorded<E>>>,
    /// The marks that the stream is ordered after.
    pub(super) clock: VectorClock,
    /// The capture that the stream is under, if any.
    pub(super) captured: Option<Captured>,
}

/// The state of a stream from before its capture, and the marks that the capture waits for.
pub(super) struct Captured {
    /// The vector clock from before the capture. It is restored when the capture ends, because
    /// edges of a graph order nothing outside of the graph.
    pub(super) clock: VectorClock,
    /// The marks that captured work asked to be ordered behind. A launch waits for them.
    pub(super) awaited: Vec<Mark>,
}

impl<E> SyncState<E> {
    /// Removes the events of epochs up to `epoch`, and returns them.
    pub(super) fn pop_until(&mut self, epoch: u64) -> Vec<Arc<Recorded<E>>> {
        let end = self.events.partition_point(|event| event.epoch <= epoch);
        invariant!(
            self.events.range(end..).all(|event| event.epoch > epoch),
            "the events of a stream are in the order of its epochs"
        );
        self.events.drain(..end).collect()
    }
}

/// A recorded event. It covers marks before `epoch`, and all that the stream was ordered after by
/// then.
pub(super) struct Recorded<E> {
    pub(super) epoch: u64,
    pub(super) event: E,
    pub(super) clock: VectorClock,
}

impl<D: EventDriver> Slot<D> {
    pub(super) fn new(timeline: u32, id: u32, raw: D::Raw) -> Self {
        let (events, clock) = (VecDeque::new(), VectorClock::default());
        Self {
            timeline,
            id,
            raw,
            epoch: AtomicU64::new(1), // `captured_from` is 0 without a capture
            done_before: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            final_epoch: AtomicU64::new(0),
            calls: RwLock::new(()),
            captured_from: AtomicU64::new(0),
            known: Mutex::new(SyncState { events, clock, captured: None }),
        }
    }

    pub(super) fn is_retired(&self) -> bool {
        self.final_epoch.load(Acquire) > 0
    }

    /// Returns the epoch of a mark. For a stream that has ended, the last event covers the result.
    pub(super) fn epoch_of(&self, mark: Mark) -> u64 {
        match self.final_epoch.load(Acquire) {
            0 => mark.epoch,
            last => mark.epoch.min(last - 1),
        }
    }

    #[inline]
    pub(super) fn is_after(&self, mark: Mark) -> bool {
        if mark.timeline != self.timeline {
            return false;
        }
        mark.stream == self.id || self.is_after_another(mark)
    }

    #[cold]
    fn is_after_another(&self, mark: Mark) -> bool {
        self.known.lock().clock.get(mark.stream).is_some_and(|epoch| epoch > mark.epoch)
    }
}

impl<D: EventDriver> Stream<D> {
    /// Returns the device's own stream.
    #[must_use]
    pub fn raw(&self) -> &D::Raw {
        &self.0.raw
    }
}

impl<D: EventDriver> Clone for Stream<D> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<D: EventDriver> fmt::Debug for Stream<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("id", &self.0.id).finish_non_exhaustive()
    }
}

impl Captured {
    /// Notes a mark that each launch must wait for, once.
    pub(super) fn awaits(&mut self, mark: Mark) {
        if !self.awaited.contains(&mark) {
            self.awaited.push(mark);
        }
    }
}

impl<D: EventDriver> Timeline<D> {
    /// Begins the capture of the work that `stream` is given from here on.
    ///
    /// Call it before the device's own capture begins, since it records an event. No other thread
    /// may use the stream meanwhile: its event could fall into the capture.
    ///
    /// # Errors
    ///
    /// [`Why::Foreign`] for a stream of another device, [`Why::NotSubmitted`] for a stream that is
    /// under capture already, or the device's error.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{DeviceAllocator, Why, sim::SimDevice};
    ///
    /// let device = SimDevice::new();
    /// let (clock, stream) = (device.clock(), device.stream());
    /// clock.begin_capture(&stream)?; // the device's own capture begins next
    /// assert!(clock.is_capturing(&stream));
    /// assert_eq!(clock.begin_capture(&stream).unwrap_err().why, Why::NotSubmitted);
    /// let after = clock.end_capture(&stream); // each launch is ordered behind these marks
    /// assert_eq!((after.len(), clock.is_capturing(&stream)), (1, false));
    /// # Ok::<(), pool_core::DeviceError>(())
    /// ```
    pub fn begin_capture(&self, stream: &Stream<D>) -> Result<(), DeviceError> {
        let slot = self.of_ours(stream)?;
        if slot.is_capturing() {
            return Err(not_submitted("begin a second capture of a stream"));
        }
        let before = self.mark(stream);
        self.event_after(before)?;
        let from = slot.epoch.load(SeqCst);
        if from <= before.epoch {
            return Err(has_ended());
        }
        slot.enter_capture(before, from)
    }

    /// Notes a capture of `stream` that another library has begun. [`Timeline::end_capture`] ends it
    /// on this clock, after the other library has ended it.
    ///
    /// No event can be recorded any more, so what the stream was given since its last event counts as
    /// captured until the end: no other stream is ordered behind it before.
    ///
    /// # Errors
    ///
    /// As for [`Timeline::begin_capture`].
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{DeviceAllocator, StreamClock, sim::SimDevice};
    ///
    /// let device = SimDevice::new();
    /// let (clock, stream) = (device.clock(), device.stream());
    /// let before = clock.mark(&stream);
    /// clock.adopt_capture(&stream)?; // it is going on
    /// assert!(clock.is_capturing(&stream) && !clock.is_submitted(before));
    /// assert_eq!(clock.end_capture(&stream), [before]);
    /// assert!(clock.is_submitted(before));
    /// # Ok::<(), pool_core::DeviceError>(())
    /// ```
    pub fn adopt_capture(&self, stream: &Stream<D>) -> Result<(), DeviceError> {
        let (slot, before) = (self.of_ours(stream)?, self.mark(stream));
        slot.enter_capture(before, before.epoch)
    }

    /// Ends the capture of `stream` on this clock.
    ///
    /// Returns the marks that each launch must be ordered after: the end of the stream's work
    /// before the capture, and the marks that the captured work had to be ordered after.
    pub fn end_capture(&self, stream: &Stream<D>) -> Vec<Mark> {
        let slot = &stream.0;
        slot.captured_from.store(0, SeqCst);
        let mut known = slot.known.lock();
        let Some(Captured { clock, awaited }) = known.captured.take() else { return Vec::new() };
        invariant!(!awaited.is_empty(), "a launch waits for the stream of its capture at least");
        known.clock = clock;
        awaited
    }

    /// Makes `on` wait for all work that `after` was given, inside one capture.
    ///
    /// These are the only events of a capture. The program asks for them, and they are edges of the
    /// graph.
    ///
    /// # Errors
    ///
    /// [`Why::Foreign`] for a stream of another device, [`Why::NotSubmitted`] for a stream that is
    /// not under capture, or the device's error.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{DeviceAllocator, Why, sim::SimDevice};
    ///
    /// let device = SimDevice::new();
    /// let (clock, first, second) = (device.clock(), device.stream(), device.stream());
    /// device.begin_capture(&first)?;
    /// assert_eq!(clock.join_captured(&second, &first).unwrap_err().why, Why::NotSubmitted);
    /// clock.begin_capture(&second)?;
    /// clock.join_captured(&second, &first)?; // the capture takes the second stream in
    /// clock.join_captured(&first, &second)?; // the capture ends on the first stream
    /// clock.end_capture(&second);
    /// device.end_capture(&first)?;
    /// # Ok::<(), pool_core::DeviceError>(())
    /// ```
    pub fn join_captured(&self, on: &Stream<D>, after: &Stream<D>) -> Result<(), DeviceError> {
        let (on, after) = (self.of_ours(on)?, self.of_ours(after)?);
        if !on.is_capturing() || !after.is_capturing() {
            return Err(not_submitted("join streams that are not both captured"));
        }
        let epoch = after.epoch.fetch_add(1, SeqCst) + 1;
        let event = self.driver.record_edge(&after.raw)?;
        self.driver.wait_edge(&on.raw, &event)?;
        let event_clock = after.known.lock().clock.clone();
        self.note_after(on, &event_clock, after.id, epoch);
        invariant!(epoch > 0, "an edge of a graph begins an epoch");
        Ok(())
    }

    /// Returns whether `stream` is under capture.
    #[must_use]
    pub fn is_capturing(&self, stream: &Stream<D>) -> bool {
        stream.0.is_capturing()
    }

    fn of_ours<'s>(&self, stream: &'s Stream<D>) -> Result<&'s Slot<D>, DeviceError> {
        if let Some(fault) = self.fault() {
            return Err(fault);
        }
        let refused = DeviceError::new(Why::Foreign, "capture a stream of another device");
        if self.owns(stream) { Ok(&stream.0) } else { Err(refused) }
    }
}

impl<D: EventDriver> Slot<D> {
    /// Marks of the epoch `from` and later ones are captured from here on. Launches wait for `before`.
    fn enter_capture(&self, before: Mark, from: u64) -> Result<(), DeviceError> {
        invariant!(from > 0, "0 stands for no capture");
        let mut known = self.known.lock();
        if self.is_retired() {
            return Err(has_ended());
        }
        if known.captured.is_some() {
            return Err(not_submitted("begin a second capture of a stream")); // by another thread
        }
        // A launch on another stream must run after the stream's work and what that was ordered
        // after.
        known.captured = Some(Captured { clock: known.clock.clone(), awaited: vec![before] });
        self.captured_from.store(from, SeqCst);
        drop(known);
        // Calls that other threads make on the stream end before the capture begins.
        drop(self.calls.write());
        Ok(())
    }

    pub(super) fn is_capturing(&self) -> bool {
        self.captured_from.load(Acquire) > 0
    }

    /// Returns whether a mark lies in the current capture.
    pub(super) fn is_captured(&self, mark: Mark) -> bool {
        let from = self.captured_from.load(Acquire);
        from > 0 && mark.epoch >= from
    }
}

fn has_ended() -> DeviceError {
    DeviceError::new(Why::Foreign, "begin a capture of a stream that has ended")
}

pub(super) fn not_submitted(call: &'static str) -> DeviceError {
    DeviceError::new(Why::NotSubmitted, call)
}
