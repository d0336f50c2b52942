//! One stream of a timeline: its epochs, its latest events, and the streams it is ordered after.

use crate::stream::timeline::{EventDriver, Mark};
use crate::sys::atomic::{AtomicBool, AtomicU64, Ordering::Acquire};
use crate::sys::{Mutex, RwLock};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

/// A stream that a [`Timeline`](super::Timeline) knows. Clones are the same stream.
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

/// For each stream, the epoch below which all its marks are covered; in the order of the streams. A
/// device has few streams at once, and each event copies this.
#[derive(Clone, Default)]
pub(super) struct VectorClock(Vec<(u32, u64)>);

impl VectorClock {
    fn at(&self, stream: u32) -> Result<usize, usize> {
        self.0.binary_search_by_key(&stream, |(known, _)| *known)
    }

    /// Returns the epoch of a stream.
    fn get(&self, stream: u32) -> Option<u64> {
        self.at(stream).ok().map(|at| self.0[at].1)
    }

    /// Raises the epoch of a stream.
    fn raise(&mut self, stream: u32, epoch: u64) {
        match self.at(stream) {
            Ok(at) => self.0[at].1 = epoch.max(self.0[at].1),
            Err(at) => self.0.insert(at, (stream, epoch)),
        }
    }

    /// Forgets a stream.
    pub(super) fn remove(&mut self, stream: u32) {
        if let Ok(at) = self.at(stream) {
            self.0.remove(at);
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
    /// Notes that the stream is now after the marks of these streams below these epochs.
    pub(super) fn note_after(&mut self, known: impl Iterator<Item = (u32, u64)>) {
        for (stream, epoch) in known {
            self.clock.raise(stream, epoch);
        }
    }

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
