//! Streams under capture: their work goes into a graph and has not reached the device.
//!
//! An event covers all work that the stream was given before the capture. Until the capture ends,
//! the clock records no event on the stream and queries none. Captured work cannot be waited for
//! outside of its capture. The clock notes the marks that the captured work would have to wait for,
//! and each launch waits for them.

use crate::port::{DeviceError, StreamClock, Why};
use crate::stream::timeline::stream::{Captured, Slot, Stream};
use crate::stream::timeline::{EventDriver, Mark, Timeline};
use std::sync::atomic::Ordering::{Acquire, SeqCst};

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
