//! The free run: threads as fast as they can, contenders in turns within each round.

use super::contender::{OnHeap, ThreadContender};
use super::load::{CASES, HeapGroup, Mail, ThreadLoad, Worker};
use crate::heap::Heap;
use crate::rounds::{self, Rounds, Row};
use crate::spec::NamedPolicy;
use crate::statistics::Orders;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// The contender that the others are compared with.
const REFERENCE: &str = "mimalloc";
/// Rounds of each load on each number of threads.
const ROUNDS: usize = 5;
/// How long a contender runs in a round.
const TIME: Duration = Duration::from_millis(30);
/// Operations of each thread before that, if they take no longer than four times [`TIME`]: a pool is
/// new in each round, and a global allocator may have given memory back since its last one.
const TO_WARM_UP: u64 = 100_000;
/// Operations between two looks at the clock.
const BETWEEN: u32 = 16;
/// A round is tried this often until two threads have two cores.
const MAX_TRIES: usize = 20;
/// How long two threads spin to see whether they have two cores.
const SPIN: Duration = Duration::from_millis(2);
/// The share of the time that each of the two must have had.
const SHARE: f64 = 0.9;

/// The figures of a run, and how many rounds were discarded.
#[derive(Debug, Default)]
pub struct Ran {
    /// A row for each load, number of threads (its size) and contender.
    pub rows: Vec<Row>,
    /// Rounds in which two spinning threads did not get two cores.
    pub discarded: usize,
    /// Rounds that were kept although they did not: none of many tries had two cores.
    pub doubtful: usize,
}

/// The numbers of threads: powers of two up to twice the cores.
#[must_use]
pub fn numbers() -> Vec<usize> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    (0..=(2 * cores).ilog2()).map(|shift| 1 << shift).collect()
}

/// How many times [`run`] calls `tick`.
#[must_use]
pub fn steps(smoke: bool) -> u64 {
    (CASES.len() * numbers().len() * rounds(smoke)) as u64
}

fn rounds(smoke: bool) -> usize {
    if smoke { 1 } else { ROUNDS }
}

/// Runs all loads on all numbers of threads. `tick` is called after each round.
pub fn run(policies: &[NamedPolicy], smoke: bool, seed: u64, mut tick: impl FnMut(&str)) -> Ran {
    let (mut ran, mut orders) = (Ran::default(), Orders::new(seed));
    let time = if smoke { TIME / 30 } else { TIME };
    for load in CASES {
        let contenders = ThreadContender::of(&load, policies);
        for threads in numbers() {
            let mut samples = vec![Vec::new(); contenders.len()];
            let mut reserved = vec![Vec::new(); contenders.len()];
            let mut taken = Vec::new();
            for _ in 0..rounds(smoke) {
                let order = orders.next(contenders.len());
                let took: Vec<(usize, ThreadFigures)> = ran.round(smoke, || {
                    let run =
                        |at: &usize| (*at, contenders[*at].with(FreeRun { load, threads, time }));
                    order.iter().map(run).collect()
                });
                for (at, ThreadFigures { ns, reserved: bytes }) in took {
                    samples[at].push(Some(ns));
                    reserved[at].extend(bytes);
                }
                taken.push(order);
                tick(load.name);
            }
            let names: Vec<String> = contenders.iter().map(ThreadContender::name).collect();
            let rounds = Rounds::of_samples(names, samples, &taken);
            let mut rows = rounds::pool(vec![rounds.rows(load.name, threads as u64)], &[REFERENCE]);
            for ((row, contender), of) in rows.iter_mut().zip(&contenders).zip(&mut reserved) {
                of.sort_unstable();
                row.reserved_peak_bytes = of.get(of.len() / 2).copied();
                let of_one = contender.with_one_shard(FreeRun { load, threads, time });
                row.reserved_peak_of_one_shard_bytes = of_one.and_then(|one| one.reserved);
            }
            ran.rows.extend(rows);
        }
    }
    ran
}

impl Ran {
    /// Runs a round until two threads had two cores before it and after it.
    fn round<R>(&mut self, smoke: bool, mut work: impl FnMut() -> R) -> R {
        for _ in 1..if smoke { 1 } else { MAX_TRIES } {
            if two_cores() {
                let result = work();
                if two_cores() {
                    return result;
                }
            }
            self.discarded += 1;
        }
        self.doubtful += usize::from(!smoke);
        work()
    }
}

/// Whether two threads that spin get two cores.
fn two_cores() -> bool {
    let spin = || {
        let (start, cpu) = (Instant::now(), crate::machine::cpu_ns());
        while start.elapsed() < SPIN {
            std::hint::spin_loop();
        }
        let had = (crate::machine::cpu_ns() - cpu) as f64;
        had >= SHARE * start.elapsed().as_nanos() as f64
    };
    thread::scope(|scope| {
        let other = scope.spawn(spin);
        let own = spin();
        other.join().is_ok_and(|other| other) && own
    })
}

/// A load on threads that run at once.
struct FreeRun {
    load: ThreadLoad,
    threads: usize,
    time: Duration,
}

/// What a free run gave.
struct ThreadFigures {
    /// Nanoseconds of an operation on its thread.
    ns: f64,
    /// The most bytes that a pool had from its device.
    reserved: Option<u64>,
}

impl OnHeap for FreeRun {
    type Result = ThreadFigures;

    fn on<H: Heap>(self, heap: &H) -> ThreadFigures {
        let (mail, start) = (Mail::new(self.threads), Barrier::new(self.threads));
        let stop = AtomicBool::new(false);
        // A block of some MiB takes as long as a thousand small ones.
        let between = if self.load.touch == usize::MAX { BETWEEN } else { 1 };
        let work = |number: usize| {
            let mut worker = Worker::new(heap, self.load, &mail, number);
            (0..2 * self.load.live).for_each(|_| worker.operation());
            warm_up(&mut worker, between, 4 * self.time);
            // All threads are timed at once: from here until the first has had its time.
            start.wait();
            run_for(&mut worker, between, self.time, &stop)
        };
        let mut ran = thread::scope(|scope| {
            let others: Vec<_> =
                (1..self.threads).map(|number| scope.spawn(move || work(number))).collect();
            let own = work(0);
            let others = others.into_iter().filter_map(|thread| thread.join().ok());
            others.chain([own]).collect::<Vec<_>>()
        });
        let (time, operations) = ran.drain(..).fold((0.0, 0), |(time, operations), (took, ops)| {
            (time + took.as_nanos() as f64, operations + ops)
        });
        ThreadFigures { ns: time / operations as f64, reserved: heap.reserved_peak_bytes() }
    }
}

/// Runs operations until there were enough of them, or for this long; `between` of them between two
/// looks at the clock.
fn warm_up<H: Heap>(worker: &mut Worker<'_, H>, between: u32, time: Duration) {
    let (start, mut operations) = (Instant::now(), 0);
    while operations < TO_WARM_UP && start.elapsed() < time {
        (0..between).for_each(|_| worker.operation());
        operations += u64::from(between);
    }
}

/// Runs operations for this long, or until another thread had its time; `between` of them between
/// two looks at the clock. Returns the time and their number.
fn run_for<H: Heap>(
    worker: &mut Worker<'_, H>,
    between: u32,
    time: Duration,
    stop: &AtomicBool,
) -> (Duration, u64) {
    let (start, mut operations) = (Instant::now(), 0_u64);
    loop {
        (0..between).for_each(|_| worker.operation());
        operations += u64::from(between);
        let took = start.elapsed();
        if took >= time || stop.load(Relaxed) {
            stop.store(true, Relaxed);
            return (took, operations);
        }
    }
}

/// Runs one contender with a fixed number of operations, for a program that counts system calls.
pub fn fixed(contender: &ThreadContender, load: ThreadLoad, threads: usize, operations: u64) {
    contender.with(Fixed { load, threads, operations });
}

struct Fixed {
    load: ThreadLoad,
    threads: usize,
    operations: u64,
}

impl OnHeap for Fixed {
    type Result = ();

    fn on<H: Heap>(self, heap: &H) {
        let mail = Mail::new(self.threads);
        let (mail, share) = (&mail, self.operations / self.threads as u64);
        let load = self.load;
        thread::scope(|scope| {
            for number in 0..self.threads {
                scope.spawn(move || {
                    let mut worker = Worker::new(heap, load, mail, number);
                    (0..share).for_each(|_| worker.operation());
                });
            }
        });
    }
}

/// Returns the load of this name.
#[must_use]
pub fn named(name: &str) -> Option<ThreadLoad> {
    CASES.into_iter().find(|load| load.name == name)
}

/// Returns the loads of pools, and of allocators.
pub fn of(group: HeapGroup) -> impl Iterator<Item = ThreadLoad> {
    CASES.into_iter().filter(move |load| load.group == group)
}
