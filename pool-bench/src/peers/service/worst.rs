//! CPU time of the slowest of ten million operations.
//!
//! The same operations run several times. Each operation counts with its fastest run, because other
//! work of the machine can only make an operation slower.
#![expect(unsafe_code, reason = "allocators are called directly")]

use super::super::{Job, Peer};
use super::random_layout;
use crate::apart::Process;
use crate::machine::{cpu_ns, timed};
use crate::rounds::Row;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::alloc::{GlobalAlloc, Layout};
use std::hint::black_box;

const OPERATIONS: usize = 10_000_000;
const RUNS: usize = 5;
const SEED: u64 = 1;
/// Largest number of live blocks.
const LIVE: usize = 512;
/// Base-2 logarithm of the largest block in bytes.
const BITS: u32 = 24;
/// Distance in bytes between two bytes of a block that are written.
const STRIDE: usize = 256 << 10;

/// A job that times each operation. The unit is the nanosecond, because the table prints one
/// decimal digit, which is too coarse for times in microseconds.
struct Slowest {
    operations: usize,
    runs: usize,
}

/// Nanoseconds of the fastest run of each operation, and whether the operation was a free.
struct Times {
    ns: Vec<u32>,
    frees: Vec<bool>,
}

impl Job for Slowest {
    type Result = Times;

    fn run<A: GlobalAlloc + Sync>(self, allocator: &'static A) -> Times {
        let mut ns = vec![u32::MAX; self.operations];
        let mut frees = vec![false; self.operations];
        for _ in 0..self.runs {
            one_run(allocator, &mut ns, &mut frees);
        }
        Times { ns, frees }
    }
}

/// Runs all operations once and updates the fastest time of each.
fn one_run<A: GlobalAlloc>(allocator: &A, ns: &mut [u32], frees: &mut [bool]) {
    let mut random = SmallRng::seed_from_u64(SEED);
    let mut live: Vec<(*mut u8, Layout)> = Vec::with_capacity(LIVE);
    for (best, is_free) in ns.iter_mut().zip(frees) {
        *is_free = live.len() == LIVE || !live.is_empty() && random.random_bool(0.49);
        let took = if *is_free {
            let (block, layout) = live.swap_remove(random.random_range(0..live.len()));
            // SAFETY: `alloc` below returned it for this layout, and `swap_remove` took it out of
            // the list, so it is freed once.
            timed(|| unsafe { allocator.dealloc(block, layout) }).1
        } else {
            let layout = random_layout(&mut random, BITS);
            // SAFETY: the layout's size is at least 64 bytes, not 0.
            let (block, took) = timed(|| unsafe { allocator.alloc(layout) });
            touch(block, layout);
            live.push((block, layout));
            took
        };
        *best = u32::try_from(took).unwrap_or(u32::MAX).min(*best);
    }
    for (block, layout) in live {
        // SAFETY: `alloc` above returned it for this layout, and it is still live.
        unsafe { allocator.dealloc(block, layout) };
    }
}

/// Writes one byte in each [`STRIDE`] of a block.
fn touch(block: *mut u8, layout: Layout) {
    for at in (0..layout.size()).step_by(STRIDE) {
        // SAFETY: `at` is less than the block's size. The bench assumes that `alloc` did not fail.
        let byte = unsafe { block.add(at) };
        // SAFETY: `byte` is inside the block, which only this thread uses.
        unsafe { byte.write_volatile(1) };
    }
}

fn row(case: &str, peer: Peer, ns: Option<u32>) -> Row {
    Row {
        case: case.into(),
        contender: peer.name().into(),
        samples: vec![vec![ns.map(f64::from)]],
        ..Row::default()
    }
}

pub(super) fn run(peer: Peer, process: &Process) -> Vec<Row> {
    let (operations, runs) = if process.smoke { (1000, 1) } else { (OPERATIONS, RUNS) };
    let Times { mut ns, frees } = peer.run(Slowest { operations, runs });
    let slowest = |free: bool| {
        let of_kind = ns.iter().zip(&frees).filter(|(_, is_free)| **is_free == free);
        of_kind.map(|(ns, _)| *ns).max()
    };
    let (allocation, free) = (slowest(false), slowest(true));
    ns.sort_unstable();
    let rare = ns.get(operations - 1 - operations / 10_000).copied();
    let clock = (0..operations).map(|_| timed(|| ()).1).min();
    let clock = clock.and_then(|ns| u32::try_from(ns).ok());
    vec![
        row("the slowest allocation of ten million operations", peer, allocation),
        row("the slowest free of ten million operations", peer, free),
        row("slower than all but one in ten thousand operations", peer, rare),
        row("reading the clock", peer, clock),
    ]
}

/// A job that frees a block of 12 MiB into a cache that is full of blocks of 64 bytes.
struct FreedLarge {
    rounds: usize,
}

const LARGE: usize = 12 << 20;
const SMALL: usize = 64;
const SMALLS: usize = 2 << 20;

impl Job for FreedLarge {
    /// Nanoseconds of each free, and whether the next request of the same size got the block.
    type Result = Vec<(u64, bool)>;

    fn run<A: GlobalAlloc + Sync>(self, allocator: &'static A) -> Vec<(u64, bool)> {
        let (Ok(small), Ok(large)) =
            (Layout::from_size_align(SMALL, 8), Layout::from_size_align(LARGE, 8))
        else {
            return Vec::new();
        };
        let one = |_| {
            // SAFETY: the layout's size is 12 MiB, not 0.
            let block = unsafe { allocator.alloc(large) };
            touch(block, large);
            // SAFETY: the layout's size is 64 bytes, not 0.
            let smalls: Vec<_> = (0..SMALLS).map(|_| unsafe { allocator.alloc(small) }).collect();
            for small_block in smalls {
                // SAFETY: `alloc` above returned it for this layout, and it is freed once.
                unsafe { allocator.dealloc(small_block, small) };
            }
            let start = cpu_ns();
            // SAFETY: `alloc` above returned it for this layout, and it is freed once.
            unsafe { allocator.dealloc(block, large) };
            let ns = cpu_ns() - start;
            // SAFETY: the layout's size is 12 MiB, not 0.
            let again = unsafe { allocator.alloc(large) };
            let is_kept = black_box(again) == block;
            // SAFETY: `alloc` above returned it for this layout, and it is freed once.
            unsafe { allocator.dealloc(again, large) };
            (ns, is_kept)
        };
        (0..self.rounds).map(one).collect()
    }
}

pub(super) fn free_large(peer: Peer, process: &Process) -> Vec<Row> {
    let frees = peer.run(FreedLarge { rounds: if process.smoke { 1 } else { 5 } });
    let kept = frees.iter().filter(|(_, kept)| *kept).count();
    let samples = frees.iter().map(|(ns, _)| Some(*ns as f64)).collect();
    vec![Row {
        case: "a free of 12 MiB, after two million of 64 bytes".into(),
        contender: peer.name().into(),
        hit_rate: Some(kept as f64 / frees.len().max(1) as f64),
        samples: vec![samples],
        ..Row::default()
    }]
}
