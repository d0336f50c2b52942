//! The state of a simulated device: memory, streams that run late, and what used each byte last.

use super::script::{Script, SimCall, SimCalls};
use crate::error::{DeviceError, Why};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Blocks start at multiples of this many bytes.
pub(super) const ALIGNMENT: u64 = 4096;
/// Uses are remembered for each so many bytes.
const GRAIN: u64 = 512;
/// What fresh memory shows: anything but zeroes.
const FRESH: u8 = 0xA5;

/// For each stream, how many of its operations something is ordered after.
type VectorClock = HashMap<usize, u64>;

/// An event that was recorded.
#[derive(Debug)]
pub struct Event {
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
    /// An event, or a kernel of which only the uses matter.
    Work,
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
}

/// A simulated device without the port: what `SimDevice` and the double of libcuda share.
#[derive(Debug)]
pub struct Engine {
    id: u64,
    capacity: u64,
    held: u64,
    held_peak: u64,
    next: u64,
    live: BTreeMap<u64, u64>,
    calls: SimCalls,
    script: Script,
    streams: Vec<Queue>,
    /// What the host has seen done, and so all that it gives from then on is ordered after.
    host: VectorClock,
    /// The last use of each grain: the stream, and which of its operations.
    uses: HashMap<u64, (usize, u64)>,
    hazards: Vec<String>,
    contents: HashMap<u64, Vec<u8>>,
}

impl Engine {
    /// A device that holds at most `capacity` bytes, with a default stream, number 0.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT.fetch_add(1, Relaxed),
            capacity,
            held: 0,
            held_peak: 0,
            next: ALIGNMENT,
            live: BTreeMap::new(),
            calls: SimCalls::default(),
            script: Script::default(),
            streams: vec![Queue::default()],
            host: VectorClock::new(),
            uses: HashMap::new(),
            hazards: Vec::new(),
            contents: HashMap::new(),
        }
    }

    /// Takes a block.
    ///
    /// # Errors
    ///
    /// [`Why::OutOfMemory`] over the capacity, or when the script says so.
    pub fn allocate(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        self.script.check(SimCall::Allocate, Why::OutOfMemory, "sim allocate")?;
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

    /// Gives a block back. Does not wait for anything.
    ///
    /// # Errors
    ///
    /// [`Why::Foreign`] for an address at which no block begins, or when the script says so.
    pub fn free(&mut self, at: u64) -> Result<(), DeviceError> {
        self.script.check(SimCall::Free, Why::Other, "sim free")?;
        let unknown = DeviceError::new(Why::Foreign, "sim free", 0);
        let bytes = self.live.remove(&at).ok_or(unknown)?;
        self.held -= bytes;
        self.check_unused(at, bytes);
        self.contents.remove(&at);
        self.calls.frees += 1;
        Ok(())
    }

    /// Queues writing `bytes` at an address.
    pub fn write(&mut self, on: usize, at: u64, bytes: Vec<u8>) {
        self.uses(on, at..at + bytes.len() as u64);
        self.give(on, Op::Write { at, bytes });
    }

    /// Queues filling a range with a byte.
    pub fn fill(&mut self, on: usize, bytes: Range<u64>, byte: u8) {
        self.uses(on, bytes.clone());
        self.give(on, Op::Fill { bytes, byte });
    }

    /// What a range shows once everything given to `on` so far has run.
    pub fn read(&mut self, on: usize, bytes: Range<u64>) -> Vec<u8> {
        self.uses(on, bytes.clone());
        self.give(on, Op::Work);
        self.synchronize_stream(on);
        let length = index(bytes.end - bytes.start);
        let shown = self.memory(&bytes).map(|contents| contents.to_vec());
        shown.unwrap_or_else(|| vec![FRESH; length])
    }

    /// The contents of a range inside one block. Made when they are first asked for, so that a
    /// device that nobody writes to costs no memory.
    fn memory(&mut self, bytes: &Range<u64>) -> Option<&mut [u8]> {
        let (at, size) = self.live.range(..=bytes.start).next_back()?;
        let (at, size) = (*at, *size);
        let contents = self.contents.entry(at).or_insert_with(|| vec![FRESH; index(size)]);
        contents.get_mut(index(bytes.start - at)..index(bytes.end - at))
    }

    /// Whether all of a range lies in one block that is handed out.
    #[must_use]
    pub fn holds(&self, bytes: &Range<u64>) -> bool {
        let block = self.live.range(..=bytes.start).next_back();
        block.is_some_and(|(at, size)| bytes.end <= at + size)
    }

    fn effect(&mut self, op: &Op) {
        match op {
            Op::Work | Op::Wait { .. } => {}
            Op::Write { at, bytes } => {
                if let Some(memory) = self.memory(&(*at..*at + bytes.len() as u64)) {
                    memory.copy_from_slice(bytes);
                }
            }
            Op::Fill { bytes, byte } => {
                if let Some(memory) = self.memory(bytes) {
                    memory.fill(*byte);
                }
            }
        }
    }

    /// The number of a new stream.
    pub fn new_stream(&mut self) -> usize {
        self.streams.push(Queue::default());
        self.streams.len() - 1
    }

    /// Queues work of which only the use of these bytes matters.
    pub fn kernel(&mut self, on: usize, bytes: Range<u64>) {
        self.uses(on, bytes);
        self.give(on, Op::Work);
    }

    /// Memory that goes while a stream still uses it is as bad as a use out of order.
    fn check_unused(&mut self, at: u64, bytes: u64) {
        if self.uses.is_empty() {
            return;
        }
        for grain in at / GRAIN..(at + bytes).div_ceil(GRAIN) {
            let Some((stream, op)) = self.uses.remove(&grain) else { continue };
            if self.streams[stream].done < op {
                let byte = grain * GRAIN;
                self.hazards.push(format!(
                    "byte {byte}: freed before operation {op} of stream {stream} was done"
                ));
            }
        }
    }

    /// How much of `stream` the next operation of `on` is ordered after.
    fn known(&self, on: usize, stream: usize) -> u64 {
        let of = |clock: &VectorClock| clock.get(&stream).copied().unwrap_or(0);
        of(&self.streams[on].clock).max(of(&self.host))
    }

    /// The next operation of `on` uses these bytes: is it ordered after the use before it?
    fn uses(&mut self, on: usize, bytes: Range<u64>) {
        let at = self.streams[on].given + 1;
        for grain in bytes.start / GRAIN..bytes.end.div_ceil(GRAIN) {
            let Some((stream, op)) = self.uses.insert(grain, (on, at)) else { continue };
            if stream != on && self.known(on, stream) < op {
                let byte = grain * GRAIN;
                self.hazards.push(format!(
                    "byte {byte}: operation {at} of stream {on} is not ordered after operation \
                     {op} of stream {stream}"
                ));
            }
        }
    }

    /// Records an event.
    ///
    /// # Errors
    ///
    /// When the script says so.
    pub fn record(&mut self, on: usize) -> Result<Event, DeviceError> {
        self.script.check(SimCall::Record, Why::Other, "sim record")?;
        self.calls.records += 1;
        let at = self.give(on, Op::Work);
        Ok(Event { stream: on, at, clock: self.streams[on].clock.clone() })
    }

    /// Makes what `on` is given from here on wait for an event.
    ///
    /// # Errors
    ///
    /// When the script says so.
    pub fn wait(&mut self, on: usize, event: &Event) -> Result<(), DeviceError> {
        self.script.check(SimCall::Wait, Why::Other, "sim wait")?;
        self.calls.waits += 1;
        self.give(on, Op::Wait { stream: event.stream, at: event.at });
        merge(&mut self.streams[on].clock, &event.clock);
        Ok(())
    }

    /// Whether an event has passed.
    ///
    /// # Errors
    ///
    /// When the script says so.
    pub fn query(&mut self, event: &Event) -> Result<bool, DeviceError> {
        self.script.check(SimCall::Query, Why::Other, "sim query")?;
        self.calls.queries += 1;
        let done = self.streams[event.stream].done >= event.at;
        if done {
            merge(&mut self.host, &event.clock);
        }
        Ok(done)
    }

    /// Runs a stream up to an event, and what that waits for.
    pub fn synchronize(&mut self, event: &Event) {
        while self.streams[event.stream].done < event.at {
            self.step(event.stream);
        }
        merge(&mut self.host, &event.clock);
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
        merge(&mut self.host, &self.streams[stream].clock);
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

    fn give(&mut self, on: usize, op: Op) -> u64 {
        let queue = &mut self.streams[on];
        merge(&mut queue.clock, &self.host);
        queue.given += 1;
        queue.late.push_back(op);
        queue.clock.insert(on, queue.given);
        queue.given
    }

    /// Lets a kind of call fail: after `skip` more of its kind, `times` times.
    pub fn fail(&mut self, call: SimCall, skip: u64, times: u64) {
        self.script.fail(call, skip, times);
    }

    /// Whether anything is queued.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.streams.iter().any(|queue| !queue.late.is_empty())
    }

    /// Which device this is; numbers are never used twice.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Uses that were not ordered after the use before them, in words.
    #[must_use]
    pub fn hazards(&self) -> &[String] {
        &self.hazards
    }

    /// Successful calls.
    #[must_use]
    pub fn calls(&self) -> SimCalls {
        self.calls
    }

    /// Bytes that are handed out.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.held
    }

    /// The most bytes that were handed out at once.
    #[must_use]
    pub fn held_peak_bytes(&self) -> u64 {
        self.held_peak
    }
}

/// A size of memory that exists, or more than any slice has.
fn index(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn merge(into: &mut VectorClock, other: &VectorClock) {
    for (stream, at) in other {
        let known = into.entry(*stream).or_default();
        *known = (*known).max(*at);
    }
}
