//! Counts that explain the times: what threads hand to each other, the same in each run.
//!
//! Eight threads take turns of 1 to 8 operations by a baton, in an order drawn from a seed. The
//! build counts what goes from one thread to another (`pool_core::counts`), and the device its
//! calls.

use super::contender::{OnHeap, ThreadContender};
use super::load::{HeapGroup, Mail, ThreadLoad, Worker};
use super::run;
use crate::counted::Counted;
use crate::heap::{Global, Heap, TCACHE, ThroughC};
use crate::spec::NamedPolicy;
use bucketpool::BucketPool;
use bucketpool::counts::{self, SharingCounts};
use bucketpool::host::{self, HostAllocator};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;

/// Threads that take turns.
const THREADS: usize = 8;
/// Operations in one turn at most.
const MAX_TURN: u32 = 8;
/// Turns that are not counted, and those that are.
const WARM: usize = 20_000;
const COUNTED: usize = 4000;
/// The seed of the order.
const SEED: u64 = 39;
/// Turns in a millisecond of the clock. All loads together take less than the second after which
/// the tcache asks the system whether memory is short.
const TURNS_OF_A_MILLISECOND: usize = 1000;

/// What one contender counted in one load, per 1000 operations; one line of the snapshot.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Counted1000 {
    /// The load.
    pub case: &'static str,
    /// Who was counted.
    pub contender: String,
    /// Accesses to a lock or a shared word whose last writer was another thread.
    pub transfers: f64,
    /// Looks at what another shard, or another thread's cache of the tcache, holds.
    pub looks: f64,
    /// Looks that found nothing.
    pub failed_looks: f64,
    /// Calls of the device; for the tcache, of the allocator below it; for `global()`, misses,
    /// bypasses and evictions.
    pub device_calls: f64,
    /// Calls of `membarrier`, which the tcache makes.
    pub barriers: f64,
}

/// Counts all loads with all contenders of this project.
#[must_use]
pub fn all(policies: &[NamedPolicy]) -> Vec<Counted1000> {
    let mut rows = Vec::new();
    for load in run::of(HeapGroup::Pools) {
        for policy in policies {
            let device = Counted::new(HostAllocator::new());
            let calls = device.calls();
            let asked = move || calls.asked().allocations + calls.asked().frees;
            let pool = policy.builder(device).build();
            rows.push(row(load, &policy.text, Baton { load, calls: &asked }.on(&pool)));
        }
        let calls = || {
            let stats = host::global().stats();
            stats.misses + stats.bypasses
        };
        let global = ThreadContender::GlobalPool;
        rows.push(row(load, &global.name(), global.with(Baton { load, calls: &calls })));
    }
    for load in run::of(HeapGroup::Allocators) {
        let calls = crate::heap::counted_inner::calls;
        let counted = Baton { load, calls: &calls }.on(&Global(&TCACHE));
        rows.push(row(load, "tcache", counted));
    }
    rows
}

/// Counts a pool with a shard for each thread, as on many cores, in Rust and through C.
#[must_use]
pub fn through_c() -> Vec<Counted1000> {
    let mut rows = Vec::new();
    for load in run::of(HeapGroup::Pools) {
        let device = Counted::new(HostAllocator::new());
        let calls = device.calls();
        let asked = move || calls.asked().allocations + calls.asked().frees;
        if let Ok(pool) = BucketPool::builder(device).shards(THREADS).try_build() {
            let counted = Baton { load, calls: &asked }.on(&pool);
            rows.push(row(load, "pow2, 8 shards", counted));
        }
        if let Some(pool) = ThroughC::new(c"policy = 'pow2'\nshards = 8") {
            let calls = || pool.device_calls();
            rows.push(row(
                load,
                "pow2, 8 shards, through C",
                Baton { load, calls: &calls }.on(&pool),
            ));
        }
    }
    rows
}

fn row(load: ThreadLoad, contender: &str, counted: Difference) -> Counted1000 {
    let Difference { before, after, calls, operations } = counted;
    // Three digits are exact enough, and the same on each machine.
    let per_1000 = |count: u64| (1e6 * count as f64 / operations as f64).round() / 1000.0;
    Counted1000 {
        case: load.name,
        contender: contender.to_owned(),
        transfers: per_1000(after.transfers - before.transfers),
        looks: per_1000(after.looks - before.looks),
        failed_looks: per_1000(after.failed_looks - before.failed_looks),
        device_calls: per_1000(calls),
        barriers: per_1000(after.barriers - before.barriers),
    }
}

/// The counts of the turns that are counted.
#[derive(Clone, Copy, Debug, Default)]
struct Difference {
    before: SharingCounts,
    after: SharingCounts,
    calls: u64,
    operations: u64,
}

/// A load on threads that take turns.
struct Baton<'b> {
    load: ThreadLoad,
    calls: &'b (dyn Fn() -> u64 + Sync),
}

/// Whose turn it is: the place in the order, and a bell for each thread.
#[derive(Default)]
struct BatonTurn {
    at: Mutex<usize>,
    bells: [Condvar; THREADS],
}

impl BatonTurn {
    /// Waits until the turn of this number is `thread`'s.
    fn wait_for(&self, number: usize, thread: usize) {
        let at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        let reached = self.bells[thread].wait_while(at, |at| *at < number);
        drop(reached.unwrap_or_else(PoisonError::into_inner));
    }

    /// Begins the turn of this number, which is `thread`'s.
    fn begin(&self, number: usize, thread: usize) {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = number;
        self.bells[thread].notify_one();
    }
}

/// Ends the process if a thread panics: the others would wait for its turn for ever.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            std::process::abort();
        }
    }
}

impl OnHeap for Baton<'_> {
    type Result = Difference;

    fn on<H: Heap>(self, heap: &H) -> Difference {
        let mut random = SmallRng::seed_from_u64(SEED);
        let order: Vec<(usize, u32)> = (0..WARM + COUNTED)
            .map(|_| (random.random_range(0..THREADS), random.random_range(1..=MAX_TURN)))
            .collect();
        let (mail, turn) = (Mail::new(THREADS), BatonTurn::default());
        let found = Mutex::new(Difference::default());
        let now = |end: bool| {
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            let at = if end { &mut found.after } else { &mut found.before };
            *at = counts::now();
            let calls = (self.calls)();
            found.calls = calls - if end { found.calls } else { 0 };
        };
        let end = order.len();
        let work = |thread: usize| {
            let _abort = AbortOnPanic;
            let mut worker = Worker::new(heap, self.load, &mail, thread);
            let own = order.iter().enumerate().filter(|(_, (of, _))| *of == thread);
            for (number, (_, operations)) in own {
                turn.wait_for(number, thread);
                counts::advance(u64::from(number % TURNS_OF_A_MILLISECOND == 0));
                if number == WARM {
                    now(false);
                }
                counts::count_as(u8::try_from(thread).ok());
                (0..*operations).for_each(|_| worker.operation());
                counts::count_as(None);
                if number + 1 == end {
                    now(true);
                }
                let next = order.get(number + 1).map_or(0, |(next, _)| *next);
                turn.begin(number + 1, next);
            }
            turn.wait_for(end + thread, thread);
        };
        // Threads end one after the other too: what each leaves, a thread of the next load gets.
        thread::scope(|scope| {
            let work = &work;
            let threads: Vec<_> =
                (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
            for (number, thread) in threads.into_iter().enumerate() {
                if number > 0 {
                    turn.begin(end + number, number);
                }
                drop(thread.join());
            }
        });
        let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        found.operations = order[WARM..].iter().map(|(_, operations)| u64::from(*operations)).sum();
        found
    }
}
