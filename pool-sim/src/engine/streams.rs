//! Streams that run late: what was given to each, in what order it may run, and events.

use super::{Effect, Engine};
use crate::script::SimCall;
use crate::shadow::VectorClock;
use pool_core::{DeviceError, Why};
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;

/// The maximum number of ended streams that a new stream looks at.
const MAX_ENDED_LOOKS: usize = 4;

/// An event that was recorded.
#[derive(Clone, Debug)]
pub struct Event {
    pub(super) stream: usize,
    pub(super) at: u64,
    pub(super) clock: VectorClock,
    /// The capture that it is an edge of, and which of its events it is.
    pub(super) captured: Option<(u64, usize)>,
}

impl Event {
    /// Returns the number of the capture that it is an edge of.
    #[must_use]
    pub fn capture(&self) -> Option<u64> {
        self.captured.map(|(id, _)| id)
    }
}

/// A stream. `clock`: what its next operation is ordered after, beyond what the host has seen.
/// `late`: given, not yet run.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) given: u64,
    pub(super) done: u64,
    pub(super) clock: VectorClock,
    pub(super) late: VecDeque<Op>,
}

#[derive(Clone)]
pub(super) enum Op {
    /// A kernel of which only the uses matter.
    Work,
    /// It passes by itself once what is before it has run.
    Event,
    Wait {
        stream: usize,
        at: u64,
    },
    Write {
        at: u64,
        bytes: Vec<u8>,
    },
    Fill {
        bytes: Range<u64>,
        byte: u8,
    },
    Effect(Effect),
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Work => "Work",
            Self::Event => "Event",
            Self::Wait { .. } => "Wait",
            Self::Write { .. } => "Write",
            Self::Fill { .. } => "Fill",
            Self::Effect(_) => "Effect",
        })
    }
}

impl Engine {
    /// Returns the number of a new stream. It has the place of a stream that has ended, if the host
    /// has seen all work of that done, and then counts its operations on from there: what was
    /// ordered after those is so still.
    pub fn new_stream(&mut self) -> usize {
        for _ in 0..self.ended.len().min(MAX_ENDED_LOOKS) {
            let Some(stream) = self.ended.pop_front() else { break };
            let queue = &mut self.streams[stream];
            if queue.late.is_empty()
                && self.host.of(stream) >= queue.given
                && self.captures.of(stream).is_none()
            {
                queue.clock = VectorClock::default();
                return stream;
            }
            self.ended.push_back(stream);
        }
        self.streams.push(Queue::default());
        self.streams.len() - 1
    }

    /// Ends a stream: its owner gives it nothing more. Its queued work still runs.
    pub fn end_stream(&mut self, stream: usize) {
        self.ended.push_back(stream);
    }

    /// Returns the number of streams that have a place, and of entries of all clocks.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> (usize, usize) {
        let clocks = self.streams.iter().map(|queue| &queue.clock).chain([&self.host]);
        let entries = clocks.map(VectorClock::len).sum::<usize>();
        (self.streams.len(), entries + self.shadow.clock_entries())
    }

    /// Records an event.
    ///
    /// # Errors
    ///
    /// When the script says so.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; pub use pool_sim::conformance; }
    /// use bucketpool::{Why, sim::{SimCall, engine::Engine}};
    ///
    /// let mut engine = Engine::new(4096);
    /// let (load, compute) = (engine.new_stream(), engine.new_stream());
    /// let at = engine.allocate(4096)?;
    /// engine.kernel(load, at..at + 4096);
    /// let loaded = engine.record(load)?;
    /// engine.wait(compute, &loaded)?;
    /// assert!(!engine.query(&loaded)?); // the kernel has not run
    /// engine.fail(SimCall::Record, 0, 1);
    /// assert_eq!(engine.record(load).unwrap_err().why, Why::Other);
    /// # Ok::<(), pool_core::DeviceError>(())
    /// ```
    pub fn record(&mut self, on: usize) -> Result<Event, DeviceError> {
        self.drift();
        self.faults.check(SimCall::Record, Why::Other, "sim record")?;
        self.calls.records += 1;
        Ok(self.captures.record(on).unwrap_or_else(|| self.event(on)))
    }

    pub(super) fn event(&mut self, on: usize) -> Event {
        let at = self.give(on, Op::Event);
        Event { stream: on, at, clock: self.streams[on].clock.clone(), captured: None }
    }

    /// Makes what `on` is given from here on wait for an event.
    ///
    /// # Errors
    ///
    /// [`Why::NotSubmitted`] if `on` is under capture and the event is not of that capture, or if
    /// the capture of the event has ended; [`Why::Other`] if the script makes the call fail.
    ///
    /// See [`Engine::record`] for an example.
    pub fn wait(&mut self, on: usize, event: &Event) -> Result<(), DeviceError> {
        self.faults.check(SimCall::Wait, Why::Other, "sim wait")?;
        let captured = self.captures.wait(on, event)?;
        self.calls.waits += 1;
        if !captured {
            self.wait_for(on, event);
        }
        Ok(())
    }

    pub(super) fn wait_for(&mut self, on: usize, event: &Event) {
        self.give(on, Op::Wait { stream: event.stream, at: event.at });
        self.streams[on].clock.merge(&event.clock);
    }

    /// Whether an event has passed.
    ///
    /// # Errors
    ///
    /// [`Why::NotSubmitted`] for an event of a capture; [`Why::Other`] if the script makes the call
    /// fail.
    ///
    /// See [`Engine::record`] for an example.
    pub fn query(&mut self, event: &Event) -> Result<bool, DeviceError> {
        self.drift();
        self.faults.check(SimCall::Query, Why::Other, "sim query")?;
        if event.captured.is_some() {
            return Err(
                DeviceError::new(Why::NotSubmitted, "sim query of a captured event").code(907)
            );
        }
        self.calls.queries += 1;
        self.pass(event.stream);
        let done = self.streams[event.stream].done >= event.at;
        if done {
            self.host_sees(event.stream, &event.clock);
        }
        Ok(done)
    }

    /// Returns whether an event has passed. Unlike with [`Engine::query`], the host does not learn
    /// of it.
    pub fn has_passed(&mut self, event: &Event) -> bool {
        self.pass(event.stream);
        self.streams[event.stream].done >= event.at
    }

    /// Returns whether what `on` is given from here on already runs after an event.
    #[must_use]
    pub fn is_after(&self, on: usize, event: &Event) -> bool {
        let queue = &self.streams[on];
        queue.clock.of(event.stream).max(self.host.of(event.stream)) >= event.at
    }

    /// Events at the head of a queue pass, and waits for what is done: only work runs late.
    pub(super) fn pass(&mut self, stream: usize) {
        loop {
            match self.streams[stream].late.front() {
                Some(Op::Event) => {}
                Some(Op::Wait { stream: other, at }) => {
                    let (other, at) = (*other, *at);
                    if self.streams[other].done < at {
                        self.pass(other);
                    }
                    if self.streams[other].done < at {
                        return;
                    }
                }
                _ => return,
            }
            self.step(stream);
        }
    }

    /// Runs a stream up to an event, and what that waits for.
    pub fn synchronize(&mut self, event: &Event) {
        self.run_to(event.stream, event.at);
        self.host_sees(event.stream, &event.clock);
    }

    /// Notes what the host has seen done, up to an event of a stream.
    fn host_sees(&mut self, stream: usize, clock: &VectorClock) {
        self.host.merge(clock);
        self.streams[stream].clock.forget(&self.host);
    }

    /// How many operations a stream was given.
    #[must_use]
    pub fn given(&self, stream: usize) -> u64 {
        self.streams[stream].given
    }

    /// Runs a stream up to an operation of it, and what that waits for.
    pub fn run_to(&mut self, stream: usize, operation: u64) {
        while self.streams[stream].done < operation {
            self.step(stream);
        }
    }

    /// Runs everything that is queued.
    pub fn run(&mut self) {
        for stream in 0..self.streams.len() {
            self.run_stream(stream);
        }
    }

    /// Runs what is queued on one stream, and what that waits for.
    pub fn run_stream(&mut self, stream: usize) {
        while !self.streams[stream].late.is_empty() {
            self.step(stream);
        }
    }

    /// Waits for a stream: runs what is queued on it, and the host knows.
    pub fn synchronize_stream(&mut self, stream: usize) {
        self.run_stream(stream);
        let clock = std::mem::take(&mut self.streams[stream].clock);
        self.host.merge(&clock);
    }

    /// Waits for the whole device.
    pub fn synchronize_all(&mut self) {
        for stream in 0..self.streams.len() {
            self.synchronize_stream(stream);
        }
    }

    /// Runs one operation of a stream, or what it waits for first.
    pub fn step(&mut self, stream: usize) {
        let mut at = stream;
        while let Some(Op::Wait { stream: other, at: until }) = self.streams[at].late.front()
            && self.streams[*other].done < *until
        {
            at = *other;
        }
        if let Some(op) = self.streams[at].late.pop_front() {
            self.effect(&op);
            self.streams[at].done += 1;
        }
    }

    pub(super) fn give(&mut self, on: usize, op: Op) -> u64 {
        let queue = &mut self.streams[on];
        queue.clock.forget(&self.host);
        queue.given += 1;
        queue.late.push_back(op);
        queue.clock.raise(on, queue.given);
        queue.given
    }
}
