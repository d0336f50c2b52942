//! `SimDevice`, a simulated device under the production code.
//!
//! It counts its calls, has a capacity, fails on demand, runs its streams late, and reports a use
//! that is not ordered after the use before it. It is a device for tests and for replaying traces,
//! not a model of how long a call takes.

mod raw;
#[cfg(test)]
mod tests;

use crate::engine::{Engine, Event, Graph};
use crate::memory::ALIGNMENT;
use crate::script::{SimCall, SimCalls};
use parking_lot::Mutex;
use pool_core::port::{
    Handles, MarkOf, Memory, PageCalls, Request, Sliceable, VirtualMemory, WholeBlocks,
};
use pool_core::stream::{EventDriver, Mark, Stream, Timeline};
use pool_core::{DeviceAllocator, DeviceError, StreamClock, Why};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

pub use raw::SimRaw;

/// A stream of a [`SimDevice`].
pub type SimStream = Stream<SimDriver>;

/// A simulated device. Clones are the same device, so that a test can inspect it after its pool is
/// dropped.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; pub use pool_sim::conformance; }
/// use bucketpool::{BucketPool, sim::{SimCall, SimDevice}};
///
/// let device = SimDevice::new();
/// let pool = BucketPool::new(device.clone());
/// device.fail(SimCall::Allocate, 0, 1); // the first call fails, once
/// assert!(pool.allocate(512).is_ok()); // and the pool tries again
/// drop(pool);
/// assert_eq!((device.calls().allocations, device.held_bytes()), (1, 0));
/// ```
#[derive(Clone)]
pub struct SimDevice {
    pub(crate) clock: Arc<Timeline<SimDriver>>,
    pub(crate) driver: SimDriver,
    /// Addresses of blocks that it did not take back.
    refused: Arc<Mutex<Vec<u64>>>,
    /// The bytes of a page.
    page: u64,
    handles: Handles,
}

/// The name of [`SimDevice`] beside `HostAllocator`, `CudaAllocator` and `WgpuAllocator`.
pub type SimAllocator = SimDevice;

/// The event driver of a simulated device.
#[derive(Clone)]
pub struct SimDriver(pub(crate) Arc<Mutex<Engine>>);

/// An event of a simulated device.
#[derive(Debug)]
pub struct SimEvent(Event);

/// A block of simulated memory.
#[derive(Debug)]
pub struct SimBlock {
    device: u64,
    at: u64,
}

/// A range of simulated memory.
#[derive(Debug)]
pub struct SimView<'b> {
    pub(crate) at: u64,
    pub(crate) bytes: u64,
    block: PhantomData<&'b SimBlock>,
}

impl SimView<'_> {
    /// Returns the address range of the view.
    #[must_use]
    pub fn bytes(&self) -> Range<u64> {
        self.at..self.at + self.bytes
    }
}

impl SimDevice {
    /// Creates a device without a capacity.
    #[must_use]
    pub fn new() -> Self {
        Self::with_capacity(u64::MAX)
    }

    /// Creates a device that holds at most `bytes` bytes.
    #[must_use]
    pub fn with_capacity(bytes: u64) -> Self {
        let driver = SimDriver(Arc::new(Mutex::new(Engine::new(bytes))));
        Self {
            clock: Arc::new(Timeline::new(driver.clone(), SimRaw::default_stream())),
            driver,
            refused: Arc::default(),
            page: ALIGNMENT,
            handles: Handles::Page,
        }
    }

    /// Makes queued work run now and then between calls. The same seed gives the same schedule.
    #[must_use]
    pub fn seeded(self, seed: u64) -> Self {
        self.driver.0.lock().seed(seed);
        self
    }

    /// Makes it a device with handles, such as CUDA's virtual memory: it commits in multiples of
    /// `page` bytes, rounded up to a power of two of at least 4096, and what one call has committed
    /// it takes back whole ([`Handles::Commit`]). Call it before the device is cloned.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{MIB, Why, port::VirtualMemory, sim::SimDevice};
    ///
    /// let device = SimDevice::new().with_handles(2 * MIB);
    /// let block = device.reserve(8 * MIB)?;
    /// device.commit(&block, 0..4 * MIB)?;
    /// assert_eq!(device.decommit(&block, 0..2 * MIB, &[]).unwrap_err().why, Why::Other);
    /// device.decommit(&block, 0..4 * MIB, &[])?;
    /// # device.release(block, &[])?;
    /// # Ok::<(), pool_core::DeviceError>(())
    /// ```
    #[must_use]
    pub fn with_handles(self, page: u64) -> Self {
        self.driver.0.lock().has_handles = true;
        let page = page.clamp(ALIGNMENT, 1 << 40).next_power_of_two();
        Self { page, handles: Handles::Commit, ..self }
    }

    /// Creates a stream. Its work stays queued until a caller synchronizes or calls
    /// [`SimDevice::run`]. A stream that was retired, seen done and dropped leaves its number and its
    /// count of operations ([`SimDevice::given`]) to a later one.
    #[must_use]
    pub fn stream(&self) -> SimStream {
        self.clock.register(SimRaw::new(&self.driver.0))
    }

    /// Queues a kernel on `on` that uses all bytes of `view`.
    pub fn kernel(&self, on: &SimStream, view: &SimView<'_>) {
        self.driver.0.lock().kernel(on.raw().number(), view.bytes());
    }

    /// Queues a kernel on `on` that reads all bytes of `view` and writes none.
    pub fn reading_kernel(&self, on: &SimStream, view: &SimView<'_>) {
        self.driver.0.lock().reading_kernel(on.raw().number(), view.bytes());
    }

    /// Uses all bytes of `view` on the CPU now.
    pub fn touch(&self, view: &SimView<'_>) {
        self.driver.0.lock().touch(view.bytes());
    }

    /// Reads all bytes of `view` on the CPU now.
    pub fn look_at(&self, view: &SimView<'_>) {
        self.driver.0.lock().look_at(view.bytes());
    }

    /// Returns whether any work is queued.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.driver.0.lock().is_busy()
    }

    /// Runs all queued work.
    pub fn run(&self) {
        self.driver.0.lock().run();
    }

    /// Runs the queued work of one stream, and the work that it waits for.
    pub fn run_stream(&self, stream: &SimStream) {
        self.driver.0.lock().run_stream(stream.raw().number());
    }

    /// Runs the next `operations` queued operations of one stream, and the work that they wait for.
    pub fn advance(&self, stream: &SimStream, operations: u64) {
        for _ in 0..operations {
            self.driver.0.lock().step(stream.raw().number());
        }
    }

    /// Returns the number of operations that a stream was given so far.
    #[must_use]
    pub fn given(&self, stream: &SimStream) -> u64 {
        self.driver.0.lock().given(stream.raw().number())
    }

    /// Runs a stream up to an operation, numbered as by [`SimDevice::given`], and the work that it
    /// waits for.
    pub fn run_to(&self, stream: &SimStream, operation: u64) {
        self.driver.0.lock().run_to(stream.raw().number(), operation);
    }

    /// Makes `times` calls of a kind fail, after `skip` more calls of that kind.
    pub fn fail(&self, call: SimCall, skip: u64, times: u64) {
        self.driver.0.lock().fail(call, skip, times);
    }

    /// Loses the device after this many more calls. From then on each call that allocates, frees,
    /// orders or waits returns [`Why::Lost`].
    pub fn lose_after(&self, calls: u64) {
        self.driver.0.lock().lose_after(calls);
    }

    /// Cancels all failures that [`SimDevice::fail`] asked for.
    pub fn stop_failing(&self) {
        self.driver.0.lock().stop_failing();
    }

    /// Frees the blocks whose free was refused, which no program has any more. A long test calls
    /// it, so that the records of these blocks do not pile up.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; pub use pool_sim::conformance; }
    /// use bucketpool::{BucketPool, sim::{SimCall, SimDevice}};
    ///
    /// let device = SimDevice::new();
    /// let pool = BucketPool::new(device.clone());
    /// drop(pool.allocate(512)?);
    /// device.fail(SimCall::Free, 0, 1);
    /// assert!(pool.clear().is_err());
    /// device.reclaim_refused();
    /// assert_eq!(device.held_bytes(), 0);
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    pub fn reclaim_refused(&self) {
        let mut engine = self.driver.0.lock();
        self.refused.lock().retain(|at| engine.free(*at).is_err());
    }

    /// Returns how many calls are still to fail.
    #[must_use]
    pub fn pending_failures(&self) -> u64 {
        self.driver.0.lock().pending_failures()
    }

    /// Returns the number of uses so far that were not ordered after the use before them.
    #[must_use]
    pub fn hazards(&self) -> usize {
        self.driver.0.lock().hazards().len()
    }

    /// Returns a description of each hazard.
    #[must_use]
    pub fn hazard_report(&self) -> Vec<String> {
        self.driver.0.lock().hazards().to_vec()
    }

    /// Returns the number of successful calls so far, by kind.
    #[must_use]
    pub fn calls(&self) -> SimCalls {
        self.driver.0.lock().calls()
    }

    /// Returns the bytes that are handed out.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.driver.0.lock().held_bytes()
    }

    /// Returns the peak of [`SimDevice::held_bytes`].
    #[must_use]
    pub fn held_peak_bytes(&self) -> u64 {
        self.driver.0.lock().held_peak_bytes()
    }

    /// Returns the number of clones of this device, this one included. A pool that was dropped
    /// together with all its buffers holds no clone.
    #[must_use]
    pub fn clones(&self) -> usize {
        Arc::strong_count(&self.clock)
    }

    /// Queues filling a view with a byte.
    pub fn fill(&self, on: &SimStream, view: &SimView<'_>, byte: u8) {
        self.driver.0.lock().fill(on.raw().number(), view.bytes(), byte);
    }

    /// Captures the work that `stream` is given from here on into a graph. A stream that waits for
    /// a stream under capture joins the capture.
    ///
    /// # Errors
    ///
    /// [`Why::Foreign`] for a stream of another device, [`Why::NotSubmitted`] for a stream under
    /// capture, or the error of recording an event.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; pub use pool_sim::conformance; }
    /// use bucketpool::{BucketPool, Why, sim::SimDevice};
    ///
    /// let device = SimDevice::new();
    /// let pool = BucketPool::new(device.clone());
    /// let stream = device.stream();
    /// let buffer = pool.allocate_on(&stream, 4)?;
    /// device.begin_capture(&stream)?;
    /// assert_eq!(device.begin_capture(&stream).unwrap_err().why, Why::NotSubmitted);
    /// device.fill(&stream, &*buffer.on(&stream)?, 7); // goes into the graph
    /// let (graph, _) = device.end_capture(&stream)?; // its marks are of `stream` itself
    /// device.launch(&graph, &stream);
    /// assert_eq!(device.read(&stream, &*buffer.on(&stream)?), [7; 4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn begin_capture(&self, stream: &SimStream) -> Result<(), DeviceError> {
        self.clock.begin_capture(stream)?;
        self.driver.0.lock().begin_capture(stream.raw().number())
    }

    /// Ends the capture that began on `stream`. Returns the graph, and the marks that each launch
    /// must be ordered behind.
    ///
    /// # Errors
    ///
    /// [`Why::NotSubmitted`] if no capture began on `stream`, or if a stream that the capture took
    /// in was not joined.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; pub use pool_sim::conformance; }
    /// use bucketpool::{DeviceAllocator, StreamClock, Why, sim::SimDevice};
    ///
    /// let device = SimDevice::new();
    /// let (captured, other) = (device.stream(), device.stream());
    /// device.begin_capture(&captured)?;
    /// let (graph, after) = device.end_capture(&captured)?;
    /// device.clock().order(&other, &after)?;
    /// device.launch(&graph, &other);
    /// assert_eq!(device.end_capture(&captured).unwrap_err().why, Why::NotSubmitted);
    /// # Ok::<(), pool_core::DeviceError>(())
    /// ```
    pub fn end_capture(&self, stream: &SimStream) -> Result<(Graph, Vec<Mark>), DeviceError> {
        let awaited = self.clock.end_capture(stream);
        self.driver.0.lock().end_capture(stream.raw().number()).map(|graph| (graph, awaited))
    }

    /// Queues a graph on a stream.
    pub fn launch(&self, graph: &Graph, on: &SimStream) {
        self.driver.0.lock().launch(graph, on.raw().number());
    }

    fn wait_for(&self, marks: &[MarkOf<Self>]) -> Result<(), DeviceError> {
        for mark in marks {
            if self.driver.0.lock().is_busy() {
                self.clock.synchronize(*mark)?;
            }
        }
        Ok(())
    }

    /// Returns the contents of a view after everything given to `on` so far has run.
    #[must_use]
    pub fn read(&self, on: &SimStream, view: &SimView<'_>) -> Vec<u8> {
        self.driver.0.lock().read(on.raw().number(), view.bytes())
    }
}

impl DeviceAllocator for SimDevice {
    type Block = SimBlock;
    type View<'b> = SimView<'b>;
    type Kind = ();
    type Clock = Timeline<SimDriver>;
    const MEMORY: Memory = Memory::DEVICE;

    fn clock(&self) -> &Timeline<SimDriver> {
        &self.clock
    }

    fn total_bytes(&self) -> Option<u64> {
        Some(self.driver.0.lock().capacity()).filter(|capacity| *capacity != u64::MAX)
    }

    fn free_bytes(&self) -> Option<u64> {
        let engine = self.driver.0.lock();
        let capacity = Some(engine.capacity()).filter(|capacity| *capacity != u64::MAX);
        capacity.map(|capacity| capacity - engine.held_bytes())
    }

    /// Accepts each power of two up to a page: simulated addresses are not real memory.
    fn aligned(&self, _kind: (), alignment: u64) -> Result<(), DeviceError> {
        DeviceError::check_alignment(alignment, ALIGNMENT)
    }

    fn allocate(&self, request: Request<()>, _on: &SimStream) -> Result<SimBlock, DeviceError> {
        let mut engine = self.driver.0.lock();
        let at = engine.allocate(request.bytes)?;
        Ok(SimBlock { device: engine.id(), at })
    }

    /// Waits for `after`, as `cuMemFree` waits for the device.
    fn free(&self, block: SimBlock, after: &[MarkOf<Self>]) -> Result<(), DeviceError> {
        if block.device != self.driver.0.lock().id() {
            return Err(DeviceError::new(Why::Foreign, "free simulated memory"));
        }
        let freed = self.wait_for(after).and_then(|()| self.driver.0.lock().free(block.at));
        freed.inspect_err(|_| self.refused.lock().push(block.at))
    }

    fn view<'b>(
        &'b self,
        block: &'b SimBlock,
        offset: u64,
        bytes: u64,
        _: &SimStream,
    ) -> SimView<'b> {
        SimView { at: block.at + offset, bytes, block: PhantomData }
    }

    fn zero(&self, block: &mut SimBlock, bytes: u64, on: &SimStream) -> Result<(), DeviceError> {
        self.driver.0.lock().fill(on.raw().number(), block.at..block.at + bytes, 0);
        Ok(())
    }
}

impl WholeBlocks for SimDevice {}

impl Sliceable for SimDevice {
    fn pages(&self) -> Option<PageCalls<Self>> {
        Some(PageCalls::of(self))
    }

    #[expect(unsafe_code, reason = "the port's; nothing here is unsafe")]
    unsafe fn zero_part(
        &self,
        block: &SimBlock,
        bytes: Range<u64>,
        on: &SimStream,
    ) -> Result<(), DeviceError> {
        self.driver.0.lock().fill(
            on.raw().number(),
            block.at + bytes.start..block.at + bytes.end,
            0,
        );
        Ok(())
    }
}

impl VirtualMemory for SimDevice {
    fn page_bytes(&self) -> u64 {
        self.page
    }

    fn handles(&self) -> Handles {
        self.handles
    }

    /// Returns 2^48 bytes. Simulated addresses are plentiful, so one reservation is enough.
    fn address_space(&self) -> u64 {
        1 << 48
    }

    fn reserve(&self, bytes: u64) -> Result<SimBlock, DeviceError> {
        let mut engine = self.driver.0.lock();
        let at = engine.reserve(bytes)?;
        Ok(SimBlock { device: engine.id(), at })
    }

    fn commit(&self, block: &SimBlock, pages: Range<u64>) -> Result<(), DeviceError> {
        self.driver.0.lock().commit(&(block.at + pages.start..block.at + pages.end))
    }

    fn decommit(
        &self,
        block: &SimBlock,
        pages: Range<u64>,
        after: &[MarkOf<Self>],
    ) -> Result<(), DeviceError> {
        self.wait_for(after)?;
        self.driver.0.lock().decommit(&(block.at + pages.start..block.at + pages.end))
    }

    fn release(&self, block: SimBlock, after: &[MarkOf<Self>]) -> Result<(), DeviceError> {
        self.free(block, after)
    }
}

impl EventDriver for SimDriver {
    type Raw = SimRaw;
    type Event = SimEvent;

    fn record(&self, on: &SimRaw) -> Result<SimEvent, DeviceError> {
        self.0.lock().record(on.number()).map(SimEvent)
    }
    fn wait(&self, on: &SimRaw, event: &SimEvent) -> Result<(), DeviceError> {
        self.0.lock().wait(on.number(), &event.0)
    }
    fn query(&self, event: &SimEvent) -> Result<bool, DeviceError> {
        self.0.lock().query(&event.0)
    }
    fn synchronize(&self, event: &SimEvent) -> Result<(), DeviceError> {
        let mut engine = self.0.lock();
        engine.count_toward_loss("sim synchronize")?;
        engine.synchronize(&event.0);
        Ok(())
    }
}

impl Default for SimDevice {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for SimDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDevice").field("calls", &self.calls()).finish_non_exhaustive()
    }
}

impl fmt::Debug for SimDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDriver").finish_non_exhaustive()
    }
}
