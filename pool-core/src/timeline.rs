//! Epochs and lazy events: the clock of a device that has streams and events.
//!
//! An epoch is the stretch of a stream between two events. An event is recorded when somebody asks
//! about a mark that no event covers yet, so at most one per epoch, and none when nobody asks. What
//! a stream has waited for is remembered and passed on with its own events, so a wait that follows
//! from earlier waits is never made.
//!
//! Absent: destroying streams. A stream that was registered once stays known.

use crate::clock::{Order, StreamClock};
use crate::error::{DeviceError, Why};
use parking_lot::{Mutex, RwLock};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::SeqCst};

/// Events of a stream that are remembered at most. Forgetting one costs a later event.
const EVENTS_KEPT: usize = 16;

/// The four device calls that stream order needs.
pub trait EventDriver: Send + Sync + 'static {
    /// The device's own stream.
    type Raw: Send + Sync + 'static;
    /// The device's own event. Dropping it destroys it.
    type Event: Send + Sync + 'static;
    /// Records a new event on `on`.
    ///
    /// # Errors
    ///
    /// What the device said.
    fn record(&self, on: &Self::Raw) -> Result<Self::Event, DeviceError>;
    /// Makes what `on` is given from here on wait for `event`, on the device.
    ///
    /// # Errors
    ///
    /// What the device said.
    fn wait(&self, on: &Self::Raw, event: &Self::Event) -> Result<(), DeviceError>;
    /// Whether `event` has passed.
    ///
    /// # Errors
    ///
    /// What the device said.
    fn query(&self, event: &Self::Event) -> Result<bool, DeviceError>;
    /// Blocks the host until `event` has passed.
    ///
    /// # Errors
    ///
    /// What the device said.
    fn synchronize(&self, event: &Self::Event) -> Result<(), DeviceError>;
}

/// A point in a stream: what was given to it while its epoch was at most this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The timeline that it belongs to: a stranger's mark is refused.
    timeline: u32,
    stream: u32,
    epoch: u64,
}

/// A stream that a [`Timeline`] knows. Clones are the same stream.
pub struct Stream<D: EventDriver>(Arc<Slot<D>>);

struct Slot<D: EventDriver> {
    /// The timeline that knows this stream; numbers are never used twice.
    timeline: u32,
    id: u32,
    raw: D::Raw,
    epoch: AtomicU64,
    /// Marks of epochs below this were seen done by a query.
    done_before: AtomicU64,
    known: Mutex<Known<D::Event>>,
}

/// For each stream, marks of epochs below this are covered.
type VectorClock = HashMap<u32, u64>;

struct Known<E> {
    /// The latest events, oldest first. Those that are seen done are dropped.
    events: VecDeque<Arc<Recorded<E>>>,
    /// What the stream is ordered after.
    clock: VectorClock,
}

/// Covers what was marked before `epoch`, and what the stream was itself ordered after by then.
struct Recorded<E> {
    epoch: u64,
    event: E,
    clock: VectorClock,
}

/// The clock of one device with streams and events.
pub struct Timeline<D: EventDriver> {
    id: u32,
    driver: D,
    default: Stream<D>,
    slots: RwLock<Vec<Arc<Slot<D>>>>,
}

impl<D: EventDriver> Timeline<D> {
    /// A clock whose default stream is `default`.
    pub fn new(driver: D, default: D::Raw) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = NEXT.fetch_add(1, SeqCst);
        let slot = Arc::new(Slot::new(id, 0, default));
        Self { id, driver, default: Stream(slot.clone()), slots: RwLock::new(vec![slot]) }
    }

    /// Makes one of the device's streams known. Each raw stream is registered once.
    ///
    /// ```
    /// use pool_core::{DeviceAllocator, sim::SimDevice};
    ///
    /// let device = SimDevice::new();
    /// let stream = device.stream(); // registers a new simulated stream
    /// assert_eq!(*stream.raw(), 1); // 0 is the default stream
    /// ```
    pub fn register(&self, raw: D::Raw) -> Stream<D> {
        let mut slots = self.slots.write();
        let id = u32::try_from(slots.len()).unwrap_or(u32::MAX);
        let slot = Arc::new(Slot::new(self.id, id, raw));
        slots.push(slot.clone());
        Stream(slot)
    }

    fn slot(&self, mark: Mark) -> Result<Arc<Slot<D>>, DeviceError> {
        let foreign = DeviceError::new(Why::Foreign, "a mark of another device", 0);
        let slots = self.slots.read();
        let slot = slots.get(mark.stream as usize).filter(|_| mark.timeline == self.id);
        slot.cloned().ok_or(foreign)
    }

    /// The first event that covers `mark`, or a new one: the earlier the event, the less of the
    /// stream's later work is waited for with it.
    fn event_after(&self, mark: Mark) -> Result<Arc<Recorded<D::Event>>, DeviceError> {
        let slot = self.slot(mark)?;
        let clock = {
            let known = slot.known.lock();
            let covers = |recorded: &&Arc<Recorded<D::Event>>| recorded.epoch > mark.epoch;
            if let Some(first) = known.events.iter().find(covers) {
                return Ok(first.clone());
            }
            known.clock.clone()
        };
        // The epoch moves BEFORE the event is recorded: a use that ends with the old epoch was
        // given to the stream before the event. The other way round, work given between the two
        // would count as covered.
        let epoch = slot.epoch.fetch_add(1, SeqCst) + 1;
        let new = Arc::new(Recorded { epoch, event: self.driver.record(&slot.raw)?, clock });
        let events = &mut slot.known.lock().events;
        let at = events.partition_point(|recorded| recorded.epoch < epoch);
        events.insert(at, new.clone());
        if events.len() > EVENTS_KEPT {
            events.pop_front();
        }
        Ok(new)
    }

    /// A query has seen this event pass.
    fn seen_done(&self, mark: Mark, recorded: &Recorded<D::Event>) -> Result<(), DeviceError> {
        let slot = self.slot(mark)?;
        slot.done_before.fetch_max(recorded.epoch, SeqCst);
        slot.known.lock().events.retain(|event| event.epoch > recorded.epoch);
        Ok(())
    }

    fn order_after(&self, on: &Slot<D>, mark: Mark) -> Result<(), DeviceError> {
        if on.is_after(mark) || self.is_seen_done(mark) {
            return Ok(());
        }
        let recorded = self.event_after(mark)?;
        self.driver.wait(&on.raw, &recorded.event)?;
        // Only now: another thread on the same stream must not find itself ordered before the
        // wait is in the stream.
        let clock = &mut on.known.lock().clock;
        let passed_on = recorded.clock.iter().map(|(stream, epoch)| (*stream, *epoch));
        for (stream, epoch) in passed_on.chain([(mark.stream, recorded.epoch)]) {
            let known = clock.entry(stream).or_default();
            *known = epoch.max(*known);
        }
        Ok(())
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
        on.0.timeline == self.id
    }

    #[inline]
    fn mark(&self, on: &Stream<D>) -> Mark {
        Mark { timeline: self.id, stream: on.0.id, epoch: on.0.epoch.load(SeqCst) }
    }

    fn latest(&self, mark: Mark) -> Mark {
        self.slot(mark).map_or(mark, |slot| Mark { epoch: slot.epoch.load(SeqCst), ..mark })
    }

    #[inline]
    fn same_stream(&self, a: Mark, b: Mark) -> bool {
        a.stream == b.stream
    }

    #[inline]
    fn later(&self, a: Mark, b: Mark) -> Mark {
        if a.epoch > b.epoch { a } else { b }
    }

    #[inline]
    fn lane(&self, mark: Mark) -> u64 {
        mark.stream.into()
    }

    #[inline]
    fn is_ordered(&self, on: &Stream<D>, after: Mark) -> bool {
        on.0.is_after(after)
    }

    fn order(&self, on: &Stream<D>, after: &[Mark]) -> Result<Order, DeviceError> {
        if !self.owns(on) {
            return Err(DeviceError::new(Why::Foreign, "order a stream of another device", 0));
        }
        for mark in after {
            self.order_after(&on.0, *mark)?;
        }
        Ok(Order::Ordered)
    }

    fn is_seen_done(&self, after: Mark) -> bool {
        let slots = self.slots.read();
        let slot = slots.get(after.stream as usize).filter(|_| after.timeline == self.id);
        slot.is_some_and(|slot| slot.done_before.load(Acquire) > after.epoch)
    }

    fn is_done(&self, after: Mark) -> Result<bool, DeviceError> {
        if self.is_seen_done(after) {
            return Ok(true);
        }
        let recorded = self.event_after(after)?;
        let done = self.driver.query(&recorded.event)?;
        if done {
            self.seen_done(after, &recorded)?;
        }
        Ok(done)
    }

    fn synchronize(&self, after: Mark) -> Result<(), DeviceError> {
        if self.is_seen_done(after) {
            return Ok(());
        }
        let recorded = self.event_after(after)?;
        self.driver.synchronize(&recorded.event)?;
        self.seen_done(after, &recorded)
    }
}

impl<D: EventDriver> Slot<D> {
    fn new(timeline: u32, id: u32, raw: D::Raw) -> Self {
        let known = Mutex::new(Known { events: VecDeque::new(), clock: HashMap::new() });
        Self { timeline, id, raw, epoch: AtomicU64::new(0), done_before: AtomicU64::new(0), known }
    }

    #[inline]
    fn is_after(&self, mark: Mark) -> bool {
        (mark.stream == self.id && mark.timeline == self.timeline)
            || self.known.lock().clock.get(&mark.stream).is_some_and(|epoch| *epoch > mark.epoch)
    }
}

impl<D: EventDriver> Stream<D> {
    /// The device's own stream.
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

impl<D: EventDriver> fmt::Debug for Timeline<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let streams = self.slots.read().len();
        f.debug_struct("Timeline").field("streams", &streams).finish_non_exhaustive()
    }
}
