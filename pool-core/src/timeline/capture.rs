//! Streams under capture: what they are given goes into a graph and has not reached the device.
//!
//! Before a capture an event covers all that the stream was given, so no event is recorded on it,
//! and none asked for, until the capture ends. What the capture gives to the stream cannot be
//! waited for; what the capture itself would have to wait for is noted, for each launch to wait
//! for.

use super::{Mark, Slot, Stream, Timeline};
use crate::clock::StreamClock;
use crate::error::{DeviceError, Why};
use crate::timeline::EventDriver;
use std::sync::atomic::Ordering::{Acquire, SeqCst};

impl<D: EventDriver> Timeline<D> {
    /// What `stream` is given from here on is captured. Call it before the device's own capture
    /// begins, since an event is recorded.
    ///
    /// # Errors
    ///
    /// [`Why::Foreign`] for a stream of another device, [`Why::NotSubmitted`] for one under capture
    /// already, or what the device said.
    pub fn begin_capture(&self, stream: &Stream<D>) -> Result<(), DeviceError> {
        let slot = self.of_ours(stream)?;
        if slot.captured_from.load(SeqCst) > 0 {
            return Err(not_submitted("begin a second capture of a stream"));
        }
        self.event_after(self.mark(stream))?;
        slot.captured_from.store(slot.epoch.load(SeqCst), SeqCst);
        Ok(())
    }

    /// The capture of `stream` has ended. Returns what a launch must wait for: what the captured
    /// work asked to be ordered behind.
    pub fn end_capture(&self, stream: &Stream<D>) -> Vec<Mark> {
        let slot = &stream.0;
        slot.captured_from.store(0, SeqCst);
        std::mem::take(&mut slot.known.lock().awaited)
    }

    /// Inside one capture, `on` waits for all that `after` was given. The only events of a capture,
    /// made because the program asks; they are edges of the graph.
    ///
    /// # Errors
    ///
    /// [`Why::Foreign`] for a stream of another device, or what the device said.
    pub fn join_captured(&self, on: &Stream<D>, after: &Stream<D>) -> Result<(), DeviceError> {
        let (on, after) = (self.of_ours(on)?, self.of_ours(after)?);
        let epoch = after.epoch.fetch_add(1, SeqCst) + 1;
        let event = self.driver.record(&after.raw)?;
        self.driver.wait(&on.raw, &event)?;
        let passed_on = after.known.lock().clock.clone();
        on.known.lock().note_after(passed_on, after.id, epoch);
        Ok(())
    }

    fn of_ours<'s>(&self, stream: &'s Stream<D>) -> Result<&'s Slot<D>, DeviceError> {
        let refused = DeviceError::new(Why::Foreign, "capture a stream of another device", 0);
        if self.owns(stream) { Ok(&stream.0) } else { Err(refused) }
    }
}

impl<D: EventDriver> Slot<D> {
    /// Whether a mark lies in the capture that is going on.
    pub(super) fn is_captured(&self, mark: Mark) -> bool {
        let from = self.captured_from.load(Acquire);
        from > 0 && mark.epoch >= from
    }
}

pub(super) fn not_submitted(call: &'static str) -> DeviceError {
    DeviceError::new(Why::NotSubmitted, call, 0)
}
