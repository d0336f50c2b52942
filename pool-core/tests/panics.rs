//! A panic in each single call of an allocator that a user wrote, before it does anything or after:
//! the pool goes on, its figures agree, and nothing is freed twice. The same for closures and
//! observers.
#![expect(clippy::unwrap_used, reason = "tests")]

use pool_core::sim::{SimBlock, SimDevice, SimDriver, SimStream, SimView};
use pool_core::{
    ArenaConfig, BucketPool, Budget, DeviceAllocator, DeviceError, Handles, KIB, MIB, MarkOf,
    Memory, PageCalls, PoolEvent, PooledBuffer, Request, Sliceable, StealPolicy, Timeline,
    VirtualMemory,
};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Ends by a panic that no hook reports.
fn unwind() -> ! {
    resume_unwind(Box::new("on purpose"))
}

/// Counts, and panics once.
#[derive(Clone, Default)]
struct Fuse {
    count: Arc<AtomicU64>,
    /// The call that panics, counted from one; 0 for none.
    at: u64,
}

impl Fuse {
    fn count(&self) {
        if self.count.fetch_add(1, Relaxed) + 1 == self.at {
            unwind();
        }
    }

    fn calls(&self) -> u64 {
        self.count.load(Relaxed)
    }
}

/// The simulated device, one call of which panics.
struct Panicking {
    device: SimDevice,
    fuse: Fuse,
    /// The call has happened when it panics.
    late: bool,
}

impl Panicking {
    fn call<T>(&self, call: impl FnOnce(&SimDevice) -> T) -> T {
        if !self.late {
            self.fuse.count();
        }
        let outcome = call(&self.device);
        if self.late {
            self.fuse.count();
        }
        outcome
    }
}

impl DeviceAllocator for Panicking {
    type Block = SimBlock;
    type View<'b> = SimView<'b>;
    type Kind = ();
    type Clock = Timeline<SimDriver>;
    const MEMORY: Memory = Memory::DEVICE;

    fn clock(&self) -> &Timeline<SimDriver> {
        self.device.clock()
    }

    fn aligned(&self, kind: (), alignment: u64) -> Result<(), DeviceError> {
        self.device.aligned(kind, alignment)
    }

    fn allocate(&self, request: Request<()>, on: &SimStream) -> Result<SimBlock, DeviceError> {
        self.call(|device| device.allocate(request, on))
    }

    fn free(&self, block: SimBlock, after: &[MarkOf<Self>]) -> Result<(), DeviceError> {
        self.call(|device| device.free(block, after))
    }

    fn release_kept(&self) -> Result<(), DeviceError> {
        self.call(SimDevice::release_kept)
    }

    fn view<'b>(
        &'b self,
        block: &'b SimBlock,
        offset: u64,
        bytes: u64,
        on: &SimStream,
    ) -> SimView<'b> {
        self.device.view(block, offset, bytes, on)
    }

    fn zero(&self, block: &mut SimBlock, bytes: u64, on: &SimStream) -> Result<(), DeviceError> {
        self.call(|device| device.zero(block, bytes, on))
    }
}

impl Sliceable for Panicking {
    fn pages(&self) -> Option<PageCalls<Self>> {
        Some(PageCalls::of(self))
    }

    #[expect(unsafe_code, reason = "the port's")]
    unsafe fn zero_part(
        &self,
        block: &SimBlock,
        bytes: Range<u64>,
        on: &SimStream,
    ) -> Result<(), DeviceError> {
        // SAFETY: who calls this vouches for the bytes.
        self.call(|device| unsafe { device.zero_part(block, bytes, on) })
    }
}

impl VirtualMemory for Panicking {
    fn page_bytes(&self) -> u64 {
        self.device.page_bytes()
    }

    fn handles(&self) -> Handles {
        self.device.handles()
    }

    fn address_space(&self) -> u64 {
        self.device.address_space()
    }

    fn reserve(&self, bytes: u64) -> Result<SimBlock, DeviceError> {
        self.call(|device| device.reserve(bytes))
    }

    fn commit(&self, block: &SimBlock, pages: Range<u64>) -> Result<(), DeviceError> {
        self.call(|device| device.commit(block, pages))
    }

    fn decommit(
        &self,
        block: &SimBlock,
        pages: Range<u64>,
        after: &[MarkOf<Self>],
    ) -> Result<(), DeviceError> {
        self.call(|device| device.decommit(block, pages, after))
    }

    fn release(&self, block: SimBlock, after: &[MarkOf<Self>]) -> Result<(), DeviceError> {
        self.call(|device| device.release(block, after))
    }
}

/// Whole blocks, and every kind of arena.
fn configs() -> [(&'static str, Option<ArenaConfig>); 5] {
    [
        ("blocks", None),
        ("grow", Some(ArenaConfig::grow())),
        ("pages", Some(ArenaConfig::pages(64 * KIB, 0.0))),
        ("segments", Some(ArenaConfig::segments(MIB))),
        ("torch", Some(ArenaConfig::torch())),
    ]
}

/// Returns what a call returned, or `None` after a panic.
fn outcome<T>(call: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(call)).ok()
}

/// A program on two streams that allocates zeroed and other buffers, hands them on, trims, and asks
/// for more than there is. Returns the panics that reached it.
fn program<A: DeviceAllocator<Clock = Timeline<SimDriver>>>(
    pool: &BucketPool<A>,
    device: &SimDevice,
) -> u64 {
    let streams = [device.stream(), device.stream()];
    let mut live: Vec<PooledBuffer<A>> = Vec::new();
    let mut panics = 0;
    let mut seen = |happened: bool| panics += u64::from(!happened);
    for turn in 0..48_u64 {
        let at = turn.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        let bytes = match turn % 16 {
            7 => 15 * MIB,
            turn if turn % 3 == 0 => (at % 16 + 1) * 64 * KIB,
            _ => (at % 16 + 1) * 700,
        };
        let stream = &streams[(at % 2) as usize];
        let allocate = || match turn % 2 {
            0 => pool.allocate_zeroed_on(stream, bytes),
            _ => pool.allocate_on(stream, bytes),
        };
        let got = outcome(allocate);
        seen(got.is_some());
        live.extend(got.and_then(Result::ok));
        if let Some(buffer) = live.last() {
            seen(outcome(|| drop(buffer.on(&streams[(at / 2 % 2) as usize]))).is_some());
        }
        if live.len() > 5 || turn % 16 == 7 && !live.is_empty() {
            let buffer = live.remove((at % live.len() as u64) as usize);
            seen(outcome(|| drop(buffer)).is_some());
        }
        let upkeep = || match turn % 16 {
            5 => device.advance(stream, 3),
            9 => drop(pool.trim(MIB)),
            12 => drop(pool.shrink_to(2 * MIB)),
            15 => drop(pool.clear()),
            _ => {}
        };
        seen(outcome(upkeep).is_some());
        let stats = pool.stats();
        let held: u64 = live.iter().map(PooledBuffer::allocated_size).sum();
        assert_eq!(stats.allocated_bytes, held, "turn {turn}: {stats}");
        let parts = held + stats.cached_bytes + stats.lost_bytes;
        assert_eq!(stats.reserved_bytes, parts, "turn {turn}: {stats}");
    }
    for buffer in live {
        seen(outcome(|| drop(buffer)).is_some());
    }
    panics
}

/// Runs the program over a pool, and returns the calls that its allocator counted.
fn run(name: &str, config: Option<&ArenaConfig>, at: u64, late: bool) -> u64 {
    let (device, fuse) = (SimDevice::new(), Fuse { at, ..Fuse::default() });
    let allocator = Panicking { device: device.clone(), fuse: fuse.clone(), late };
    let builder = BucketPool::builder(allocator).steal(StealPolicy::Wait);
    let builder = builder.reserved_limit(16 * MIB).cached_limit(12 * MIB);
    let pool = match config {
        Some(config) => builder.arena(config.clone()).build(),
        None => builder.build(),
    };
    let what = format!("{name}, call {at}, late: {late}");
    let panics = program(&pool, &device);
    assert_eq!(panics, u64::from(at > 0 && at <= fuse.calls()), "{what}: the panic was swallowed");
    let served = outcome(|| pool.allocate(1000).map(drop).is_ok());
    let cleared = outcome(|| pool.clear().is_ok());
    let stats = pool.stats();
    assert_eq!((stats.allocated_bytes, stats.requested_bytes), (0, 0), "{what}: {stats}");
    assert_eq!(stats.cached_bytes + stats.lost_bytes, stats.reserved_bytes, "{what}: {stats}");
    // The pool was not told of a call that happened: the device may hold more, and refuse a call.
    if !late {
        let refused = served == Some(false) || cleared == Some(false);
        assert!(!refused, "{what}: a call after the panic is refused");
        assert_eq!(stats.reserved_bytes, device.held_bytes(), "{what}: {stats}");
    }
    outcome(|| drop(pool));
    device.run();
    assert_eq!(device.hazards(), 0, "{what}: {:?}", device.hazard_report());
    fuse.calls()
}

#[test]
fn each_call_of_an_allocator_may_panic() {
    for (name, config) in configs() {
        for late in [false, true] {
            let calls = run(name, config.as_ref(), 0, late);
            assert!(calls > 20, "{name}: {calls} calls");
            for at in 1..=calls {
                run(name, config.as_ref(), at, late);
            }
        }
    }
}

/// A panic of an observer does not reach the program.
#[test]
fn each_call_of_an_observer_may_panic() {
    for (name, config) in configs() {
        let calls = observed(name, config.as_ref(), 0);
        assert!(calls > 80, "{name}: {calls} events");
        for at in 1..=calls {
            assert_eq!(observed(name, config.as_ref(), at), calls, "{name}, event {at}");
        }
    }
}

fn observed(name: &str, config: Option<&ArenaConfig>, at: u64) -> u64 {
    let (device, fuse) = (SimDevice::new(), Fuse { at, ..Fuse::default() });
    let seen = fuse.clone();
    let builder = BucketPool::builder(device.clone()).reserved_limit(16 * MIB);
    let builder = builder.observer(Arc::new(move |_: &PoolEvent<'_>| seen.count()));
    let pool = match config {
        Some(config) => builder.arena(config.clone()).build(),
        None => builder.build(),
    };
    assert_eq!(program(&pool, &device), 0, "{name}, event {at}: the panic reached the program");
    fuse.calls()
}

/// A closure of a budget panics in the request that reached its mark; the next request is served.
#[test]
fn each_call_of_a_budgets_closure_may_panic() {
    for (name, config) in configs() {
        let calls = budgeted(name, config.as_ref(), 0);
        assert!(calls > 1, "{name}: {calls} calls");
        for at in 1..=calls {
            budgeted(name, config.as_ref(), at);
        }
    }
}

fn budgeted(name: &str, config: Option<&ArenaConfig>, at: u64) -> u64 {
    let (device, fuse) = (SimDevice::new(), Fuse { at, ..Fuse::default() });
    let (budget, seen) = (Budget::new(16 * MIB), fuse.clone());
    budget.on_high_water(0.25, move |_| seen.count());
    let builder = BucketPool::builder(device.clone()).budget(&budget);
    let pool = match config {
        Some(config) => builder.arena(config.clone()).build(),
        None => builder.build(),
    };
    let panics = program(&pool, &device);
    assert!(panics <= 1, "{name}, call {at}: {panics} panics");
    pool.clear().unwrap();
    assert_eq!((device.held_bytes(), budget.reserved_bytes()), (0, 0), "{name}, call {at}");
    assert!(pool.allocate(MIB).is_ok(), "{name}, call {at}: the next request");
    fuse.calls()
}
