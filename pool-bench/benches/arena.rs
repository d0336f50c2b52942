//! One free and one allocation in an arena with many live blocks, compared with an ordered tree.
//!
//! Measured, on one thread and with 1000 to 1 000 000 live blocks: the bench frees a random block
//! and allocates one of a fresh size. Sizes are log-uniform, 512 bytes to 8 MiB, multiples of 512
//! bytes. Both contenders get the same requests in the same order. The measurement starts after
//! four times as many pairs as there are live blocks, so that free memory is as fragmented as in a
//! program that has run for a while.
//!
//! - `arena`: a pool with an arena over the pages of a simulated device. The time includes the
//!   other work of the pool: it counts statistics, and when a request needs more pages it decommits
//!   other pages and then commits new ones.
//! - `tree`: exact best fit from a `BTreeSet` by size and address, behind a mutex. It has no
//!   streams, no statistics, no generations and no device: it grows at its end and gives nothing
//!   back.
//!
//! A random block is a cache miss in the program's list of live blocks and several in the
//! contender's records. From 100 000 live blocks on, cache misses are most of the time, and the
//! time varies with other users of the cache.
//!
//! Before each measurement the bench prints `footprint peak / live bytes peak`. For the tree the
//! footprint is the end of its highest block. The arena commits ahead up to what its configuration
//! allows, 1.084 times the peak of live bytes here. Its figure therefore shows that it stays within
//! that bound, not how little memory would be enough.

use bucketpool::sim::SimDevice;
use bucketpool::{ArenaConfig, BucketPool, PooledBuffer};
use criterion::{Criterion, criterion_group, criterion_main};
use pool_bench::tree::{Tree, UNIT};
use std::hint::black_box;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const LIVE: [usize; 4] = [1000, 10_000, 100_000, 1_000_000];
/// Sizes are below this power of two of units: 8 MiB.
const OCTAVES: f64 = 14.0;
/// Requests that are drawn at a time, outside the measured time.
const DRAWN: usize = 1024;

/// An allocator that the bench measures.
trait Contender {
    type Block;
    fn allocate(&self, bytes: u64) -> Self::Block;
    fn free(&self, block: Self::Block);
    /// Returns the peak of reserved bytes and the peak of allocated bytes.
    fn peaks(&self) -> (u64, u64);
}

impl Contender for BucketPool<SimDevice> {
    type Block = PooledBuffer<SimDevice>;

    #[inline]
    fn allocate(&self, bytes: u64) -> Self::Block {
        BucketPool::allocate(self, bytes).unwrap_or_else(|_| unlimited())
    }

    #[inline]
    fn free(&self, block: Self::Block) {
        drop(block);
    }

    fn peaks(&self) -> (u64, u64) {
        let stats = self.stats();
        (stats.reserved_peak_bytes, stats.allocated_peak_bytes)
    }
}

fn unlimited<T>() -> T {
    unreachable!("the simulated device has no end and refuses nothing")
}

/// The tree, with counts of allocated bytes.
#[derive(Default)]
struct Counted {
    tree: Tree,
    used: u64,
    used_peak: u64,
}

/// The number of a block, and the bytes requested.
type TreeBlock = (usize, u64);

impl Contender for Mutex<Counted> {
    type Block = TreeBlock;

    #[inline]
    fn allocate(&self, bytes: u64) -> TreeBlock {
        let mut counted = self.lock().unwrap_or_else(PoisonError::into_inner);
        counted.used += bytes;
        counted.used_peak = counted.used_peak.max(counted.used);
        (counted.tree.allocate(bytes), bytes)
    }

    #[inline]
    fn free(&self, block: TreeBlock) {
        let mut counted = self.lock().unwrap_or_else(PoisonError::into_inner);
        counted.used -= block.1;
        counted.tree.free(block.0);
    }

    fn peaks(&self) -> (u64, u64) {
        let counted = self.lock().unwrap_or_else(PoisonError::into_inner);
        (counted.tree.reserved_peak(), counted.used_peak)
    }
}

/// Pseudo-random generator (xorshift) of the block to free and the bytes to allocate.
///
/// The same state gives the same next draw.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the power is 1 to 2^14"
    )]
    fn bytes(&mut self) -> u64 {
        let share = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        (share * OCTAVES).exp2() as u64 * UNIT
    }

    fn victim(&mut self, live: usize) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "below `live`")]
        let victim = (self.next() % live as u64) as usize;
        victim
    }
}

/// A contender with its live blocks.
struct Program<C: Contender> {
    contender: C,
    live: Vec<C::Block>,
    draw: Draw,
    drawn: Vec<(usize, u64)>,
}

impl<C: Contender> Program<C> {
    fn warm(contender: C, live: usize) -> Self {
        let mut draw = Draw(0x9E37_79B9_7F4A_7C15);
        let blocks = (0..live).map(|_| contender.allocate(draw.bytes())).collect();
        let mut program = Self { contender, live: blocks, draw, drawn: Vec::new() };
        program.run(4 * live as u64);
        program
    }

    /// Runs `pairs` pairs. Returns the time that they took, without drawing.
    fn run(&mut self, pairs: u64) -> Duration {
        let (mut took, mut left) = (Duration::ZERO, pairs);
        while left > 0 {
            let now = left.min(DRAWN as u64);
            let (draw, live) = (&mut self.draw, self.live.len());
            self.drawn.clear();
            self.drawn.extend((0..now).map(|_| (draw.victim(live), draw.bytes())));
            let start = Instant::now();
            for (victim, bytes) in &self.drawn {
                self.contender.free(self.live.swap_remove(*victim));
                self.live.push(black_box(self.contender.allocate(black_box(*bytes))));
            }
            took += start.elapsed();
            left -= now;
        }
        took
    }
}

fn measure<C: Contender>(c: &mut Criterion, name: &str, live: usize, contender: C) {
    let mut program = Program::warm(contender, live);
    let (footprint, used) = program.contender.peaks();
    let ratio = footprint as f64 / used as f64;
    #[expect(clippy::print_stderr, reason = "a figure of this run, beside the times")]
    {
        eprintln!("{name}, {live} live: footprint {ratio:.4} of the most live bytes");
    }
    c.bench_function(&format!("{name}, {live} live"), |b| {
        b.iter_custom(|pairs| program.run(pairs));
    });
}

fn pairs(c: &mut Criterion) {
    // `cargo test` runs this without optimization; then the smallest case is enough.
    let measured = std::env::args().any(|argument| argument == "--bench");
    for live in LIVE.into_iter().take(if measured { LIVE.len() } else { 1 }) {
        let pool = BucketPool::builder(SimDevice::new()).arena(ArenaConfig::grow());
        measure(c, "arena", live, pool.build());
        measure(c, "tree", live, Mutex::<Counted>::default());
    }
}

fn brief() -> Criterion {
    Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(2))
}

criterion_group! {
    name = benches;
    config = brief();
    targets = pairs
}
criterion_main!(benches);
