//! The state of a simulated device: memory, streams that run late, and what used each byte last.

use crate::error::{DeviceError, Why};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Blocks start at multiples of this many bytes.
pub(super) const ALIGNMENT: u64 = 4096;
/// Uses are remembered for each so many bytes.
const GRAIN: u64 = 512;
/// What fresh memory shows: anything but zeroes.
const FRESH: u8 = 0xA5;

/// The calls of a simulated device that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimCall {
    /// Taking a block.
    Allocate,
    /// Giving one back. The device keeps it then, and nobody can reach it.
    Free,
    /// Recording an event.
    Record,
    /// Waiting for one, on the device.
    Wait,
    /// Asking for one.
    Query,
}

/// Successful calls of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SimCalls {
    /// Blocks taken.
    pub allocations: u64,
    /// Blocks given back.
    pub frees: u64,
    /// Events recorded.
    pub records: u64,
    /// Waits on the device.
    pub waits: u64,
    /// Queries of events.
    pub queries: u64,
}

/// For each stream, how many of its operations something is ordered after.
type VectorClock = HashMap<usize, u64>;

#[derive(Debug)]
pub(super) struct Event {
    stream: usize,
    at: u64,
    clock: VectorClock,
}

/// A stream. `clock`: what its next operation is ordered after. `late`: given, not yet run.
#[derive(Debug, Default)]
struct Queue {
    given: u64,
    done: u64,
    clock: VectorClock,
    late: VecDeque<Op>,
}

#[derive(Debug)]
enum Op {
    Work,
    Wait { stream: usize, at: u64 },
}

#[derive(Debug)]
struct Fault {
    call: SimCall,
    skip: u64,
    times: u64,
}

#[derive(Debug)]
pub(super) struct Engine {
    id: u64,
    capacity: u64,
    held: u64,
    held_peak: u64,
    next: u64,
    live: HashMap<u64, u64>,
    calls: SimCalls,
    script: Vec<Fault>,
    streams: Vec<Queue>,
    /// The last use of each grain: the stream, and which of its operations.
    uses: HashMap<u64, (usize, u64)>,
    hazards: Vec<String>,
    contents: HashMap<u64, Vec<u8>>,
}

impl Engine {
    pub(super) fn new(capacity: u64) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT.fetch_add(1, Relaxed),
            capacity,
            held: 0,
            held_peak: 0,
            next: ALIGNMENT,
            live: HashMap::new(),
            calls: SimCalls::default(),
            script: Vec::new(),
            streams: vec![Queue::default()],
            uses: HashMap::new(),
            hazards: Vec::new(),
            contents: HashMap::new(),
        }
    }

    pub(super) fn allocate(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        self.fault(SimCall::Allocate, Why::OutOfMemory, "sim allocate")?;
        let full = DeviceError::new(Why::OutOfMemory, "sim allocate", 0);
        let held =
            self.held.checked_add(bytes).filter(|held| *held <= self.capacity).ok_or(full)?;
        let end = bytes.max(1).checked_next_multiple_of(ALIGNMENT);
        let next = end.and_then(|bytes| self.next.checked_add(bytes)).ok_or(full)?;
        let at = std::mem::replace(&mut self.next, next);
        self.held = held;
        self.held_peak = self.held_peak.max(held);
        self.live.insert(at, bytes);
        self.calls.allocations += 1;
        Ok(at)
    }

    pub(super) fn free(&mut self, at: u64) -> Result<(), DeviceError> {
        self.fault(SimCall::Free, Why::Other, "sim free")?;
        let unknown = DeviceError::new(Why::Foreign, "sim free", 0);
        self.held -= self.live.remove(&at).ok_or(unknown)?;
        self.contents.remove(&at);
        self.calls.frees += 1;
        Ok(())
    }

    pub(super) fn write(&mut self, block: u64, size: u64, offset: u64, bytes: u64, byte: u8) {
        let index = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let contents = self.contents.entry(block).or_insert_with(|| vec![FRESH; index(size)]);
        if let Some(range) = contents.get_mut(index(offset)..index(offset + bytes)) {
            range.fill(byte);
        }
    }

    pub(super) fn read(&self, block: u64, offset: u64, bytes: u64) -> Vec<u8> {
        let index = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let contents = self.contents.get(&block);
        let range = contents.and_then(|c| c.get(index(offset)..index(offset + bytes)));
        range.map_or_else(|| vec![FRESH; index(bytes)], <[u8]>::to_vec)
    }

    pub(super) fn new_stream(&mut self) -> usize {
        self.streams.push(Queue::default());
        self.streams.len() - 1
    }

    pub(super) fn kernel(&mut self, on: usize, bytes: Range<u64>) {
        let before = self.streams[on].clock.clone();
        let at = self.give(on, Op::Work);
        for grain in bytes.start / GRAIN..bytes.end.div_ceil(GRAIN) {
            let Some((stream, op)) = self.uses.insert(grain, (on, at)) else { continue };
            if stream != on && before.get(&stream).copied().unwrap_or(0) < op {
                let byte = grain * GRAIN;
                self.hazards.push(format!(
                    "byte {byte}: operation {at} of stream {on} is not ordered after operation \
                     {op} of stream {stream}"
                ));
            }
        }
    }

    pub(super) fn record(&mut self, on: usize) -> Result<Event, DeviceError> {
        self.fault(SimCall::Record, Why::Other, "sim record")?;
        self.calls.records += 1;
        let at = self.give(on, Op::Work);
        Ok(Event { stream: on, at, clock: self.streams[on].clock.clone() })
    }

    pub(super) fn wait(&mut self, on: usize, event: &Event) -> Result<(), DeviceError> {
        self.fault(SimCall::Wait, Why::Other, "sim wait")?;
        self.calls.waits += 1;
        self.give(on, Op::Wait { stream: event.stream, at: event.at });
        for (stream, at) in &event.clock {
            let known = self.streams[on].clock.entry(*stream).or_default();
            *known = (*known).max(*at);
        }
        Ok(())
    }

    pub(super) fn query(&mut self, event: &Event) -> Result<bool, DeviceError> {
        self.fault(SimCall::Query, Why::Other, "sim query")?;
        self.calls.queries += 1;
        Ok(self.streams[event.stream].done >= event.at)
    }

    pub(super) fn synchronize(&mut self, event: &Event) {
        while self.streams[event.stream].done < event.at {
            self.step(event.stream);
        }
    }

    pub(super) fn run(&mut self) {
        for stream in 0..self.streams.len() {
            self.run_stream(stream);
        }
    }

    pub(super) fn run_stream(&mut self, stream: usize) {
        while !self.streams[stream].late.is_empty() {
            self.step(stream);
        }
    }

    /// Runs one operation of a stream, or what it waits for first.
    fn step(&mut self, stream: usize) {
        let mut at = stream;
        while let Some(Op::Wait { stream: other, at: until }) = self.streams[at].late.front()
            && self.streams[*other].done < *until
        {
            at = *other;
        }
        let queue = &mut self.streams[at];
        queue.done += u64::from(queue.late.pop_front().is_some());
    }

    fn give(&mut self, on: usize, op: Op) -> u64 {
        let queue = &mut self.streams[on];
        queue.given += 1;
        queue.late.push_back(op);
        queue.clock.insert(on, queue.given);
        queue.given
    }

    pub(super) fn fail(&mut self, call: SimCall, skip: u64, times: u64) {
        self.script.push(Fault { call, skip, times });
    }

    fn fault(&mut self, call: SimCall, why: Why, name: &'static str) -> Result<(), DeviceError> {
        for fault in self.script.iter_mut().filter(|fault| fault.call == call && fault.times > 0) {
            if fault.skip == 0 {
                fault.times -= 1;
                return Err(DeviceError::new(why, name, -1));
            }
            fault.skip -= 1;
        }
        Ok(())
    }

    pub(super) fn is_busy(&self) -> bool {
        self.streams.iter().any(|queue| !queue.late.is_empty())
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn hazards(&self) -> &[String] {
        &self.hazards
    }

    pub(super) fn calls(&self) -> SimCalls {
        self.calls
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.held
    }

    pub(super) fn held_peak_bytes(&self) -> u64 {
        self.held_peak
    }
}
