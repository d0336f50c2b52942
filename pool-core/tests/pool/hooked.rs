//! The simulated device with a hook at each call, and a program that makes every kind of call.

use pool_core::port::{Handles, MarkOf, Memory, PageCalls, Request, Sliceable, VirtualMemory};
use pool_core::stream::Timeline;
use pool_core::{ArenaConfig, BucketPool, DeviceAllocator, DeviceError, KIB, MIB, PooledBuffer};
use pool_sim::{SimBlock, SimDevice, SimDriver, SimStream, SimView};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// The simulated device, with code that runs before or after each call that moves memory.
pub(crate) struct Hooked<H> {
    pub(crate) device: SimDevice,
    pub(crate) hook: H,
    /// The hook runs when the call has happened.
    pub(crate) late: bool,
}

impl<H: Fn()> Hooked<H> {
    fn call<T>(&self, call: impl FnOnce(&SimDevice) -> T) -> T {
        if !self.late {
            (self.hook)();
        }
        let outcome = call(&self.device);
        if self.late {
            (self.hook)();
        }
        outcome
    }
}

impl<H: Fn() + Send + Sync + 'static> DeviceAllocator for Hooked<H> {
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

impl<H: Fn() + Send + Sync + 'static> Sliceable for Hooked<H> {
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

impl<H: Fn() + Send + Sync + 'static> VirtualMemory for Hooked<H> {
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
pub(crate) fn configs() -> [(&'static str, Option<ArenaConfig>); 5] {
    [
        ("blocks", None),
        ("grow", Some(ArenaConfig::grow())),
        ("pages", Some(ArenaConfig::pages(64 * KIB, 0.0))),
        ("segments", Some(ArenaConfig::segments(MIB))),
        ("torch", Some(ArenaConfig::torch())),
    ]
}

/// Returns what a call returned, or `None` after a panic.
pub(crate) fn outcome<T>(call: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(call)).ok()
}

/// A program on two streams that allocates zeroed and other buffers, hands them on, trims, and asks
/// for more than there is. Returns the panics that reached it.
pub(crate) fn program<A: DeviceAllocator<Clock = Timeline<SimDriver>>>(
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
            3 => drop(pool.tick(Duration::from_secs(turn))),
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
