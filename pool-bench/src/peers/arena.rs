//! Allocators that split one region, on recorded traces: nanoseconds per operation, and what they
//! reserve over the live peak. Each round begins with an allocator that has nothing.

mod contenders;
mod torch;

use crate::apart::Process;
use crate::input::BadInput;
use crate::machine::cpu_ns;
use crate::rounds::{self, Rounds, Row};
use crate::spec;
use crate::trace::{self, Step, Trace};
use crate::tree::{Tree, UNIT};
use bucketpool::ZeroPolicy;
use bucketpool::sim::SimDevice;
use contenders::{Locked, Offset, Ours, Tlsf};
use parking_lot::Mutex;
use std::hint::black_box;
use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;
use torch::Torch;

/// The contender that the others are compared with.
const REFERENCE: &str = "offset-allocator";
/// The contender that the others are compared with where two threads share an allocator.
const SHARED_REFERENCE: &str = "offset-allocator, mutex";
/// Follows the name of a trace that two threads replay at once; the clock is the wall's.
const TWO_THREADS: &str = ", two threads (wall clock)";
/// Rounds of all processes together.
const ROUNDS: usize = 15;
/// A region that cannot grow is this many times the live peak, so that all find room.
const REGION: u64 = 6;

/// The contenders, and what each does not do that ours does.
pub(crate) const CONTENDERS: [(&str, &str); 8] = [
    (REFERENCE, "threads, streams, growth, statistics"),
    (SHARED_REFERENCE, "streams, growth, statistics"),
    ("rlsf, mutex", "streams, statistics; writes its headers into the memory"),
    ("best-fit tree, mutex", "streams, statistics; grows at its end, gives nothing back"),
    ("PyTorch's rules, mutex", "streams, statistics; gives nothing back"),
    ("arena", ""),
    ("arena:pages=64K:slack=5%", ""),
    ("preset:caching", ""),
];

/// An allocator that splits a region into blocks.
pub(super) trait Region {
    type Block;
    fn allocate(&mut self, bytes: u64) -> Option<Self::Block>;
    fn free(&mut self, block: Self::Block);
}

/// Its memory.
pub(super) trait Reserved {
    /// The most bytes taken from the memory below.
    fn reserved_peak(&self) -> u64;
}

/// An allocator that threads share.
pub(super) trait Shared: Reserved + Sync {
    type Block;
    fn allocate(&self, bytes: u64) -> Option<Self::Block>;
    fn free(&self, block: Self::Block);
}

/// One thread's way to an allocator that it shares.
struct Through<'s, S>(&'s S);

impl<S: Shared> Region for Through<'_, S> {
    type Block = S::Block;

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Option<S::Block> {
        self.0.allocate(bytes)
    }
    #[inline]
    fn free(&mut self, block: S::Block) {
        self.0.free(block);
    }
}

/// The result of a contender in one round.
struct Measured {
    ns_per_op: f64,
    reserved_peak: u64,
}

/// Replays a trace on one thread, and on two that share the allocator.
pub(crate) fn run(file: &Path, process: &Process) -> Result<Vec<Row>, BadInput> {
    let mut trace = trace::read(file)?;
    if process.smoke {
        trace.steps.truncate(10_000);
    }
    let mut rows = rows(&trace, process, &CONTENDERS, false);
    // The first has no lock.
    rows.extend(self::rows(&trace, process, &CONTENDERS[1..], true));
    Ok(rows)
}

/// Joins what several processes measured: beside the bare allocator on one thread, and beside it
/// behind a mutex on two.
pub(crate) fn pool(processes: Vec<Vec<Row>>) -> Vec<Row> {
    let split = |rows: Vec<Row>| -> (Vec<Row>, Vec<Row>) {
        rows.into_iter().partition(|row| !row.case.ends_with(TWO_THREADS))
    };
    let (one, two) = processes.into_iter().map(split).unzip();
    let mut rows = rounds::pool(one, &[REFERENCE]);
    rows.extend(rounds::pool(two, &[SHARED_REFERENCE]));
    rows
}

fn rows(trace: &Trace, process: &Process, contenders: &[(&str, &str)], two: bool) -> Vec<Row> {
    let rounds = if process.smoke { 2 } else { process.share(ROUNDS) };
    let mut reserved = vec![0; contenders.len()];
    let names: Vec<&str> = contenders.iter().map(|(name, _)| *name).collect();
    let (took, failures) = Rounds::run(&names, (1, rounds), process.seed, |at| {
        let outcome = contend(names[at], trace, two).ok_or("no memory")?;
        reserved[at] = outcome.reserved_peak;
        Ok::<_, &str>(outcome.ns_per_op)
    });
    let case = if two { TWO_THREADS } else { "" };
    let mut rows = took.rows(&format!("{}{case}", trace.name), 0);
    for (((row, (_, absent)), reserved), failure) in
        rows.iter_mut().zip(contenders).zip(reserved).zip(failures)
    {
        (*absent).clone_into(&mut row.absent);
        // Two replays overlap by chance, so their live peak is not known.
        if !two {
            row.reserved_peak_bytes = Some(reserved);
            row.live_peak_bytes = Some(trace.live_peak_bytes);
        }
        row.page_faults = None;
        row.refused = failure.map(str::to_owned);
    }
    rows
}

fn contend(name: &str, trace: &Trace, two: bool) -> Option<Measured> {
    // Room for two threads, so that rounds of both kinds can share memory.
    let region = (2 * trace.live_peak_bytes * REGION).next_multiple_of(UNIT) + (1 << 20);
    let offset = || Offset::new(region, 2 * trace.slots);
    match name {
        REFERENCE => {
            let mut bare = offset();
            let ns_per_op = replay(trace, &mut bare)?;
            Some(Measured { ns_per_op, reserved_peak: bare.reserved_peak() })
        }
        SHARED_REFERENCE => share(trace, two, &Locked(Mutex::new(offset()))),
        "rlsf, mutex" => share(trace, two, &Locked(Mutex::new(Tlsf::new(region)))),
        "best-fit tree, mutex" => share(trace, two, &Locked(Mutex::new(Tree::default()))),
        "PyTorch's rules, mutex" => share(trace, two, &Locked(Mutex::new(Torch::default()))),
        ours => {
            // A pool with an arena of simulated pages, as `cargo xtask replay` has it.
            let spec = spec::list(ours).ok()?.pop()?;
            let pool = spec.builder(SimDevice::new()).zero(ZeroPolicy::Never).build();
            share(trace, two, &Ours(pool))
        }
    }
}

/// Replays on one thread, or on two at once. With two the time is that from the start until both
/// have finished, so an allocator that lets one of them wait gains nothing by it.
fn share<S: Shared>(trace: &Trace, two: bool, shared: &S) -> Option<Measured> {
    let reserved = |ns_per_op| Measured { ns_per_op, reserved_peak: shared.reserved_peak() };
    if !two {
        return replay(trace, &mut Through(shared)).map(reserved);
    }
    let (start, end) = (Barrier::new(2), Barrier::new(2));
    let one = || {
        let mut slots = empty_slots(trace);
        start.wait();
        let began = Instant::now();
        let served = run_steps(trace, &mut Through(shared), &mut slots);
        end.wait();
        let took = began.elapsed().as_nanos() as f64;
        slots.into_iter().flatten().for_each(|block| shared.free(block));
        served.then_some(took / trace.steps.len() as f64)
    };
    let took = thread::scope(|scope| {
        let other = scope.spawn(one);
        let own = one();
        Some(own?.max(other.join().ok()??))
    });
    took.map(reserved)
}

/// Runs all steps on this thread; blocks that are live at the end are freed after that. Returns
/// nanoseconds of the CPU for each step.
fn replay<R: Region>(trace: &Trace, region: &mut R) -> Option<f64> {
    let mut slots = empty_slots(trace);
    let start = cpu_ns();
    let served = run_steps(trace, region, &mut slots);
    let took = (cpu_ns() - start) as f64;
    slots.into_iter().flatten().for_each(|block| region.free(block));
    served.then_some(took / trace.steps.len() as f64)
}

fn empty_slots<B>(trace: &Trace) -> Vec<Option<B>> {
    (0..trace.slots).map(|_| None).collect()
}

/// Returns false at the first request that is refused.
fn run_steps<R: Region>(trace: &Trace, region: &mut R, slots: &mut [Option<R::Block>]) -> bool {
    for step in &trace.steps {
        match *step {
            Step::Allocate { slot, bytes, .. } => {
                let Some(block) = region.allocate(black_box(bytes)) else { return false };
                slots[slot as usize] = Some(block);
            }
            Step::Free { slot, .. } => {
                if let Some(block) = slots[slot as usize].take() {
                    region.free(block);
                }
            }
            Step::Use { .. } => {}
        }
    }
    true
}
