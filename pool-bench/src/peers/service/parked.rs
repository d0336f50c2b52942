//! CPU time of an allocation and its free on one working thread, alone and beside parked threads,
//! which have worked before and now wait.
#![expect(unsafe_code, reason = "allocators are called directly")]

use super::super::{Job, Peer, TCACHE};
use super::random_layout;
use crate::apart::Process;
use crate::machine::cpu_ns;
use crate::rounds::{Rounds, Row};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use std::alloc::{GlobalAlloc, Layout};
use std::sync::Barrier;
use std::thread;

/// Numbers of parked threads.
const PARKED: [usize; 3] = [0, 90, 1000];
const ROUNDS: usize = 10;
/// Number of blocks that a thread has at once.
const BLOCKS: usize = 40;
/// Base-2 logarithm of the largest block in bytes.
const BITS: u32 = 16;
const TURNS: u32 = 5000;
/// Nanoseconds of CPU time that the thread works before the measurement, so that the allocator has
/// adapted as in a program that has run for a while.
const WARM: u64 = 2_000_000_000;

/// Allocates blocks of many sizes, writes to each, and frees them.
fn work<A: GlobalAlloc>(allocator: &A, layouts: &[Layout]) {
    let take = |layout: &Layout| {
        // SAFETY: each layout's size is at least 64 bytes, not 0.
        let block = unsafe { allocator.alloc(*layout) };
        // SAFETY: the first byte is inside the block. The bench assumes that `alloc` did not fail.
        unsafe { block.write_volatile(1) };
        (block, *layout)
    };
    let blocks: Vec<_> = layouts.iter().map(take).collect();
    for (block, layout) in blocks {
        // SAFETY: `alloc` above returned it for this layout, and it is freed once.
        unsafe { allocator.dealloc(block, layout) };
    }
}

struct Beside {
    parked: usize,
    turns: u32,
    warm: u64,
    seed: u64,
}

impl Job for Beside {
    type Result = f64;

    fn run<A: GlobalAlloc + Sync>(self, allocator: &'static A) -> f64 {
        let layouts = |number: usize| -> Vec<Layout> {
            let mut random = SmallRng::seed_from_u64(self.seed.wrapping_add(number as u64));
            (0..BLOCKS).map(|_| random_layout(&mut random, BITS)).collect()
        };
        let (worked, done) = (Barrier::new(self.parked + 1), Barrier::new(self.parked + 1));
        thread::scope(|scope| {
            for number in 1..=self.parked {
                let (worked, done, layouts) = (&worked, &done, &layouts);
                scope.spawn(move || {
                    work(allocator, &layouts(number));
                    worked.wait();
                    done.wait();
                });
            }
            worked.wait();
            let own = layouts(0);
            let began = cpu_ns();
            while cpu_ns() - began < self.warm {
                work(allocator, &own);
            }
            let start = cpu_ns();
            (0..self.turns).for_each(|_| work(allocator, &own));
            let ns = cpu_ns() - start;
            done.wait();
            ns as f64 / (f64::from(self.turns) * BLOCKS as f64)
        })
    }
}

/// Runs the case and returns one row for each number of parked threads. The rows of the tcache also
/// have its hit rate.
pub(super) fn run(peer: Peer, process: &Process) -> Vec<Row> {
    let parked: &[usize] = if process.smoke { &PARKED[..2] } else { &PARKED };
    let name = |parked: &usize| match parked {
        0 => format!("{}, alone", peer.name()),
        parked => format!("{}, {parked} parked", peer.name()),
    };
    let names: Vec<String> = parked.iter().map(name).collect();
    let (rounds, turns, warm) = match process.smoke {
        true => (1, 2, 0),
        false => (process.share(ROUNDS), TURNS, WARM),
    };
    let mut hits = vec![0.0; parked.len()];
    let rounds = Rounds::of(&names, rounds, process.seed, |at| {
        let before = TCACHE.stats();
        let ns = peer.run(Beside { parked: parked[at], turns, warm, seed: process.seed });
        let after = TCACHE.stats();
        let requests = after.allocations - before.allocations;
        hits[at] = (after.hits - before.hits) as f64 / requests.max(1) as f64;
        ns
    });
    let mut rows = rounds.rows("an allocation and its free, beside parked threads", 0);
    if peer == Peer::Tcache {
        for (row, hits) in rows.iter_mut().zip(hits) {
            row.hit_rate = Some(hits);
        }
    }
    rows
}
