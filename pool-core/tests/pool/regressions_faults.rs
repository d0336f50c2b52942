//! Faults of other allocators after a device fault or a wrong view of its memory: a test for each.
//!
//! Each test is named after the source of the fault, usually a project and its issue number.

use pool_core::port::Memory;
use pool_core::{
    ArenaConfig, BucketPolicy, BucketPool, DeviceAllocator, DeviceError, KIB, MIB, PooledBuffer,
    StreamClock, Why, ZeroPolicy,
};
use pool_sim::{Call, Claims, Hooked, Hooks, SimDevice};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// The fault of a device at one of its calls.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Panics,
    IsLost,
    /// From this call on, the device finishes its queued work and reports that it has no memory.
    FinishesWork,
}

/// A device with a fault at call `at`. Its fresh memory counts as zeroed. `CPU` says whether the
/// CPU touches it.
struct Fated {
    fate: Fate,
    at: u64,
    calls: Arc<AtomicU64>,
}

/// The claims of its memory.
struct Zeroed<const CPU: bool>;

impl Fated {
    fn device<const CPU: bool>(
        device: SimDevice,
        fate: Fate,
        at: u64,
        calls: &Arc<AtomicU64>,
    ) -> Hooked<SimDevice, Zeroed<CPU>> {
        Hooked::with(device, Self { fate, at, calls: calls.clone() }).claiming()
    }
}

impl<const CPU: bool> Claims<SimDevice> for Zeroed<CPU> {
    const MEMORY: Memory = Memory {
        fresh_is_zeroed: true,
        cpu_touches: CPU,
        default_zero: ZeroPolicy::OnAllocate,
        ..Memory::DEVICE
    };
}

impl Hooks<SimDevice> for Fated {
    fn before(&self, device: &SimDevice, call: &Call<'_, SimDevice>) -> Result<(), DeviceError> {
        if matches!(call, Call::Zero { .. } | Call::ReleaseKept) {
            return Ok(());
        }
        let call = self.calls.fetch_add(1, SeqCst);
        match self.fate {
            Fate::Panics if call == self.at => resume_unwind(Box::new("a bug in the device")),
            Fate::IsLost if call >= self.at => Err(DeviceError::new(Why::Lost, "fated")),
            Fate::FinishesWork if call >= self.at => {
                device.run();
                Err(DeviceError::new(Why::OutOfMemory, "fated"))
            }
            _ => Ok(()),
        }
    }
}

type Pool<const CPU: bool> = BucketPool<Hooked<SimDevice, Zeroed<CPU>>>;

/// Returns a pool, and the count of the calls that its device gets.
fn pool<const CPU: bool>(
    device: &SimDevice,
    config: ArenaConfig,
    fate: Fate,
    at: u64,
) -> (Pool<CPU>, Arc<AtomicU64>) {
    let calls = Arc::default();
    let builder = BucketPool::builder(Fated::device(device.clone(), fate, at, &calls));
    (builder.arena(config).policy(BucketPolicy::Exact).build(), calls)
}

/// Runs a program that allocates, drops and trims. Calls `ended` with the result of each step.
fn program(pool: &Pool<false>, mut ended: impl FnMut(Result<(), Why>)) {
    let mut live: Vec<PooledBuffer<_>> = Vec::new();
    for turn in 0..24_u64 {
        let step = catch_unwind(AssertUnwindSafe(|| {
            if turn % 6 == 5 {
                live.truncate(1);
                return pool.trim(2 * MIB).map(drop).map_err(|error| error.why());
            }
            let buffer = pool.allocate((turn * 7919 % 40 + 1) * 64 * KIB);
            buffer.map(|buffer| live.push(buffer)).map_err(|error| error.why())
        }));
        ended(step.unwrap_or(Err(Why::Other)));
    }
}

/// Returns how many device calls the program makes.
fn calls(config: &ArenaConfig) -> u64 {
    let (pool, calls) = pool(&SimDevice::new(), config.clone(), Fate::Panics, u64::MAX);
    program(&pool, |step| assert_eq!(step, Ok(())));
    calls.load(SeqCst)
}

// A fitting block became free while the allocator looked for memory. The allocator did not search
// the free blocks again, and a manual retry succeeded.
#[test]
fn pytorch_189504_a_block_that_comes_free_meanwhile_is_found() {
    let device = SimDevice::new();
    let config = ArenaConfig::segments(MIB);
    let (pool, calls) = pool::<true>(&device, config, Fate::FinishesWork, 1);
    let s = device.stream();
    let (_pin, block) = (pool.allocate_on(&s, 4 * KIB).unwrap(), pool.allocate_on(&s, 512 * KIB));
    device.kernel(&s, &block.as_ref().unwrap().on(&s).unwrap());
    drop(block); // becomes free when its kernel has run; its segment cannot go back
    assert_eq!(pool.allocate_on(&s, 600 * KIB).unwrap().size(), 600 * KIB);
    assert_eq!((device.calls().allocations, device.hazards()), (1, 0));
    assert!(calls.load(SeqCst) > 1, "the device was not asked");
}

// A panic in the upstream allocator poisoned a lock, and blocks freed after that were freed twice.
#[test]
fn arrow_10378_a_panic_in_the_device_is_survived() {
    for config in [ArenaConfig::segments(MIB), ArenaConfig::grow()] {
        for at in 0..calls(&config) {
            let device = SimDevice::new();
            let (pool, _) = pool(&device, config.clone(), Fate::Panics, at);
            let mut panics = 0;
            program(&pool, |step| panics += u64::from(step.is_err()));
            assert_eq!((panics, pool.stats().allocated_bytes), (1, 0), "{at}, {config:?}");
            assert!(pool.allocate(5 * MIB).is_ok(), "{at}, {config:?}");
            // Only a segment whose free was in progress is lost.
            let lost = pool.stats().lost_bytes;
            assert!(lost == 0 || config == ArenaConfig::segments(MIB), "{at}, {config:?}: {lost}");
            assert!(pool.clear().is_ok(), "{at}, {config:?}");
            assert_eq!(pool.stats().reserved_bytes, lost, "{at}, {config:?}");
            drop(pool);
            // Only a segment that the device lost during its free may be missing.
            let calls = device.calls();
            let (taken, back) = (calls.allocations + calls.reservations, calls.frees);
            assert!(back + 1 >= taken, "{at}, {config:?}: {taken} taken, {back} given back");
        }
    }
}

// A panic in a call that takes memory left its bytes reserved, which lowered the limit permanently.
#[test]
fn a_panic_in_the_device_leaves_the_limit_as_it_was() {
    let arenas = [Some(ArenaConfig::segments(MIB)), Some(ArenaConfig::grow())];
    let cases = arenas.into_iter().flat_map(|config| [(config.clone(), 0), (config, 1)]);
    for (config, at) in cases.chain([(None, 0)]) {
        let device = Fated::device::<false>(SimDevice::new(), Fate::Panics, at, &Arc::default());
        let builder = BucketPool::builder(device).reserved_limit(6 * MIB);
        let pool = match config.clone() {
            Some(config) => builder.arena(config).build(),
            None => builder.policy(BucketPolicy::Exact).build(),
        };
        // One of these calls panics.
        let work = || pool.allocate(5 * MIB).map(drop).and_then(|()| pool.clear());
        let panics = (0..4).filter(|_| catch_unwind(AssertUnwindSafe(work)).is_err());
        assert_eq!(panics.count(), 1, "{at}, {config:?}");
        // A segment whose free was in progress is lost.
        let left = 6 * MIB - pool.stats().lost_bytes;
        assert_eq!(pool.available_bytes(), left, "{at}, {config:?}");
        assert!(left < 5 * MIB || pool.allocate(5 * MIB).is_ok(), "{at}, {config:?}");
    }
}

// After the device was lost, a dropped buffer stayed counted forever, or the drop panicked.
#[test]
fn wgpu_10301_a_lost_device_is_reported_and_drops_are_silent() {
    for config in [ArenaConfig::segments(MIB), ArenaConfig::grow()] {
        for at in 0..calls(&config) {
            let (pool, _) = pool(&SimDevice::new(), config.clone(), Fate::IsLost, at);
            program(&pool, |step| assert!(matches!(step, Ok(()) | Err(Why::Lost)), "{step:?}"));
            let refused = pool.allocate(99 * MIB).unwrap_err();
            assert_eq!((refused.why(), pool.stats().allocated_bytes), (Why::Lost, 0));
            let _ = pool.clear();
            let stats = pool.stats();
            let left = (stats.requested_bytes, stats.cached_bytes, stats.reserved_bytes);
            assert_eq!((left, stats.lost_bytes), ((0, 0, 0), 0), "{at}, {config:?}: {stats}");
        }
    }
}

// Zeroing was skipped if the device's buffer was new, so a pooled part of it showed old data.
#[test]
fn wgpu_zeroing_by_buffer_does_not_take_a_used_part_for_fresh() {
    for config in [ArenaConfig::segments(3 * MIB), ArenaConfig::pages(64 * KIB, 0.0)] {
        let device = SimDevice::new();
        let (pool, _) = pool::<false>(&device, config.clone(), Fate::Panics, u64::MAX);
        let on = device.clock().default_stream();
        let first = pool.allocate(MIB).unwrap();
        device.fill(on, &first.on(on).unwrap(), 0xEE);
        drop(first);
        let second = pool.allocate(2 * MIB).unwrap(); // covers the first and the memory after it
        let shown = device.read(on, &second.on(on).unwrap());
        assert!(shown.iter().all(|byte| *byte == 0), "{config:?}");
        assert_eq!(device.held_bytes() / MIB, if device.calls().commits > 0 { 2 } else { 3 });
    }
}
