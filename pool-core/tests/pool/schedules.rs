//! Random schedules over arenas: several streams, late work, failures, streams that end; after each
//! step the arena's map, its counters and the device must agree, and no use may be out of order.
//!
//! A failing schedule names its seed. `BUCKETPOOL_SEED=17 BUCKETPOOL_SCHEDULES=1` replays number
//! 17; `BUCKETPOOL_SCHEDULES=10000000` makes a long run, which `cargo xtask record` records.
#![expect(clippy::unwrap_used, reason = "tests")]

use pool_core::limits::Retention;
use pool_core::observe::RangeState;
use pool_core::port::VirtualMemory;
use pool_core::stream::{StealPolicy, Timeline};
use pool_core::{ArenaConfig, BucketPolicy, BucketPool, DeviceAllocator, KIB, PooledBuffer};
use pool_sim::{MappedSim, SimCall, SimDevice, SimDriver, SimStream, SimView, TestThreads};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Schedules of a CI run.
const SCHEDULES: u64 = 200_000;
/// Threads that take turns in a schedule.
const THREADS: usize = 4;
/// One schedule of this many has several threads.
const SEEDS_OF_ONE_WITH_THREADS: u64 = 4;
/// One schedule of this many has a device that takes back whole commits.
const SEEDS_OF_ONE_WITH_HANDLES: u64 = 3;
/// Steps of a schedule at most.
const STEPS: u64 = 40;

/// Memory of the simulated device: such that only streams touch, or the CPU too.
trait Simulated: VirtualMemory<Clock = Timeline<SimDriver>, Kind = ()> {
    fn of(device: SimDevice) -> Self;
    fn place(view: &Self::View<'_>) -> Range<u64>;
    /// A program gives a kernel to a stream; where the CPU can, it writes first.
    fn work(device: &SimDevice, on: &SimStream, view: &Self::View<'_>, fresh: bool);
    /// It gives a stream a kernel that only reads.
    fn read(device: &SimDevice, on: &SimStream, view: &Self::View<'_>);
    /// The CPU has it, to read or to write.
    fn on_cpu(device: &SimDevice, view: &Self::View<'_>, writes: bool);
}

impl Simulated for SimDevice {
    fn of(device: SimDevice) -> Self {
        device
    }
    fn place(view: &SimView<'_>) -> Range<u64> {
        view.bytes()
    }
    fn work(device: &SimDevice, on: &SimStream, view: &SimView<'_>, _fresh: bool) {
        device.kernel(on, view);
    }
    fn read(device: &SimDevice, on: &SimStream, view: &SimView<'_>) {
        device.reading_kernel(on, view);
    }
    fn on_cpu(device: &SimDevice, view: &SimView<'_>, writes: bool) {
        if writes { device.touch(view) } else { device.look_at(view) }
    }
}

impl Simulated for MappedSim {
    fn of(device: SimDevice) -> Self {
        Self::new(device)
    }
    fn place(view: &SimView<'_>) -> Range<u64> {
        view.bytes()
    }
    fn work(device: &SimDevice, on: &SimStream, view: &SimView<'_>, fresh: bool) {
        if fresh {
            device.touch(view);
        }
        device.kernel(on, view);
    }
    fn read(device: &SimDevice, on: &SimStream, view: &SimView<'_>) {
        device.reading_kernel(on, view);
    }
    fn on_cpu(device: &SimDevice, view: &SimView<'_>, writes: bool) {
        if writes { device.touch(view) } else { device.look_at(view) }
    }
}

/// One schedule: the pool, its device, and what a program holds.
struct Run<A: Simulated> {
    dice: StdRng,
    device: SimDevice,
    pool: BucketPool<A>,
    streams: Vec<SimStream>,
    live: Vec<(Range<u64>, PooledBuffer<A>)>,
    /// Whether some call was made to fail.
    failures: bool,
}

fn config(dice: &mut StdRng) -> ArenaConfig {
    match dice.random_range(0..5) {
        0 => ArenaConfig::segments(32 * KIB),
        1 => ArenaConfig::torch(),
        2 => ArenaConfig::pages(4 * KIB, 0.0),
        3 => ArenaConfig::pages(8 * KIB, 0.1),
        _ => ArenaConfig::grow(),
    }
}

impl<A: Simulated> Run<A> {
    fn new(seed: u64) -> Self {
        let mut dice = StdRng::seed_from_u64(seed);
        let capacity = if dice.random_range(0..3) == 0 {
            (dice.random_range(0..64) + 8) * 64 * KIB
        } else {
            u64::MAX
        };
        let device = SimDevice::with_capacity(capacity).seeded(dice.random_range(0..u64::MAX));
        let config = config(&mut dice);
        let (device, config) = match seed % SEEDS_OF_ONE_WITH_HANDLES {
            0 => (device.with_handles(4 * KIB), config.least_growth(0.125, 16 * KIB)),
            _ => (device, config),
        };
        let steal =
            [StealPolicy::Never, StealPolicy::Ordered, StealPolicy::Wait][dice.random_range(0..3)];
        let ages = Retention { allocations: Some(10), time: Some(Duration::from_secs(3)) };
        let builder = BucketPool::builder(A::of(device.clone()))
            .arena(config)
            .policy(BucketPolicy::Exact)
            .granule(512);
        let builder = builder.steal(steal).retention(ages);
        // A stream has a shard.
        let builder = builder.shards(dice.random_range(1..5));
        let pool = match dice.random_range(0..3) {
            0 => builder.cached_limit(0).build(),
            1 => builder.reserved_limit(capacity.min(4 << 20)).build(),
            _ => builder.build(),
        };
        let streams = (0..3).map(|_| device.stream()).collect();
        Self { dice, device, pool, streams, live: Vec::new(), failures: false }
    }

    fn stream(&mut self) -> SimStream {
        self.streams[self.dice.random_range(0..self.streams.len())].clone()
    }

    fn step(&mut self, now: u64) {
        match self.dice.random_range(0..32) {
            0..=11 => self.allocate(),
            12..=20 => self.drop_one(),
            21..=25 => self.use_one(),
            26 => self.end_a_stream(),
            27 => drop(self.pool.trim(self.dice.random_range(0..256 * KIB))),
            28 => drop(self.pool.tick(Duration::from_secs(now / 4))),
            29 => self.fail_a_call(),
            30 => {
                let (on, steps) = (self.stream(), self.dice.random_range(0..8));
                self.device.advance(&on, steps);
            }
            _ => drop(self.pool.clear()),
        }
    }

    /// A buffer for a stream, which uses it at once. A refusal is fine; what it leaves is checked.
    fn allocate(&mut self) {
        let on = self.stream();
        let bytes = match self.dice.random_range(0..4) {
            0 => self.dice.random_range(0..1024),
            1 | 2 => self.dice.random_range(0..48 * KIB),
            _ => (1 + self.dice.random_range(0..4)) * 8 * KIB,
        };
        let Ok(buffer) = self.pool.allocate_on(&on, bytes) else { return };
        let Ok(used) = buffer.on(&on) else { return };
        let place = A::place(&used);
        A::work(&self.device, &on, &used, true);
        drop(used);
        let overlap =
            self.live.iter().find(|(other, _)| other.start < place.end && place.start < other.end);
        assert!(overlap.is_none(), "{place:?} overlaps {overlap:?}");
        self.live.push((place, buffer));
    }

    fn drop_one(&mut self) {
        if !self.live.is_empty() {
            let at = self.dice.random_range(0..self.live.len());
            let (_, buffer) = self.live.swap_remove(at);
            let on = self.stream();
            // The use orders the stream behind all others.
            if self.dice.random_range(0..3) == 0 && buffer.on(&on).map(drop).is_ok() {
                let _ = buffer.drop_on(&on); // it is dropped in any case
            }
        }
    }

    /// A live buffer is used on some stream: read or written in a `Use`, by a stream that was
    /// recorded, or in a `Use` that is forgotten. After that one it is dropped: only the drop knows of
    /// it. Or the CPU has it.
    fn use_one(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let (at, on, how) = (
            self.dice.random_range(0..self.live.len()),
            self.stream(),
            self.dice.random_range(0..12),
        );
        if how == 11 {
            let (buffer, writes) = (&mut self.live[at].1, self.dice.random());
            let lent = if writes { buffer.on_cpu() } else { buffer.read_on_cpu() };
            if let Ok(view) = lent {
                A::on_cpu(&self.device, &view, writes);
            }
            return;
        }
        let (_, buffer) = &self.live[at];
        if how >= 6 {
            let Ok(used) = buffer.read_on(&on) else { return };
            A::read(&self.device, &on, &used);
            if how == 6 {
                std::mem::forget(used); // what is read later is before the drop all the same
            }
            return;
        }
        if how == 0 && buffer.record_stream(&on).is_err() {
            return;
        }
        let Ok(used) = buffer.on(&on) else { return };
        A::work(&self.device, &on, &used, false);
        if how == 1 {
            std::mem::forget(used);
            drop(self.live.swap_remove(at));
        }
    }

    fn end_a_stream(&mut self) {
        let at = self.dice.random_range(0..self.streams.len());
        if self.device.clock().retire(&self.streams[at]).is_ok() {
            self.streams[at] = self.device.stream();
        }
    }

    fn fail_a_call(&mut self) {
        let (call, skip, times) =
            (SimCall::ALL[self.dice.random_range(0..8)], self.dice.random_range(0..4), 1);
        self.device.fail(call, skip, times);
        self.failures = true;
    }

    /// The map tiles its segments, and all counters are those recomputed from it.
    fn check(&self) {
        assert_eq!(self.pool.check().live.blocks, self.live.len() as u64);
        let map = self.pool.map();
        let (mut used, mut free, mut held) = (0, 0, 0);
        for segment in &map.segments {
            let mut at = 0;
            for one in &segment.ranges {
                assert_eq!(one.range.start, at, "{map:?}");
                at = one.range.end;
                let bytes = one.bytes();
                assert!(bytes > 0, "{map:?}");
                match one.state {
                    RangeState::Used | RangeState::Private => used += bytes,
                    RangeState::Hole => continue,
                    _ => free += bytes,
                }
                held += bytes;
            }
            assert_eq!(at, segment.bytes, "{map:?}");
        }
        let (stats, arena) = (self.pool.stats(), self.pool.device_stats().unwrap());
        assert_eq!(held + stats.lost_bytes, self.device.held_bytes(), "{stats:?}");
        assert_eq!(stats.reserved_bytes, self.device.held_bytes(), "{stats:?}");
        assert_eq!(arena.allocated_bytes.all.current, used);
        assert_eq!(arena.reserved_bytes.all.current, held + stats.lost_bytes);
        assert_eq!(stats.allocated_bytes + stats.cached_bytes, used + free, "{stats:?}");
        let requested: u64 = self.live.iter().map(|(_, buffer)| buffer.size()).sum();
        assert_eq!(stats.requested_bytes, requested);
        assert!(stats.allocated_bytes <= stats.active_bytes, "{stats:?}");
        assert!(stats.active_bytes + stats.lost_bytes <= stats.reserved_bytes, "{stats:?}");
        assert_eq!(self.device.hazards(), 0, "{:?}", self.device.hazard_report());
    }

    /// Everything comes back: to the pool, to the arena, to the device.
    fn end(mut self) {
        self.live.clear();
        self.check();
        assert_eq!(self.pool.stats().allocated_bytes, 0);
    }
}

fn schedule<A: Simulated>(seed: u64) {
    let mut run = Run::<A>::new(seed);
    let has_threads = seed.is_multiple_of(SEEDS_OF_ONE_WITH_THREADS);
    let mut threads = TestThreads::new(if has_threads { THREADS } else { 0 });
    for now in 0..=run.dice.random_range(0..STEPS) {
        let thread = run.dice.random_range(0..THREADS);
        threads.as_thread(thread, || run.step(now));
        run.check();
    }
    let (clean, device) = (!run.failures, run.device.clone());
    run.end();
    assert_eq!((device.clones(), device.hazards()), (1, 0), "{:?}", device.hazard_report());
    assert!(!clean || device.held_bytes() == 0, "{} bytes are lost", device.held_bytes());
}

/// Every third one over memory that the CPU touches too.
fn schedule_of(seed: u64) {
    if seed.is_multiple_of(3) { schedule::<MappedSim>(seed) } else { schedule::<SimDevice>(seed) }
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

#[test]
fn random_schedules() {
    let first = setting("BUCKETPOOL_SEED").unwrap_or(0);
    let count = setting("BUCKETPOOL_SCHEDULES").unwrap_or(SCHEDULES);
    std::thread::scope(|scope| {
        let threads = [0, 1].map(|part| {
            scope.spawn(move || {
                for seed in (first + part..first + count).step_by(2) {
                    let done = catch_unwind(AssertUnwindSafe(|| schedule_of(seed)));
                    assert!(done.is_ok(), "schedule {seed} failed: BUCKETPOOL_SEED={seed}");
                }
            })
        });
        for thread in threads {
            thread.join().unwrap();
        }
    });
    println!("{count} schedules from number {first} on: no violation, no drift, nothing lost");
}
