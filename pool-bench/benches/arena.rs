//! One free and one allocation in an arena with many live blocks, beside an ordered tree.
//!
//! Measured, on one thread and with 1000 to 1 000 000 live blocks: a random block is freed, and one
//! of a fresh size is allocated. Sizes are log-uniform, 512 bytes to 8 MiB, multiples of 512 bytes.
//! Both contenders see the same requests in the same order, and are measured after four times as
//! many pairs as there are live blocks, so that free memory lies as it does after a while.
//!
//! - `arena`: a pool with an arena in pages of a simulated device. What it does besides is measured
//!   too: figures are counted, and when a request needs more pages they are committed, others given
//!   back before.
//! - `tree`: exact best fit from a `BTreeSet` by size and address, behind a mutex. No streams, no
//!   figures, no generations, no device: it grows at its end and gives nothing back.
//!
//! A random block is a cache miss in the program's own list and several in the books. From 100 000
//! live blocks on these are most of the time, and that varies with what else uses the cache.
//!
//! Printed before each measurement: the footprint over the most live bytes, both at their peak. For
//! the tree the footprint is the end of its highest block. The arena commits ahead up to what its
//! configuration allows, 1.084 times the most live bytes here, so its figure says that it keeps to
//! that, not how little would do.

use bucketpool::sim::SimDevice;
use bucketpool::{ArenaConfig, BucketPool, PooledBuffer};
use criterion::{Criterion, criterion_group, criterion_main};
use pool_bench::tree::{Tree, UNIT};
use std::hint::black_box;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const LIVE: [usize; 4] = [1000, 10_000, 100_000, 1_000_000];
/// The largest is below this power of two of units: 8 MiB.
const OCTAVES: f64 = 14.0;
/// Requests that are drawn at a time, so that drawing is not measured.
const DRAWN: usize = 1024;

/// Hands out blocks of memory, and takes them back.
trait Contender {
    type Block;
    fn allocate(&self, bytes: u64) -> Self::Block;
    fn free(&self, block: Self::Block);
    /// The most bytes taken from the device, and the most handed out.
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

/// The tree, and the bytes that are handed out.
#[derive(Default)]
struct Counted {
    tree: Tree,
    used: u64,
    used_peak: u64,
}

/// A number of a block, and the bytes requested.
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

/// Which block to free, and how many bytes to allocate then: the same for the same number before
/// (xorshift).
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

    /// Does so many pairs. Returns how long they took, without drawing.
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
    // As a test, which is not optimized, the fewest are enough.
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
