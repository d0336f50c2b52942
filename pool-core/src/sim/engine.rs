//! The state of a simulated device: memory, streams that run late, and what used each byte last.

mod capture;

use super::memory::Memory;
use super::script::{Script, SimCall, SimCalls};
use super::shadow::{Shadow, Use, VectorClock};
use crate::error::{DeviceError, Why};
use capture::Captures;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Blocks start at multiples of this many bytes.
pub(super) const ALIGNMENT: u64 = 4096;

pub use capture::Graph;

/// An event that was recorded.
#[derive(Clone, Debug)]
pub struct Event {
    stream: usize,
    at: u64,
    clock: VectorClock,
    /// The capture that it is an edge of, and which of its events it is.
    captured: Option<(u64, usize)>,
}

/// What a copy does when its turn comes.
type Effect = Arc<dyn Fn(&mut Contents<'_>) + Send + Sync>;

/// The memory of the device, as a late operation sees it.
#[derive(Debug)]
pub struct Contents<'m>(&'m mut Memory);

impl Contents<'_> {
    /// What a range shows.
    #[must_use]
    pub fn read(&mut self, bytes: &Range<u64>) -> Vec<u8> {
        self.0.read(bytes)
    }

    /// Writes at an address.
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        self.0.write(at, bytes);
    }
}

/// A stream. `clock`: what its next operation is ordered after. `late`: given, not yet run.
#[derive(Debug, Default)]
struct Queue {
    given: u64,
    done: u64,
    clock: VectorClock,
    late: VecDeque<Op>,
}

#[derive(Clone)]
enum Op {
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
    /// A block goes back in the order of the stream.
    Free(u64),
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
            Self::Free(_) => "Free",
        })
    }
}

/// A simulated device without the port: what `SimDevice` and the double of libcuda share.
#[derive(Debug)]
pub struct Engine {
    id: u64,
    memory: Memory,
    calls: SimCalls,
    script: Script,
    streams: Vec<Queue>,
    /// What the host has seen done, and so all that it gives from then on is ordered after.
    host: VectorClock,
    shadow: Shadow,
    /// The state of the dice that let queued work run between calls; 0 for no dice.
    dice: u64,
    captures: Captures,
}

impl Engine {
    /// A device that holds at most `capacity` bytes, with a default stream, number 0.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT.fetch_add(1, Relaxed),
            memory: Memory::new(capacity),
            calls: SimCalls::default(),
            script: Script::default(),
            streams: vec![Queue::default()],
            host: VectorClock::default(),
            shadow: Shadow::default(),
            dice: 0,
            captures: Captures::default(),
        }
    }

    /// From here on queued work runs now and then between calls, as the seed says.
    pub fn seed(&mut self, seed: u64) {
        self.dice = seed | 1;
    }

    /// Lets a stream that the dice name run a step, every other call. (Marsaglia's xorshift.)
    fn drift(&mut self) {
        if self.dice == 0 {
            return;
        }
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        if self.dice & 1 == 0 {
            self.step((self.dice >> 8) as usize % self.streams.len());
        }
    }

    /// Takes a block.
    ///
    /// # Errors
    ///
    /// [`Why::OutOfMemory`] over the capacity, or when the script says so.
    pub fn allocate(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        self.drift();
        self.script.check(SimCall::Allocate, Why::OutOfMemory, "sim allocate")?;
        let at = self.memory.allocate(bytes)?;
        self.calls.allocations += 1;
        Ok(at)
    }

    /// Gives a block or a reservation back. Does not wait for anything.
    ///
    /// # Errors
    ///
    /// [`Why::Foreign`] for an address at which no block begins, or when the script says so.
    pub fn free(&mut self, at: u64) -> Result<(), DeviceError> {
        self.script.check(SimCall::Free, Why::Other, "sim free")?;
        for range in self.memory.free(at)? {
            self.gone(&range);
        }
        self.calls.frees += 1;
        Ok(())
    }

    /// Takes addresses without memory behind them.
    ///
    /// # Errors
    ///
    /// [`Why::OutOfMemory`] when there are no more, or when the script says so.
    pub fn reserve(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        self.reserve_aligned(bytes, ALIGNMENT)
    }

    /// The same, from a multiple of `alignment` on.
    ///
    /// # Errors
    ///
    /// As for [`Engine::reserve`].
    pub fn reserve_aligned(&mut self, bytes: u64, alignment: u64) -> Result<u64, DeviceError> {
        self.script.check(SimCall::Reserve, Why::OutOfMemory, "sim reserve")?;
        let at = self.memory.reserve(bytes, alignment)?;
        self.calls.reservations += 1;
        Ok(at)
    }

    /// Puts memory behind a part of a reservation, where there is none.
    ///
    /// # Errors
    ///
    /// [`Why::OutOfMemory`] over the capacity, [`Why::Other`] where there is some,
    /// [`Why::Foreign`] outside a reservation, or when the script says so.
    pub fn commit(&mut self, pages: &Range<u64>) -> Result<(), DeviceError> {
        self.drift();
        self.script.check(SimCall::Commit, Why::OutOfMemory, "sim commit")?;
        self.memory.commit(pages)?;
        self.calls.commits += 1;
        Ok(())
    }

    /// Takes the memory behind a part of a reservation back. Does not wait for anything.
    ///
    /// # Errors
    ///
    /// [`Why::Other`] where there is none, or when the script says so.
    pub fn decommit(&mut self, pages: &Range<u64>) -> Result<(), DeviceError> {
        self.script.check(SimCall::Decommit, Why::Other, "sim decommit")?;
        self.memory.decommit(pages)?;
        self.gone(pages);
        self.calls.decommits += 1;
        Ok(())
    }

    /// Queues giving a block back: it goes when its turn comes, and is used until then.
    ///
    /// # Errors
    ///
    /// [`Why::Foreign`] for an address at which no block begins, or when the script says so.
    pub fn free_in_order(&mut self, on: usize, at: u64) -> Result<(), DeviceError> {
        self.script.check(SimCall::Free, Why::Other, "sim free")?;
        let bytes = self.memory.block_at(at)?;
        self.give_use(on, at..at + bytes, "free", Op::Free(at));
        self.calls.frees += 1;
        Ok(())
    }

    fn gone(&mut self, bytes: &Range<u64>) {
        let Self { shadow, streams, .. } = self;
        shadow.gone(bytes, |stream| streams.get(stream).map_or(u64::MAX, |queue| queue.done));
    }

    /// Queues writing `bytes` at an address.
    pub fn write(&mut self, on: usize, at: u64, bytes: Vec<u8>) {
        let range = at..at + bytes.len() as u64;
        self.give_use(on, range, "write", Op::Write { at, bytes });
    }

    /// Queues filling a range with a byte.
    pub fn fill(&mut self, on: usize, bytes: Range<u64>, byte: u8) {
        self.give_use(on, bytes.clone(), "fill", Op::Fill { bytes, byte });
    }

    /// What a range shows once everything given to `on` so far has run.
    pub fn read(&mut self, on: usize, bytes: Range<u64>) -> Vec<u8> {
        self.give_use(on, bytes.clone(), "read", Op::Work);
        self.synchronize_stream(on);
        self.memory.read(&bytes)
    }

    /// Queues work of which only the use of these bytes matters.
    pub fn kernel(&mut self, on: usize, bytes: Range<u64>) {
        self.give_use(on, bytes, "kernel", Op::Work);
    }

    /// The CPU uses these bytes now.
    pub fn touch(&mut self, bytes: Range<u64>) {
        let after = self.host.clone();
        let host = Use { stream: usize::MAX, operation: 0, what: "the CPU", after };
        self.shadow.uses(bytes, host);
    }

    /// Queues work on two ranges whose effect comes when its turn does.
    pub fn later(
        &mut self,
        on: usize,
        uses: [(Range<u64>, &'static str); 2],
        effect: impl Fn(&mut Contents<'_>) + Send + Sync + 'static,
    ) {
        let [(first, what), (second, what_else)] = uses;
        self.give_use(on, first, what, Op::Work);
        self.give_use(on, second, what_else, Op::Effect(Arc::new(effect)));
    }

    fn give_use(&mut self, on: usize, bytes: Range<u64>, what: &'static str, op: Op) {
        self.drift();
        if self.captures.takes(on, &op, &bytes, what) {
            return;
        }
        let operation = self.give(on, op);
        let after = self.streams[on].clock.clone();
        self.shadow.uses(bytes, Use { stream: on, operation, what, after });
    }

    /// Whether all of a range is memory that is handed out, in one block.
    #[must_use]
    pub fn holds(&self, bytes: &Range<u64>) -> bool {
        self.memory.holds(bytes)
    }

    fn effect(&mut self, op: &Op) {
        match op {
            Op::Work | Op::Event | Op::Wait { .. } => {}
            Op::Write { at, bytes } => self.memory.write(*at, bytes),
            Op::Fill { bytes, byte } => self.memory.fill(bytes, *byte),
            Op::Effect(effect) => effect(&mut Contents(&mut self.memory)),
            // It began a block when it was given, and addresses are not used twice.
            Op::Free(at) => drop(self.memory.free(*at)),
        }
    }

    /// The number of a new stream.
    pub fn new_stream(&mut self) -> usize {
        self.streams.push(Queue::default());
        self.streams.len() - 1
    }

    /// Records an event.
    ///
    /// # Errors
    ///
    /// When the script says so.
    pub fn record(&mut self, on: usize) -> Result<Event, DeviceError> {
        self.drift();
        self.script.check(SimCall::Record, Why::Other, "sim record")?;
        self.calls.records += 1;
        Ok(self.captures.record(on).unwrap_or_else(|| self.event(on)))
    }

    fn event(&mut self, on: usize) -> Event {
        let at = self.give(on, Op::Event);
        Event { stream: on, at, clock: self.streams[on].clock.clone(), captured: None }
    }

    /// Makes what `on` is given from here on wait for an event.
    ///
    /// # Errors
    ///
    /// When the script says so.
    pub fn wait(&mut self, on: usize, event: &Event) -> Result<(), DeviceError> {
        self.script.check(SimCall::Wait, Why::Other, "sim wait")?;
        let captured = self.captures.wait(on, event)?;
        self.calls.waits += 1;
        if !captured {
            self.wait_for(on, event);
        }
        Ok(())
    }

    fn wait_for(&mut self, on: usize, event: &Event) {
        self.give(on, Op::Wait { stream: event.stream, at: event.at });
        self.streams[on].clock.merge(&event.clock);
    }

    /// Whether an event has passed.
    ///
    /// # Errors
    ///
    /// When the script says so.
    pub fn query(&mut self, event: &Event) -> Result<bool, DeviceError> {
        self.drift();
        self.script.check(SimCall::Query, Why::Other, "sim query")?;
        if event.captured.is_some() {
            return Err(DeviceError::new(Why::NotSubmitted, "sim query of a captured event", 907));
        }
        self.calls.queries += 1;
        self.pass(event.stream);
        let done = self.streams[event.stream].done >= event.at;
        if done {
            self.host.merge(&event.clock);
        }
        Ok(done)
    }

    /// Events at the head of a queue pass, and waits for what is done: only work runs late.
    fn pass(&mut self, stream: usize) {
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
        self.host.merge(&event.clock);
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
        self.host.merge(&self.streams[stream].clock);
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
        queue.clock.merge(&self.host);
        queue.given += 1;
        queue.late.push_back(op);
        queue.clock.raise(on, queue.given);
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
        &self.shadow.hazards
    }

    /// Successful calls.
    #[must_use]
    pub fn calls(&self) -> SimCalls {
        self.calls
    }

    /// Bytes that are handed out.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.memory.held
    }

    /// The most bytes that were handed out at once.
    #[must_use]
    pub fn held_peak_bytes(&self) -> u64 {
        self.memory.held_peak
    }

    /// The most bytes that can be.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.memory.capacity
    }
}
