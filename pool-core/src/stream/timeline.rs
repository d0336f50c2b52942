//! Epochs and lazy events: the clock of a device that has streams and events.
//!
//! An epoch is the stretch of a stream between two events. The clock records an event when a caller
//! asks about a mark that no event covers yet: at most one per epoch, and none if no caller asks.
//! Each stream has a vector clock of the marks that it has waited for, and each event carries a
//! copy of it, so the clock skips a wait that earlier waits imply.
//!
//! A stream that ends is retired: the clock records its last event while it can, and keeps the
//! event until it is seen done. Then the clock forgets the stream, and its marks count as done.

mod stream;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use crate::port::{DeviceError, Order, StreamClock, Why};
use crate::sys::RwLock;
use crate::sys::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::SeqCst};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
#[cfg(all(test, not(any(loom, shuttle))))]
use stream::MAX_KEPT_DONE;
pub use stream::Stream;
use stream::not_submitted;
use stream::{Recorded, Slot, VectorClock};

/// The maximum number of events that are kept for each stream. A wait for a mark whose event was
/// dropped uses a later event, and so waits for more work.
const MAX_EVENTS_PER_STREAM: usize = 16;
/// The same where a device has many streams, whose events have a clock of as many each.
const MIN_EVENTS_PER_STREAM: usize = 2;
/// The maximum number of events of all streams, as far as each may keep more than those.
const MAX_EVENTS: usize = 1024;
/// The maximum number of retired streams that are queried when another stream is registered or
/// retired.
const MAX_RETIRED_QUERIES: usize = 4;

/// The device calls that stream order needs.
///
/// # Examples
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
/// use bucketpool::{DeviceError, Why, stream::EventDriver};
///
/// /// A device with 2 streams, whose work is done when the call returns.
/// struct TwoStreams;
///
/// impl EventDriver for TwoStreams {
///     type Raw = u32;
///     type Event = ();
///     fn record(&self, on: &u32) -> Result<(), DeviceError> {
///         if *on < 2 { Ok(()) } else { Err(DeviceError::new(Why::Foreign, "record")) }
///     }
///     fn wait(&self, _on: &u32, _event: &()) -> Result<(), DeviceError> { Ok(()) }
///     fn query(&self, _event: &()) -> Result<bool, DeviceError> { Ok(true) }
///     fn synchronize(&self, _event: &()) -> Result<(), DeviceError> { Ok(()) }
/// }
///
/// TwoStreams.record_edge(&0)?; // by default a plain event
/// let event = TwoStreams.record(&0)?;
/// TwoStreams.wait(&1, &event)?;
/// TwoStreams.synchronize(&event)?;
/// assert!(TwoStreams.query(&event)?);
/// assert_eq!(TwoStreams.record(&2).unwrap_err().why, Why::Foreign);
/// # Ok::<(), pool_core::DeviceError>(())
/// ```
pub trait EventDriver: Send + Sync + 'static {
    /// The device's own stream.
    type Raw: Send + Sync + 'static;
    /// The device's own event. Dropping it destroys it.
    type Event: Send + Sync + 'static;
    /// Records a new event on `on`.
    ///
    /// # Errors
    ///
    /// The device's error. [`Why::NotSubmitted`] if `on` is in a capture that the clock does not
    /// know: the event would be an edge of its graph.
    fn record(&self, on: &Self::Raw) -> Result<Self::Event, DeviceError>;
    /// Records an edge of the capture that `on` is in.
    ///
    /// # Errors
    ///
    /// The device's error.
    fn record_edge(&self, on: &Self::Raw) -> Result<Self::Event, DeviceError> {
        self.record(on)
    }
    /// Makes the work that `on` is given from here on wait for `event`, on the device.
    ///
    /// # Errors
    ///
    /// The device's error. [`Why::NotSubmitted`] if `on` is in a capture that the clock does not
    /// know: the wait would be an edge of its graph, or break it.
    fn wait(&self, on: &Self::Raw, event: &Self::Event) -> Result<(), DeviceError>;
    /// Makes the capture that `on` is in wait for an edge.
    ///
    /// # Errors
    ///
    /// The device's error.
    fn wait_edge(&self, on: &Self::Raw, event: &Self::Event) -> Result<(), DeviceError> {
        self.wait(on, event)
    }
    /// Returns whether `on` is in a capture. The clock asks for streams that it knows in none: those
    /// captures are another library's.
    ///
    /// # Errors
    ///
    /// The device's error.
    fn is_captured(&self, _on: &Self::Raw) -> Result<bool, DeviceError> {
        Ok(false)
    }
    /// Returns whether `event` has passed.
    ///
    /// # Errors
    ///
    /// The device's error.
    fn query(&self, event: &Self::Event) -> Result<bool, DeviceError>;
    /// Blocks the host until `event` has passed.
    ///
    /// # Errors
    ///
    /// The device's error.
    fn synchronize(&self, event: &Self::Event) -> Result<(), DeviceError>;
    /// Returns whether this thread can record an event on `on`. If not, [`EventDriver::record`] waits
    /// on the host for the stream's work, which the clock asks for only where nothing else helps.
    fn may_record(&self, _on: &Self::Raw) -> bool {
        true
    }
    /// Returns the device's fault, as [`StreamClock::fault`] does.
    fn fault(&self) -> Option<DeviceError> {
        None
    }
}

/// A point in a stream: after all work that the stream was given in the mark's epoch and in earlier
/// epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The timeline that the mark belongs to. Other timelines refuse it.
    timeline: u32,
    stream: u32,
    epoch: u64,
}

/// The clock of one device with streams and events.
pub struct Timeline<D: EventDriver> {
    id: u32,
    driver: D,
    default: Stream<D>,
    /// The id of the next stream. A smaller id that is not in `slots` belongs to a stream that is
    /// retired and done.
    next: AtomicU32,
    slots: RwLock<HashMap<u32, Arc<Slot<D>>>>,
    /// The retired stream that was queried last.
    last_queried: AtomicU32,
}

impl<D: EventDriver> Timeline<D> {
    /// Creates a clock whose default stream is `default`.
    pub fn new(driver: D, default: D::Raw) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = NEXT.fetch_add(1, SeqCst);
        let slot = Arc::new(Slot::new(id, 0, default));
        let slots = RwLock::new(HashMap::from([(0, slot.clone())]));
        let [next, last_queried] = [1, 0].map(AtomicU32::new);
        Self { id, driver, default: Stream(slot), next, slots, last_queried }
    }

    /// Registers one of the device's streams. Register each raw stream once.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{DeviceAllocator, sim::SimDevice};
    ///
    /// let device = SimDevice::new();
    /// let stream = device.stream(); // registers a new simulated stream
    /// assert_eq!(*stream.raw(), 1); // 0 is the default stream
    /// ```
    pub fn register(&self, raw: D::Raw) -> Stream<D> {
        self.forget_retired();
        let id = self.next.fetch_add(1, SeqCst);
        let slot = Arc::new(Slot::new(self.id, id, raw));
        let replaced = self.slots.write().insert(id, slot.clone());
        invariant!(id > 0 && replaced.is_none(), "each stream of a device has a number of its own");
        Stream(slot)
    }

    /// Ends a stream. Its queued work still runs; from here on the clock refuses the stream.
    ///
    /// Call it before the device's own stream is destroyed, since it records an event on that
    /// stream. Other streams can reuse the stream's memory behind that event. No
    /// [`Use`](crate::buffer::Use) on the stream may be open: no stream waits for work that this
    /// stream is given afterwards.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, DeviceAllocator, sim::SimDevice};
    ///
    /// let device = SimDevice::new();
    /// let pool = BucketPool::new(device.clone());
    /// let once = device.stream();
    /// drop(pool.allocate_on(&once, 4096)?);
    /// device.clock().retire(&once)?;
    /// assert!(pool.allocate_on(&once, 4096).is_err());
    /// assert!(pool.allocate(4096).is_ok()); // its block, behind its last event
    /// assert_eq!(device.calls().allocations, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Why::Foreign`] for a stream of another device, [`Why::Unsupported`] for the default
    /// stream, which does not end, or the device's error. After an error of the device the stream
    /// goes on.
    pub fn retire(&self, stream: &Stream<D>) -> Result<(), DeviceError> {
        let refuse = |why| Err(DeviceError::new(why, "retire a stream"));
        let slot = &stream.0;
        if slot.timeline != self.id {
            return refuse(Why::Foreign);
        }
        if slot.id == 0 {
            return refuse(Why::Unsupported);
        }
        if slot.ended.swap(true, SeqCst) {
            return refuse(Why::Foreign);
        }
        // All marks of the stream are of this epoch or an earlier one.
        let last = Mark { timeline: self.id, stream: slot.id, epoch: slot.epoch.load(SeqCst) };
        let event = self.event_after(last).inspect_err(|_| slot.ended.store(false, SeqCst))?;
        // Without an event, all work of the stream is done. An epoch that another thread has begun
        // meanwhile has no event yet, so it does not count.
        let final_epoch = event.map_or(last.epoch + 1, |recorded| recorded.epoch);
        invariant!(final_epoch > last.epoch, "the last event of a stream is after all its work");
        invariant!(!slot.is_retired(), "a stream ends once");
        slot.final_epoch.store(final_epoch, SeqCst);
        // Wait until the calls of other threads on the stream have ended, because its owner may
        // destroy it after this function.
        drop(slot.calls.write());
        self.forget_done(slot);
        self.forget_retired();
        Ok(())
    }

    /// Forgets retired streams that are done. Queries only a few of them, and others at the next
    /// call, so that streams with long work do not keep the others from being queried.
    fn forget_retired(&self) {
        let mut retired: Vec<_> = {
            let slots = self.slots.read();
            slots.values().filter(|slot| slot.is_retired()).cloned().collect()
        };
        let last = self.last_queried.load(Relaxed);
        retired.sort_unstable_by_key(|slot| (slot.id <= last, slot.id));
        retired.truncate(MAX_RETIRED_QUERIES);
        invariant!(retired.iter().all(|slot| slot.id > 0), "the default stream never ends");
        if let Some(slot) = retired.last() {
            self.last_queried.store(slot.id, Relaxed);
        }
        for slot in retired {
            let last = slot.known.lock().events.back().cloned();
            let mark = Mark { timeline: self.id, stream: slot.id, epoch: 0 };
            if let Some(last) = last
                && self.driver.query(&last.event) == Ok(true)
            {
                // This is only cleanup: if it fails, the stream stays until the next call.
                let _ = self.note_done(mark, &last);
            }
        }
    }

    /// Returns the stream of a mark, or `None` if it is retired and done.
    fn slot(&self, mark: Mark) -> Result<Option<Arc<Slot<D>>>, DeviceError> {
        if mark.timeline != self.id || mark.stream >= self.next.load(SeqCst) {
            return Err(DeviceError::new(Why::Foreign, "a mark of another device"));
        }
        Ok(self.slots.read().get(&mark.stream).cloned())
    }

    /// Calls `says` with the stream of a mark and returns the result, or returns `if_retired` if
    /// the stream is retired and done. Returns `None` for a mark of another device.
    fn of_stream<T>(
        &self,
        mark: Mark,
        if_retired: T,
        says: impl FnOnce(&Slot<D>) -> T,
    ) -> Option<T> {
        let slot = self.slot(mark).ok()?;
        Some(slot.map_or(if_retired, |slot| says(&slot)))
    }

    /// Returns the first event that covers `mark`, or records one. Returns `None` if all of the
    /// work is done.
    ///
    /// The earliest event is best: a wait for it includes the least of the stream's later work.
    fn event_after(&self, mark: Mark) -> Result<Option<Arc<Recorded<D::Event>>>, DeviceError> {
        let Some(slot) = self.slot(mark)? else { return Ok(None) };
        let _call = slot.calls.read();
        let clock = {
            let known = slot.known.lock();
            let epoch = slot.epoch_of(mark);
            let covers = |recorded: &&Arc<Recorded<D::Event>>| recorded.epoch > epoch;
            if let Some(first) = known.events.iter().find(covers) {
                return Ok(Some(first.clone()));
            }
            // No event is recorded on a stream that has ended: its owner may have destroyed it.
            if slot.done_before.load(Acquire) > epoch || slot.is_retired() {
                return Ok(None);
            }
            if slot.is_captured(mark) {
                return Err(not_submitted("an event behind a capture"));
            }
            known.clock.clone()
        };
        // The epoch is raised BEFORE the event is recorded: a use that ends with the old epoch was
        // given to the stream before the event. In the opposite order, work given between the two
        // steps would count as covered.
        let epoch = slot.epoch.fetch_add(1, SeqCst) + 1;
        let new = Arc::new(Recorded { epoch, event: self.driver.record(&slot.raw)?, clock });
        let kept = MAX_EVENTS / self.slots.read().len().max(1);
        let kept = kept.clamp(MIN_EVENTS_PER_STREAM, MAX_EVENTS_PER_STREAM);
        let mut known = slot.known.lock();
        let events = &mut known.events;
        let at = events.partition_point(|recorded| recorded.epoch < epoch);
        let next = events.get(at).map_or(u64::MAX, |recorded| recorded.epoch);
        invariant!(next > epoch, "an epoch of a stream has one event");
        events.insert(at, new.clone());
        // Two, so that a stream which may keep fewer than before comes to that.
        let mut pop_too_many = || if events.len() > kept { events.pop_front() } else { None };
        let oldest = [pop_too_many(), pop_too_many()];
        drop(known);
        drop(oldest); // the device's own drops, so not under the lock
        Ok(Some(new))
    }

    /// Notes that a query has seen an event pass.
    fn note_done(&self, mark: Mark, recorded: &Recorded<D::Event>) -> Result<(), DeviceError> {
        let Some(slot) = self.slot(mark)? else { return Ok(()) };
        invariant!(
            recorded.epoch <= slot.epoch.load(SeqCst),
            "what is done of a stream was given to it before"
        );
        slot.done_before.fetch_max(recorded.epoch, SeqCst);
        let done = slot.known.lock().pop_until(recorded.epoch);
        invariant!(
            done.iter().all(|event| event.epoch <= recorded.epoch),
            "only events that are done are forgotten"
        );
        drop(done); // the device's own drops, so not under the lock
        self.forget_done(&slot);
        Ok(())
    }

    /// Forgets a stream that is retired and done.
    fn forget_done(&self, slot: &Slot<D>) {
        if !slot.is_retired() || !slot.known.lock().events.is_empty() {
            return;
        }
        invariant!(slot.id > 0, "the default stream never ends");
        let mut slots = self.slots.write();
        slots.remove(&slot.id);
        for other in slots.values() {
            let known = &mut *other.known.lock();
            let captured = known.captured.as_mut().map(|captured| &mut captured.clock);
            for clock in captured.into_iter().chain([&mut known.clock]) {
                clock.remove(slot.id);
            }
        }
    }

    /// Runs a call on the stream of a mark. The stream stays alive during the call.
    ///
    /// Returns `None` without the call if the stream is retired or under a capture that the clock
    /// knows. The call must not ask the clock about the same stream: it could deadlock.
    pub fn on_stream_of<T>(&self, mark: Mark, call: impl FnOnce(&Stream<D>) -> T) -> Option<T> {
        let slot = self.slot(mark).ok()??;
        let _call = slot.calls.read();
        if slot.is_retired() || slot.is_capturing() {
            return None;
        }
        Some(call(&Stream(slot.clone())))
    }

    fn order_after(&self, on: &Slot<D>, mark: Mark) -> Result<(), DeviceError> {
        if on.is_after(mark) || self.is_seen_done(mark) {
            return Ok(());
        }
        let Some(recorded) = self.event_after(mark)? else { return Ok(()) };
        self.driver.wait(&on.raw, &recorded.event)?;
        // The clock is updated only after the wait: another thread on the same stream must not
        // count as ordered before the wait is in the stream.
        // The last event of a stream that has ended covers also marks that were taken after its end.
        let covered = recorded.epoch.max(mark.epoch.saturating_add(1));
        invariant!(covered > mark.epoch, "an event covers the mark that it was recorded for");
        self.note_after(on, &recorded.clock, mark.stream, covered);
        Ok(())
    }

    /// Notes that `on` is now ordered after the marks of `stream` below `epoch`, and after the
    /// marks in `event_clock`, the vector clock of an event. Leaves out streams that are retired and
    /// done, because all their marks count as done.
    fn note_after(&self, on: &Slot<D>, event_clock: &VectorClock, stream: u32, epoch: u64) {
        // Held until the end of this function. If a stream was forgotten meanwhile, its id would
        // stay in the vector clock for ever.
        let slots = self.slots.read();
        let known =
            event_clock.iter().chain([(stream, epoch)]).filter(|(id, _)| slots.contains_key(id));
        let is_done = |id: u32, epoch: u64| {
            slots.get(&id).is_none_or(|slot| slot.done_before.load(Acquire) >= epoch)
        };
        on.known.lock().clock.raise(known, is_done);
    }
}

impl<D: EventDriver> StreamClock for Timeline<D> {
    type Stream = Stream<D>;
    type Mark = Mark;

    #[inline]
    fn default_stream(&self) -> &Stream<D> {
        &self.default
    }

    #[inline]
    fn owns(&self, on: &Stream<D>) -> bool {
        self.has_owned(on) && !on.0.ended.load(Acquire)
    }

    #[inline]
    fn has_owned(&self, on: &Stream<D>) -> bool {
        on.0.timeline == self.id
    }

    #[inline]
    fn fault(&self) -> Option<DeviceError> {
        self.driver.fault()
    }

    #[inline]
    fn takes_work(&self, on: &Stream<D>) -> bool {
        !on.0.is_capturing()
    }

    #[inline]
    fn mark(&self, on: &Stream<D>) -> Mark {
        Mark { timeline: on.0.timeline, stream: on.0.id, epoch: on.0.epoch.load(SeqCst) }
    }

    fn latest(&self, mark: Mark) -> Mark {
        let epoch = self.of_stream(mark, mark.epoch, |slot| slot.epoch.load(SeqCst));
        Mark { epoch: epoch.unwrap_or(mark.epoch), ..mark }
    }

    #[inline]
    fn same_stream(&self, a: Mark, b: Mark) -> bool {
        a.stream == b.stream
    }

    #[inline]
    fn is_on(&self, on: &Stream<D>, mark: Mark) -> bool {
        mark.stream == on.0.id
    }

    #[inline]
    fn later(&self, a: Mark, b: Mark) -> Mark {
        if a.epoch > b.epoch { a } else { b }
    }

    #[inline]
    fn is_later(&self, a: Mark, b: Mark) -> bool {
        a.stream == b.stream && a.epoch >= b.epoch
    }

    #[inline]
    fn stream_id(&self, mark: Mark) -> u64 {
        mark.stream.into()
    }

    #[inline]
    fn is_ordered(&self, on: &Stream<D>, after: Mark) -> bool {
        on.0.is_after(after)
    }

    fn order(&self, on: &Stream<D>, after: &[Mark]) -> Result<Order, DeviceError> {
        if !self.owns(on) {
            return Err(DeviceError::new(Why::Foreign, "order a stream of another device"));
        }
        for mark in after.iter().filter(|mark| !on.0.is_after(**mark)) {
            if !self.is_submitted(*mark) {
                return Ok(Order::NotYet);
            }
            if !on.0.is_capturing() {
                self.order_after(&on.0, *mark)?;
            } else if let Some(captured) = &mut on.0.known.lock().captured {
                captured.awaits(*mark);
            }
        }
        Ok(Order::Ordered)
    }

    fn takes_memory(&self, on: &Stream<D>) -> Result<(), DeviceError> {
        if !on.0.is_capturing() && self.driver.is_captured(&on.0.raw)? {
            return Err(not_submitted("memory for a stream that another library captures"));
        }
        Ok(())
    }

    fn is_submitted(&self, after: Mark) -> bool {
        self.of_stream(after, true, |slot| !slot.is_captured(after)).unwrap_or(true)
    }

    fn is_seen_done(&self, after: Mark) -> bool {
        let done = |slot: &Slot<D>| slot.done_before.load(Acquire) > slot.epoch_of(after);
        self.of_stream(after, true, done).unwrap_or(false)
    }

    fn has_event(&self, after: Mark) -> bool {
        let covered = |slot: &Slot<D>| {
            let epoch = slot.epoch_of(after);
            slot.done_before.load(Acquire) > epoch
                || slot.known.lock().events.back().is_some_and(|last| last.epoch > epoch)
        };
        self.of_stream(after, true, covered).unwrap_or(false)
    }

    fn can_order(&self, after: Mark) -> bool {
        let may_record = |slot: &Slot<D>| self.driver.may_record(&slot.raw);
        // What follows refuses a stranger.
        self.has_event(after) || self.of_stream(after, true, may_record).unwrap_or(true)
    }

    fn is_retired(&self, mark: Mark) -> bool {
        self.of_stream(mark, true, Slot::is_retired).unwrap_or(false)
    }

    /// True for a stream that the clock has forgotten because it is retired and done.
    fn is_obsolete(&self, mark: Mark) -> bool {
        self.of_stream(mark, true, |_| false).unwrap_or(false)
    }

    fn is_done(&self, after: Mark) -> Result<bool, DeviceError> {
        if self.is_seen_done(after) {
            return Ok(true);
        }
        if !self.is_submitted(after) || !self.can_order(after) {
            return Ok(false);
        }
        let Some(recorded) = self.event_after(after)? else { return Ok(true) };
        let done = self.driver.query(&recorded.event)?;
        if done {
            self.note_done(after, &recorded)?;
        }
        Ok(done)
    }

    fn synchronize(&self, after: Mark) -> Result<(), DeviceError> {
        if self.is_seen_done(after) {
            return Ok(());
        }
        let Some(recorded) = self.event_after(after)? else { return Ok(()) };
        self.driver.synchronize(&recorded.event)?;
        self.note_done(after, &recorded)
    }
}

impl<D: EventDriver> fmt::Debug for Timeline<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let streams = self.slots.read().len();
        f.debug_struct("Timeline").field("streams", &streams).finish_non_exhaustive()
    }
}
