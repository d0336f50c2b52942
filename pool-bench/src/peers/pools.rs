//! Pools of host memory beside global allocators, on the jobs of a program with threads: sizes that
//! take turns, threads that have their own buffers, a thread among many that are parked, and blocks
//! that one thread takes and another frees.

use super::{Job, Peer};
use crate::apart::Process;
use crate::heap::{Global, Heap};
use crate::machine::{cpu_ns, timed_wall};
use crate::rounds::{Rounds, Row};
use bucketpool::host::HostAllocator;
use bucketpool::{BucketPolicy, BucketPool};
use parking_lot::Mutex;
use std::alloc::GlobalAlloc;
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

/// The jobs, and how many sizes, threads, parked threads or bytes.
pub(super) const CASES: [(&str, u64); 7] = [
    ("sizes", 1),
    ("sizes", 500),
    ("own buffers", 1),
    ("own buffers", 2),
    ("parked", 0),
    ("parked", 200),
    ("passed on", 4096),
];
/// The contender that the others are compared with.
pub(super) const REFERENCE: &str = "mimalloc";
const ROUNDS: usize = 15;
/// Sizes are multiples of this many bytes.
const STEP: usize = 1 << 10;
/// Blocks that a thread has at once, in the jobs of several threads.
const LIVE: usize = 64;
/// Blocks on their way from one thread to the other at most, and those that go together.
const ON_THE_WAY: usize = 16;
const BATCH: usize = 16;

/// A job, and how many blocks it takes.
#[derive(Clone, Copy)]
struct PoolJob<'j> {
    job: &'j str,
    size: usize,
    count: usize,
}

impl PoolJob<'_> {
    /// Nanoseconds for each block, of the CPU where one thread is measured, else of the wall.
    fn over<B: Heap>(self, blocks: &B) -> f64 {
        let ns = match self.job {
            "sizes" => self.sizes(blocks),
            "own buffers" => self.own_buffers(blocks),
            "parked" => self.parked(blocks),
            _ => self.handed_over(blocks),
        };
        ns / self.count as f64
    }

    /// Takes a block of one size after the other and frees it.
    #[inline(never)]
    fn sizes<B: Heap>(self, blocks: &B) -> f64 {
        let sizes: Vec<usize> = (1..=self.size).map(|at| at * STEP).collect();
        drop(sizes.iter().map(|bytes| blocks.allocate(*bytes)).collect::<Vec<_>>());
        let start = cpu_ns();
        for bytes in sizes.iter().cycle().take(self.count) {
            // By reference: to move a block would copy it, where one contender's is in memory only.
            let block = blocks.allocate(black_box(*bytes));
            black_box(&block);
        }
        (cpu_ns() - start) as f64
    }

    /// Replaces the oldest of a few blocks of 16 sizes.
    fn replace<B: Heap>(blocks: &B, count: usize) {
        let size = |at: usize| (at * 7 % 16 + 1) * STEP;
        let mut held: Vec<_> = (0..LIVE).map(|at| blocks.allocate(size(at))).collect();
        for at in 0..count {
            held[at % LIVE] = blocks.allocate(size(at));
            black_box(&held[at % LIVE]);
        }
    }

    fn own_buffers<B: Heap>(self, blocks: &B) -> f64 {
        let start = Barrier::new(self.size);
        let work = || {
            start.wait();
            timed_wall(|| Self::replace(blocks, self.count)).1
        };
        let most = thread::scope(|scope| {
            let threads: Vec<_> = (1..self.size).map(|_| scope.spawn(work)).collect();
            let own = work();
            threads.into_iter().filter_map(|thread| thread.join().ok()).fold(own, Ord::max)
        });
        most as f64
    }

    /// Replaces blocks on one thread among some that are parked, and have blocks, and two that are
    /// busy.
    fn parked<B: Heap>(self, blocks: &B) -> f64 {
        let (ready, end) = (Barrier::new(self.size + 1), Barrier::new(self.size + 1));
        let stop = AtomicBool::new(false);
        let busy = || {
            while !stop.load(Relaxed) {
                Self::replace(blocks, LIVE);
            }
        };
        thread::scope(|scope| {
            for _ in 0..self.size {
                scope.spawn(|| {
                    Self::replace(blocks, LIVE);
                    ready.wait();
                    end.wait();
                });
            }
            ready.wait();
            for _ in 0..if self.size == 0 { 0 } else { 2 } {
                scope.spawn(busy);
            }
            let start = cpu_ns();
            Self::replace(blocks, self.count);
            let took = cpu_ns() - start;
            stop.store(true, Relaxed);
            end.wait();
            took as f64
        })
    }

    /// One thread takes blocks of a size, another frees them.
    fn handed_over<B: Heap>(self, blocks: &B) -> f64 {
        let way: Mutex<Vec<Vec<B::Block>>> = Mutex::new(Vec::new());
        let batches = self.count / BATCH;
        let free = || {
            let mut freed = 0;
            while freed < batches {
                let come = std::mem::take(&mut *way.lock());
                freed += come.len();
                if come.is_empty() { thread::yield_now() } else { drop(come) }
            }
        };
        let pass_on = || {
            let batch = (0..BATCH).map(|_| blocks.allocate(self.size)).collect();
            while way.lock().len() >= ON_THE_WAY {
                thread::yield_now();
            }
            way.lock().push(batch);
        };
        let ((), ns) = timed_wall(|| {
            thread::scope(|scope| {
                scope.spawn(free);
                (0..batches).for_each(|_| pass_on());
            });
        });
        ns as f64
    }
}

impl Job for PoolJob<'_> {
    type Result = f64;

    fn run<A: GlobalAlloc + Sync>(self, allocator: &'static A) -> f64 {
        self.over(&Global(allocator))
    }
}

/// Runs one of the jobs with all contenders.
pub(super) fn run(job: &str, size: usize, process: &Process) -> Vec<Row> {
    let count = if process.smoke { 1000 } else { 100_000 };
    let run = PoolJob { job, size, count };
    let host = |policy| BucketPool::builder(HostAllocator::new()).policy(policy).build();
    let pools = [host(BucketPolicy::PowerOfTwo), host(BucketPolicy::Exact)];
    let mut names = vec!["pool, pow2", "pool, exact"];
    names.extend(Peer::names());
    let rounds = if process.smoke { 2 } else { process.share(ROUNDS) };
    let rounds = Rounds::of(&names, rounds, process.seed, |at| match at {
        0 | 1 => run.over(&pools[at]),
        _ => Peer::ALL[at - 2].run(run),
    });
    rounds.rows(job, size as u64)
}
