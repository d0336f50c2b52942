//! A pool of several shards takes the memory of one: at most 1.5 times, whatever its threads do.
//!
//! Simulated threads take turns by a seed, so that the same requests are made of one shard and of
//! several; the device's own count of reserved bytes is compared. `BUCKETPOOL_SEED` names the first seed,
//! `BUCKETPOOL_PROGRAMS` how many are tried; then from 1 to 8 shards, of which each may have 1 MiB more.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

use pool_core::check::TestThreads;
use pool_core::limits::FullBucket;
use pool_core::{ArenaConfig, BucketPolicy, BucketPool, KIB, MIB, PoolBuilder, PooledBuffer};
use pool_host::HostAllocator;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::VecDeque;

type Pool = BucketPool<HostAllocator>;
type Buffer = PooledBuffer<HostAllocator>;

/// Requests of a program.
const REQUESTS: u64 = if cfg!(miri) { 400 } else { 10_000 };
const SHARDS: [usize; 3] = [2, 4, 16];
const SHARDS_OF_MANY: [usize; 7] = [2, 3, 4, 5, 6, 7, 8];
const THREADS: usize = 64;

/// What the threads of a program do.
type Work = fn(&mut Program<'_>);

/// Requests that are made of a pool by many threads, one at a time.
struct Program<'a> {
    pool: &'a Pool,
    threads: TestThreads,
    random: StdRng,
    requests: u64,
}

impl Program<'_> {
    fn is_over(&self) -> bool {
        self.requests >= REQUESTS
    }
    fn below(&mut self, end: u64) -> u64 {
        self.random.random_range(0..end)
    }
    fn any(&mut self, threads: usize) -> usize {
        self.random.random_range(0..threads)
    }
    fn take(&mut self, thread: usize, bytes: u64) -> Buffer {
        self.requests += 1;
        let pool = self.pool;
        self.threads.as_thread(thread, || pool.allocate(bytes)).unwrap()
    }
    fn free<T>(&mut self, thread: usize, buffers: T) {
        self.threads.as_thread(thread, || drop(buffers));
    }
}

/// Two producers, two consumers, and 32 buffers of 64 KiB to 1 MiB on their way between each pair.
fn pipelines(program: &mut Program<'_>) {
    let mut ways = [VecDeque::new(), VecDeque::new()];
    while !program.is_over() {
        let way = program.any(2);
        if ways[way].len() < 32 && (ways[way].is_empty() || program.below(2) == 0) {
            let bytes = 64 * KIB + program.below(960 * KIB);
            ways[way].push_back(program.take(way, bytes));
        } else {
            let buffer = ways[way].pop_front();
            program.free(2 + way, buffer);
        }
    }
}

/// One producer, and 15 consumers of which each has sizes of its own and keeps four buffers.
fn consumers(program: &mut Program<'_>) {
    let mut kept: [VecDeque<Buffer>; 15] = Default::default();
    while !program.is_over() {
        let consumer = program.any(15);
        let bytes = 4 * KIB + 64 * (consumer as u64 + 15 * program.below(20));
        kept[consumer].push_back(program.take(0, bytes));
        if kept[consumer].len() > 4 {
            let oldest = kept[consumer].pop_front();
            program.free(1 + consumer, oldest);
        }
    }
}

/// One task that an executor moves from thread to thread: it takes four blocks and frees them.
fn migrating(program: &mut Program<'_>) {
    while !program.is_over() {
        let thread = program.any(THREADS);
        let buffers: Vec<_> = (0..4).map(|k| program.take(thread, MIB << (k % 2))).collect();
        program.free(thread, buffers);
    }
}

/// Eight tasks with 20 blocks each, of which they replace one at a time, each time on another thread.
fn moving_tasks(program: &mut Program<'_>) {
    let mut tasks: Vec<Vec<Buffer>> = (0..8).map(|_| Vec::new()).collect();
    while !program.is_over() {
        let (task, thread) = (program.any(8), program.any(THREADS));
        let bytes = 64 * (1 + program.below(200));
        let buffer = program.take(thread, bytes);
        tasks[task].push(buffer);
        if tasks[task].len() > 20 {
            let oldest = tasks[task].swap_remove(0);
            program.free(thread, oldest);
        }
    }
}

/// Threads that come and go: each frees what the main thread took, and five blocks of its own.
fn come_and_go(program: &mut Program<'_>) {
    for next in 1.. {
        if program.is_over() {
            break;
        }
        let (thread, bytes) = (1 + next % (THREADS - 1), 4096 + next as u64 % 7 * 512);
        let of_main = program.take(0, bytes);
        program.free(thread, of_main);
        let own: Vec<_> = (1..=5).map(|k| program.take(thread, 700 * k)).collect();
        program.free(thread, own);
    }
}

/// Phases: one thread after the other fills its own 4 MiB with sizes of that phase, and frees all.
fn phases(program: &mut Program<'_>) {
    for phase in 0.. {
        if program.is_over() {
            break;
        }
        let thread = phase % 8;
        let size = 16 * KIB + phase as u64 % 3 * 1024;
        let buffers: Vec<_> = (0..200).map(|_| program.take(thread, size)).collect();
        program.free(thread, buffers);
    }
}

/// A map in parallel: the main thread takes inputs, workers take results and free inputs, and the
/// main thread frees the results.
fn parallel_map(program: &mut Program<'_>) {
    while !program.is_over() {
        let bytes = 32 * KIB * (1 + program.below(16));
        let inputs: Vec<_> = (0..24).map(|_| program.take(0, bytes)).collect();
        let mut results = Vec::new();
        for input in inputs {
            let worker = 1 + program.any(7);
            results.push(program.take(worker, 2 * bytes));
            program.free(worker, input);
        }
        program.free(0, results);
    }
}

/// Eight threads that each replace their own blocks at random.
fn own(program: &mut Program<'_>) {
    let mut threads: Vec<Vec<Buffer>> = (0..8).map(|_| Vec::new()).collect();
    while !program.is_over() {
        let thread = program.any(8);
        let bytes = 64 * (1 + program.below(200));
        threads[thread].push(program.take(thread, bytes));
        if threads[thread].len() > 50 {
            let at = program.any(50);
            let buffer = threads[thread].swap_remove(at);
            program.free(thread, buffer);
        }
    }
}

/// Runs a program. Returns the most bytes that the pool had reserved.
fn run(builder: PoolBuilder<HostAllocator>, shards: usize, program: Work, seed: u64) -> u64 {
    let pool = builder.shards(shards).build();
    let mut run = Program {
        pool: &pool,
        threads: TestThreads::new(THREADS),
        random: StdRng::seed_from_u64(seed),
        requests: 0,
    };
    program(&mut run);
    pool.stats().reserved_peak_bytes
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap())
}

fn each_program(name: &str, builder: impl Fn() -> PoolBuilder<HostAllocator>) {
    let programs: [(&str, Work); 8] = [
        ("pipelines", pipelines),
        ("consumers", consumers),
        ("migrating", migrating),
        ("moving tasks", moving_tasks),
        ("come and go", come_and_go),
        ("phases", phases),
        ("parallel map", parallel_map),
        ("own", own),
    ];
    let (first, many) = (setting("BUCKETPOOL_SEED"), setting("BUCKETPOOL_PROGRAMS"));
    let first = first.unwrap_or(7);
    let shards_of = if many.is_some() { &SHARDS_OF_MANY[..] } else { &SHARDS };
    let (mut failed, mut worst) = (Vec::new(), 0.0_f64);
    for seed in first..first + many.unwrap_or(1) {
        for (title, program) in programs {
            let one = run(builder(), 1, program, seed);
            for &shards in shards_of {
                let several = run(builder(), shards, program, seed);
                worst = worst.max(several as f64 / one as f64);
                // Of many orders of requests some place blocks worse than one heap.
                let placed = if many.is_some() { shards as u64 * MIB } else { 0 };
                if several > one + one / 2 + placed {
                    failed.push(format!(
                        "{name}, {title}: {shards} shards {several} B, one {one} B: \
                         BUCKETPOOL_SEED={seed}"
                    ));
                }
            }
        }
    }
    println!("{name}: at most {worst:.3} times one shard");
    assert!(failed.is_empty(), "{failed:#?}");
}

fn of(policy: BucketPolicy) -> PoolBuilder<HostAllocator> {
    BucketPool::builder(HostAllocator::new()).policy(policy)
}

fn arena(config: ArenaConfig) -> PoolBuilder<HostAllocator> {
    BucketPool::builder(HostAllocator::new()).arena(config)
}

/// Threads that warm up the same ranges of an arena: what one has taken ahead serves them all.
#[test]
fn threads_that_warm_up_take_what_one_would() {
    for config in [ArenaConfig::segments(4 * MIB), ArenaConfig::pages(64 * KIB, 0.05)] {
        let reserved = [1, 16].map(|shards| {
            let pool = arena(config.clone()).shards(shards).build();
            let mut threads = TestThreads::new(16);
            for thread in 0..16 {
                threads.as_thread(thread, || pool.warm_up(&[(4 * MIB, 10)])).unwrap();
            }
            pool.reserved_bytes()
        });
        assert!(reserved[1] <= reserved[0] + reserved[0] / 2, "{config:?}: {reserved:?}");
    }
}

#[test]
fn powers_of_two() {
    each_program("pow2", || of(BucketPolicy::PowerOfTwo));
}

#[test]
fn exact_sizes() {
    each_program("exact", || of(BucketPolicy::Exact));
}

#[test]
fn sizes_that_fit() {
    each_program("fit", || of(BucketPolicy::Fit { alpha: 2.0 }));
}

#[test]
fn buckets_with_limits() {
    each_program("pow2, at most 20", || of(BucketPolicy::PowerOfTwo).bucket_limit(20));
    each_program("exact, at most 8", || {
        of(BucketPolicy::Exact).bucket_limit(8).full_bucket(FullBucket::RefuseNewest)
    });
}

#[test]
fn tiers() {
    let tiers = [4, 16, 64, 256, 1024, 4096].map(|size| size * KIB);
    each_program("tiered", || of(BucketPolicy::tiered(&tiers)));
}

#[test]
fn arenas_of_segments() {
    each_program("segments", || arena(ArenaConfig::segments(4 * MIB)));
}

#[test]
fn arenas_that_grow() {
    each_program("grow", || arena(ArenaConfig::grow()));
}

#[test]
fn arenas_of_pages() {
    each_program("pages", || arena(ArenaConfig::pages(64 * KIB, 0.05)));
}
