//! The state of a simulated device: memory, streams that run late, and the last use of each byte.

mod capture;
mod streams;

use crate::memory::{ALIGNMENT, SimMemory};
use crate::script::{Faults, SimCall, SimCalls};
use crate::shadow::{Shadow, ShadowUse, VectorClock};
use capture::Captures;
use pool_core::{DeviceError, Why};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use streams::{Op, Queue};

pub use crate::shadow::Access;
pub use capture::Graph;
pub use streams::Event;

/// The effect of a copy, applied when the copy runs.
type Effect = Arc<dyn Fn(&mut Contents<'_>) + Send + Sync>;

/// The memory of the device, as a late operation sees it.
#[derive(Debug)]
pub struct Contents<'m>(&'m mut SimMemory);

impl Contents<'_> {
    /// Returns the contents of a range.
    #[must_use]
    pub fn read(&mut self, bytes: &Range<u64>) -> Vec<u8> {
        self.0.read(bytes)
    }

    /// Writes bytes at an address.
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        self.0.write(at, bytes);
    }
}

/// A simulated device without the `DeviceAllocator` port. `SimDevice` and the test double of
/// libcuda share it.
#[derive(Debug)]
pub struct Engine {
    id: u64,
    memory: SimMemory,
    /// What one call has committed goes back whole.
    pub(crate) has_handles: bool,
    calls: SimCalls,
    faults: Faults,
    streams: Vec<Queue>,
    /// Streams that are given nothing more, until the host has seen all their work done.
    ended: VecDeque<usize>,
    /// Operations that the host has seen done. Work that the host gives later is ordered after
    /// them.
    host: VectorClock,
    shadow: Shadow,
    /// State of the random generator that lets queued work run between calls; `None` if none does.
    dice: Option<StdRng>,
    captures: Captures,
}

impl Engine {
    /// Creates a device that holds at most `capacity` bytes, with a default stream, number 0.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT.fetch_add(1, Relaxed),
            memory: SimMemory::new(capacity),
            has_handles: false,
            calls: SimCalls::default(),
            faults: Faults::default(),
            streams: vec![Queue::default()],
            ended: VecDeque::new(),
            host: VectorClock::default(),
            shadow: Shadow::default(),
            dice: None,
            captures: Captures::default(),
        }
    }

    /// Makes queued work run now and then between calls. The seed determines the schedule.
    pub fn seed(&mut self, seed: u64) {
        self.dice = Some(StdRng::seed_from_u64(seed));
    }

    /// Runs one step of a randomly chosen stream, on about every other call.
    fn drift(&mut self) {
        let Some(dice) = &mut self.dice else { return };
        if dice.random() {
            let stream = dice.random_range(0..self.streams.len());
            self.step(stream);
        }
    }

    /// Allocates a block and returns its address.
    ///
    /// # Errors
    ///
    /// [`Why::OutOfMemory`] over the capacity, or if the script makes the call fail.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; pub use pool_sim::conformance; }
    /// use bucketpool::{Why, sim::engine::Engine};
    ///
    /// let mut engine = Engine::new(4096);
    /// let at = engine.allocate(4096)?;
    /// assert_eq!(engine.allocate(1).unwrap_err().why, Why::OutOfMemory);
    /// engine.free(at)?;
    /// assert_eq!(engine.free(at).unwrap_err().why, Why::Foreign);
    /// # Ok::<(), pool_core::DeviceError>(())
    /// ```
    pub fn allocate(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        self.drift();
        self.faults.check(SimCall::Allocate, Why::OutOfMemory, "sim allocate")?;
        let at = self.memory.allocate(bytes)?;
        self.calls.allocations += 1;
        Ok(at)
    }

    /// Frees a block or a reservation. Does not wait for anything.
    ///
    /// # Errors
    ///
    /// [`Why::Foreign`] for an address at which no block begins, or if the script makes the call
    /// fail.
    ///
    /// See [`Engine::allocate`] for an example.
    pub fn free(&mut self, at: u64) -> Result<(), DeviceError> {
        self.faults.check(SimCall::Free, Why::Other, "sim free")?;
        for range in self.memory.free(at)? {
            self.freed(&range);
        }
        self.calls.frees += 1;
        Ok(())
    }

    /// Reserves addresses without memory behind them.
    ///
    /// # Errors
    ///
    /// [`Why::OutOfMemory`] if no addresses are left, or if the script makes the call fail.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; pub use pool_sim::conformance; }
    /// use bucketpool::{Why, sim::engine::Engine};
    ///
    /// let mut engine = Engine::new(8192);
    /// let at = engine.reserve(1 << 40)?;
    /// engine.commit(&(at..at + 8192))?;
    /// assert_eq!(engine.commit(&(at + 8192..at + 12288)).unwrap_err().why, Why::OutOfMemory);
    /// engine.decommit(&(at..at + 8192))?;
    /// assert_eq!(engine.decommit(&(at..at + 8192)).unwrap_err().why, Why::Other);
    /// let aligned = engine.reserve_aligned(4096, 1 << 21)?;
    /// assert_eq!(aligned % (1 << 21), 0);
    /// engine.free(at)?;
    /// # Ok::<(), pool_core::DeviceError>(())
    /// ```
    pub fn reserve(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        self.reserve_aligned(bytes, ALIGNMENT)
    }

    /// Reserves addresses that start at a multiple of `alignment`.
    ///
    /// # Errors
    ///
    /// As for [`Engine::reserve`].
    ///
    /// See [`Engine::reserve`] for an example.
    pub fn reserve_aligned(&mut self, bytes: u64, alignment: u64) -> Result<u64, DeviceError> {
        self.faults.check(SimCall::Reserve, Why::OutOfMemory, "sim reserve")?;
        let at = self.memory.reserve(bytes, alignment)?;
        self.calls.reservations += 1;
        Ok(at)
    }

    /// Commits memory to a part of a reservation that has none.
    ///
    /// # Errors
    ///
    /// [`Why::OutOfMemory`] over the capacity, [`Why::Other`] if a page is committed already,
    /// [`Why::Foreign`] outside a reservation, or if the script makes the call fail.
    ///
    /// See [`Engine::reserve`] for an example.
    pub fn commit(&mut self, pages: &Range<u64>) -> Result<(), DeviceError> {
        self.drift();
        self.faults.check(SimCall::Commit, Why::OutOfMemory, "sim commit")?;
        self.memory.commit(pages)?;
        self.calls.commits += 1;
        Ok(())
    }

    /// Decommits the memory behind a part of a reservation. Does not wait for anything.
    ///
    /// # Errors
    ///
    /// [`Why::Other`] if a page is not committed, if a commit would go in part on a device with
    /// handles, or if the script makes the call fail.
    ///
    /// See [`Engine::reserve`] for an example.
    pub fn decommit(&mut self, pages: &Range<u64>) -> Result<(), DeviceError> {
        self.faults.check(SimCall::Decommit, Why::Other, "sim decommit")?;
        self.memory.decommit(pages, self.has_handles)?;
        self.freed(pages);
        self.calls.decommits += 1;
        Ok(())
    }

    /// Records that a range is freed. It is a hazard if a stream still uses the memory.
    pub fn freed(&mut self, bytes: &Range<u64>) {
        let Self { shadow, streams, .. } = self;
        shadow.freed(bytes, |stream| streams.get(stream).map_or(u64::MAX, |queue| queue.done));
    }

    /// Queues writing `bytes` at an address.
    pub fn write(&mut self, on: usize, at: u64, bytes: Vec<u8>) {
        let range = at..at + bytes.len() as u64;
        self.give_use(on, range, Access::writing("write"), Op::Write { at, bytes });
    }

    /// Queues filling a range with a byte.
    pub fn fill(&mut self, on: usize, bytes: Range<u64>, byte: u8) {
        self.give_use(on, bytes.clone(), Access::writing("fill"), Op::Fill { bytes, byte });
    }

    /// Returns the contents of a range after everything given to `on` so far has run.
    pub fn read(&mut self, on: usize, bytes: Range<u64>) -> Vec<u8> {
        self.give_use(on, bytes.clone(), Access::reading("read"), Op::Work);
        self.synchronize_stream(on);
        self.memory.read(&bytes)
    }

    /// Queues work of which only the use of these bytes matters.
    pub fn kernel(&mut self, on: usize, bytes: Range<u64>) {
        self.give_use(on, bytes, Access::writing("kernel"), Op::Work);
    }

    /// Queues work that reads these bytes, of which only that matters.
    pub fn reading_kernel(&mut self, on: usize, bytes: Range<u64>) {
        self.give_use(on, bytes, Access::reading("reading kernel"), Op::Work);
    }

    /// Uses these bytes on the CPU now.
    pub fn touch(&mut self, bytes: Range<u64>) {
        self.use_on_cpu(bytes, Access::writing("the CPU"));
    }

    /// Reads these bytes on the CPU now.
    pub fn look_at(&mut self, bytes: Range<u64>) {
        self.use_on_cpu(bytes, Access::reading("the CPU"));
    }

    fn use_on_cpu(&mut self, bytes: Range<u64>, access: Access) {
        let after = self.host.clone();
        let host = ShadowUse { stream: usize::MAX, operation: 0, access, after };
        self.shadow.uses(bytes, host, &self.host);
    }

    /// Queues work on two ranges. The effect is applied when the work runs.
    pub fn later(
        &mut self,
        on: usize,
        uses: [(Range<u64>, Access); 2],
        effect: impl Fn(&mut Contents<'_>) + Send + Sync + 'static,
    ) {
        let [(first, access), (second, access_else)] = uses;
        self.give_use(on, first, access, Op::Work);
        self.give_use(on, second, access_else, Op::Effect(Arc::new(effect)));
    }

    fn give_use(&mut self, on: usize, bytes: Range<u64>, access: Access, op: Op) {
        self.drift();
        if self.captures.takes(on, &op, &bytes, access) {
            return;
        }
        let operation = self.give(on, op);
        let after = self.streams[on].clock.clone();
        let now = ShadowUse { stream: on, operation, access, after };
        self.shadow.uses(bytes, now, &self.host);
    }

    /// Returns whether all of a range is memory that is handed out, in one block.
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
        }
    }

    /// Makes `times` calls of a kind fail, after `skip` more calls of that kind.
    pub fn fail(&mut self, call: SimCall, skip: u64, times: u64) {
        self.faults.fail(call, skip, times);
    }

    /// Loses the device after this many more calls.
    pub fn lose_after(&mut self, calls: u64) {
        self.faults.lose_after(calls);
    }

    /// Counts a call that cannot fail otherwise.
    ///
    /// # Errors
    ///
    /// A lost device.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; pub use pool_sim::conformance; }
    /// use bucketpool::{Why, sim::engine::Engine};
    ///
    /// let mut engine = Engine::new(4096);
    /// engine.lose_after(1);
    /// engine.count_toward_loss("synchronize")?;
    /// assert_eq!(engine.count_toward_loss("synchronize").unwrap_err().why, Why::Lost);
    /// # Ok::<(), pool_core::DeviceError>(())
    /// ```
    pub fn count_toward_loss(&mut self, call: &'static str) -> Result<(), DeviceError> {
        self.faults.count_toward_loss(call)
    }

    /// Cancels all failures that [`Engine::fail`] asked for.
    pub fn stop_failing(&mut self) {
        self.faults.clear();
    }

    /// Returns how many calls are still to fail.
    #[must_use]
    pub fn pending_failures(&self) -> u64 {
        self.faults.pending()
    }

    /// Returns whether any work is queued.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.streams.iter().any(|queue| !queue.late.is_empty())
    }

    /// Returns the number of this device. No number is used twice.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns a description of each use that was not ordered after the use before it.
    #[must_use]
    pub fn hazards(&self) -> &[String] {
        &self.shadow.hazards
    }

    /// Returns the number of successful calls, by kind.
    #[must_use]
    pub fn calls(&self) -> SimCalls {
        self.calls
    }

    /// Returns the bytes that are handed out.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.memory.held
    }

    /// Returns the peak of [`Engine::held_bytes`].
    #[must_use]
    pub fn held_peak_bytes(&self) -> u64 {
        self.memory.held_peak
    }

    /// Returns the most bytes that can be handed out at once.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.memory.capacity
    }
}
