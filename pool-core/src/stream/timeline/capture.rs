//! Streams under capture: what they are given goes into a graph and has not reached the device.
//!
//! Before a capture an event covers all that the stream was given, so no event is recorded on it,
//! and none asked for, until the capture ends. What the capture gives to the stream cannot be
//! waited for; what the capture itself would have to wait for is noted, for each launch to wait
//! for.

use super::stream::{Captured, Slot, Stream};
use super::{EventDriver, Mark, Timeline};
use crate::error::{DeviceError, Why};
use crate::stream::clock::StreamClock;
use std::sync::atomic::Ordering::{Acquire, SeqCst};

impl Captured {
    /// Notes what a launch must wait for, once.
    pub(super) fn awaits(&mut self, mark: Mark) {
        if !self.awaited.contains(&mark) {
            self.awaited.push(mark);
        }
    }
}

impl<D: EventDriver> Timeline<D> {
    /// What `stream` is given from here on is captured. Call it before the device's own capture
    /// begins, since an event is recorded. No other thread uses the stream meanwhile: its event
    /// could fall into the capture.
    ///
    /// # Errors
    ///
    /// [`Why::Foreign`] for a stream of another device, [`Why::NotSubmitted`] for one under capture
    /// already, or what the device said.
    pub fn begin_capture(&self, stream: &Stream<D>) -> Result<(), DeviceError> {
        let slot = self.of_ours(stream)?;
        if slot.is_capturing() {
            return Err(not_submitted("begin a second capture of a stream"));
        }
        let before = self.mark(stream);
        self.event_after(before)?;
        let mut known = slot.known.lock();
        // A launch elsewhere is behind what the stream was given, and what that was behind.
        let (clock, awaited) = (known.clock.clone(), vec![before]);
        known.captured = Some(Captured { clock, awaited });
        slot.captured_from.store(slot.epoch.load(SeqCst), SeqCst);
        drop(known);
        // Calls that other threads make on the stream end before the capture begins.
        drop(slot.calls.write());
        Ok(())
    }

    /// The capture of `stream` has ended. Returns what each launch must be ordered behind: what the
    /// stream was given before, and what the captured work asked for.
    pub fn end_capture(&self, stream: &Stream<D>) -> Vec<Mark> {
        let slot = &stream.0;
        slot.captured_from.store(0, SeqCst);
        let mut known = slot.known.lock();
        let Some(Captured { clock, awaited }) = known.captured.take() else { return Vec::new() };
        known.clock = clock;
        awaited
    }

    /// Inside one capture, `on` waits for all that `after` was given. The only events of a capture,
    /// made because the program asks; they are edges of the graph.
    ///
    /// # Errors
    ///
    /// [`Why::Foreign`] for a stream of another device, [`Why::NotSubmitted`] for one that is not
    /// under capture, or what the device said.
    pub fn join_captured(&self, on: &Stream<D>, after: &Stream<D>) -> Result<(), DeviceError> {
        let (on, after) = (self.of_ours(on)?, self.of_ours(after)?);
        if !on.is_capturing() || !after.is_capturing() {
            return Err(not_submitted("join streams that are not both captured"));
        }
        let epoch = after.epoch.fetch_add(1, SeqCst) + 1;
        let event = self.driver.record_edge(&after.raw)?;
        self.driver.wait(&on.raw, &event)?;
        let passed_on = after.known.lock().clock.clone();
        on.known.lock().note_after(passed_on, after.id, epoch);
        Ok(())
    }

    /// Whether `stream` is under capture.
    #[must_use]
    pub fn is_capturing(&self, stream: &Stream<D>) -> bool {
        stream.0.is_capturing()
    }

    fn of_ours<'s>(&self, stream: &'s Stream<D>) -> Result<&'s Slot<D>, DeviceError> {
        if let Some(fault) = self.fault() {
            return Err(fault);
        }
        let refused = DeviceError::new(Why::Foreign, "capture a stream of another device", 0);
        if self.owns(stream) { Ok(&stream.0) } else { Err(refused) }
    }
}

impl<D: EventDriver> Slot<D> {
    pub(super) fn is_capturing(&self) -> bool {
        self.captured_from.load(Acquire) > 0
    }

    /// Whether a mark lies in the capture that is going on.
    pub(super) fn is_captured(&self, mark: Mark) -> bool {
        let from = self.captured_from.load(Acquire);
        from > 0 && mark.epoch >= from
    }
}

pub(super) fn not_submitted(call: &'static str) -> DeviceError {
    DeviceError::new(Why::NotSubmitted, call, 0)
}
