//! Pools under random schedules of threads, by shuttle: more threads and longer ways than loom can
//! try. A failure prints the schedule that replays it. `cargo xtask ci` runs it.
#![cfg(shuttle)]
#![expect(clippy::unwrap_used, reason = "tests")]

use pool_core::check::set_thread_number as set_number;
use pool_core::port::Limit;
use pool_core::{
    ArenaConfig, BucketPool, DeviceAllocator, KIB, MIB, PoolBuilder, PooledBuffer, StreamClock, Why,
};
use pool_sim::SimDevice;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;
use std::collections::BTreeMap;
use std::time::Duration;

/// Schedules of each pool.
const SCHEDULES: usize = 300;
/// Calls of each thread.
const STEPS: usize = 12;
const THREADS: usize = 3;

type Pool = BucketPool<SimDevice>;
type Buffer = PooledBuffer<SimDevice>;

/// The buffers that threads share besides the pool.
#[derive(Default)]
struct Table {
    /// Buffers that one thread left for another.
    left: Vec<Buffer>,
    /// The bytes of all live buffers, from where to where.
    live: BTreeMap<u64, u64>,
}

/// Where the bytes of a buffer are.
fn place(buffer: &Buffer) -> (u64, u64) {
    let on = buffer.allocator().clock().default_stream();
    let bytes = buffer.on(on).unwrap().bytes();
    (bytes.start, bytes.end)
}

impl Table {
    fn add(&mut self, buffer: &Buffer) {
        let (start, end) = place(buffer);
        let below = self.live.range(..end).next_back();
        assert!(below.is_none_or(|(_, other)| *other <= start), "two owners of one byte");
        self.live.insert(start, end);
    }

    fn remove(&mut self, buffer: &Buffer) {
        assert!(self.live.remove(&place(buffer).0).is_some(), "freed twice");
    }
}

/// One of all that a program does with a pool.
fn step(pool: &Pool, table: &Mutex<Table>, own: &mut Vec<Buffer>) {
    let choose = |count: usize| thread_rng().gen_range(0..count);
    let drop_one = |buffer: Buffer| {
        table.lock().unwrap().remove(&buffer);
        drop(buffer);
    };
    match choose(18) {
        0..=6 => {
            let sizes = [64, 64, 4 * KIB, 8 * KIB];
            match pool.allocate(sizes[choose(sizes.len())]) {
                Ok(buffer) => {
                    table.lock().unwrap().add(&buffer);
                    own.push(buffer);
                }
                Err(error) => assert_eq!(error.why(), Why::Limit(Limit::Reserved), "{error}"),
            }
        }
        7..=9 => own.pop().into_iter().for_each(drop_one),
        10 => table.lock().unwrap().left.append(own),
        11 => {
            let left = std::mem::take(&mut table.lock().unwrap().left);
            left.into_iter().for_each(drop_one);
        }
        // Blocks of one size for another thread to free.
        16 | 17 => {
            for buffer in (0..4).filter_map(|_| pool.allocate(64).ok()) {
                let mut table = table.lock().unwrap();
                table.add(&buffer);
                table.left.push(buffer);
            }
        }
        12 => assert!(pool.trim(4 * KIB).is_ok() && pool.shrink_to(8 * KIB).is_ok()),
        13 => assert!(pool.clear().is_ok()),
        14 => assert!(pool.stats().allocated_bytes <= MIB && pool.tick(Duration::MAX).is_ok()),
        _ => assert!(pool.stats().deallocations <= pool.cached_buffers().len() as u64 + 1000),
    }
}

/// Asserts what holds when no thread is inside and no buffer is live.
fn check(pool: &Pool) {
    let stats = pool.stats();
    assert_eq!((stats.allocated_bytes, stats.requested_bytes), (0, 0), "{stats}");
    assert_eq!(stats.allocations - stats.failures, stats.deallocations, "{stats}");
    let cached: u64 = pool.cached_buffers().iter().map(|(bytes, n)| bytes * *n as u64).sum();
    pool.check();
    assert!(pool.trim(0).is_ok());
    assert!(
        stats.cached_bytes >= cached,
        "deferred frees are cached, and are not buffers: {stats}"
    );
    assert_eq!(pool.stats().cached_bytes, pool.stats().reserved_bytes);
    assert!(pool.clear().is_ok());
    assert_eq!((pool.stats().reserved_bytes, pool.allocator().held_bytes()), (0, 0));
}

fn run(builder: impl Fn(PoolBuilder<SimDevice>) -> PoolBuilder<SimDevice> + Send + Sync + 'static) {
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 20;
    config.max_steps = shuttle::MaxSteps::None;
    let schedules = shuttle::scheduler::RandomScheduler::new(SCHEDULES);
    shuttle::Runner::new(schedules, config).run(move || {
        set_number(0);
        let device = SimDevice::new();
        let pool = builder(BucketPool::builder(device.clone())).build();
        let table = Arc::new(Mutex::new(Table::default()));
        let work = |number: usize| {
            let (pool, table) = (pool.clone(), table.clone());
            move || {
                set_number(number);
                let mut own = Vec::new();
                (0..STEPS).for_each(|_| step(&pool, &table, &mut own));
                let mut table = table.lock().unwrap();
                for buffer in &own {
                    table.remove(buffer);
                }
                drop(table);
            }
        };
        let threads: Vec<_> = (1..THREADS).map(|number| thread::spawn(work(number))).collect();
        work(0)();
        for thread in threads {
            thread.join().unwrap();
        }
        drop(Arc::into_inner(table).unwrap().into_inner().unwrap().left);
        check(&pool);
        drop(pool);
        assert_eq!(device.held_bytes(), 0);
    });
}

#[test]
fn model_of_blocks() {
    run(|builder| builder);
}

#[test]
fn model_of_blocks_under_a_cached_limit() {
    run(|builder| builder.cached_limit(16 * KIB));
}

#[test]
fn model_of_blocks_under_a_bucket_limit() {
    run(|builder| builder.bucket_limit(2));
}

#[test]
fn model_of_blocks_under_a_reserved_limit() {
    run(|builder| builder.reserved_limit(32 * KIB));
}

#[test]
fn model_of_an_arena() {
    run(|builder| builder.arena(ArenaConfig::segments(64 * KIB)));
}

#[test]
fn model_of_an_arena_in_pages() {
    run(|builder| builder.arena(ArenaConfig::pages(4 * KIB, 0.5)).cached_limit(64 * KIB));
}
