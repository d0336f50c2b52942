//! A soak: threads replay traces over shared pools, again and again, while device calls fail. The
//! memory of the pools and of the process must not grow once the pools are warm.

mod rounds;

use crate::input::BadInput;
use crate::machine::resident;
use crate::statistics::Slope;
use crate::trace::{Step, Trace};
use bucketpool::host::HostAllocator;
use bucketpool::sim::{SimCall, SimDevice};
use bucketpool::{ArenaConfig, BucketPool, DeviceAllocator, KIB, PoolStats, PooledBuffer};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Steps of a trace in one round, so that a round takes about a second.
const STEPS: usize = 20_000;
/// Of this many samples, the first warms the pools up: a pool keeps records for the most blocks
/// that it ever had at once, and how many threads have at once depends on how their work overlaps.
const WARM: usize = 2;
/// Bytes that memory may grow by in an hour: what pages of glibc's heap come to that hold both what
/// is in use and what is not. The error of a line must not hide more.
const BYTES_PER_HOUR: f64 = 4.0 * 1024.0 * 1024.0;
/// File descriptors that may be opened in an hour and not closed; any more are a leak.
const DESCRIPTORS_PER_HOUR: f64 = 1.0;
/// Fewest samples for a verdict.
const SAMPLES: u64 = 20;
/// Calls of the simulated device that fail now and then.
const FAULTS: [SimCall; 4] = [SimCall::Allocate, SimCall::Free, SimCall::Commit, SimCall::Decommit];

/// The figures after some rounds, when all buffers are dropped: bytes reserved before the pools
/// were emptied, and the rest after.
#[derive(Clone, Copy, Debug)]
struct Sample {
    seconds: f64,
    reserved: u64,
    resident: u64,
    descriptors: u64,
}

/// The outcome of a soak; one line of its record.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Soaked {
    /// Minutes that it took.
    pub soak_minutes: f64,
    /// Threads that replayed.
    pub threads: usize,
    /// Rounds, each of which replays a part of a trace on each thread over each pool.
    pub rounds: u64,
    /// Samples of the figures, each after all parts of all traces; 0 if a record has none.
    #[serde(default)]
    pub samples: u64,
    /// Requests and frees.
    pub operations: u64,
    /// Requests that were refused because a call of the device failed.
    pub refused: u64,
    /// Bytes that the pools hold before they are emptied, per hour of the second half. How much is
    /// cached depends on how the threads' work overlaps; that all goes back is checked each time.
    pub reserved: Slope,
    /// Resident bytes of the process, per hour of the second half.
    pub resident: Slope,
    /// Open file descriptors, per hour of the second half.
    pub descriptors: Slope,
}

/// The pools that a soak shares between its threads.
struct Pools {
    buckets: BucketPool<HostAllocator>,
    pages: BucketPool<HostAllocator>,
    device: SimDevice,
    faulty: BucketPool<SimDevice>,
    faulty_arena: BucketPool<SimDevice>,
}

impl Pools {
    fn new() -> Self {
        let device = SimDevice::new();
        let host = || BucketPool::builder(HostAllocator::new());
        let sim = || BucketPool::builder(device.clone());
        Self {
            buckets: host().build(),
            pages: host().arena(ArenaConfig::pages(64 * KIB, 0.05)).build(),
            faulty: sim().build(),
            faulty_arena: sim().arena(ArenaConfig::pages(64 * KIB, 0.05)).build(),
            device,
        }
    }

    /// The exact figures of each.
    fn stats(&self) -> [PoolStats; 4] {
        [self.buckets.stats(), self.pages.stats(), self.faulty.stats(), self.faulty_arena.stats()]
    }

    /// Bytes that all of them hold. What the device refused to take back is not growth of a pool.
    fn reserved(&self) -> u64 {
        self.stats().iter().map(|stats| stats.reserved_bytes - stats.lost_bytes).sum()
    }

    /// Gives all cached memory back, and checks that each pool then holds only what the device did
    /// not take back.
    fn empty(&self) -> Result<(), BadInput> {
        self.device.stop_failing();
        let failed = |error| BadInput::new(format!("clear: {error}"), "all cached memory back");
        self.buckets.clear().map_err(failed)?;
        self.pages.clear().map_err(failed)?;
        self.faulty.clear().map_err(failed)?;
        self.faulty_arena.clear().map_err(failed)?;
        self.check()?;
        // What it did not take back is lost to the pools, and stays in the records of the device.
        self.device.reclaim_refused();
        match (self.reserved(), self.device.held_bytes()) {
            (0, 0) => Ok(()),
            (pools, device) => {
                let what = format!(
                    "after `clear` the pools have {pools} bytes reserved, and the device has \
                     {device} handed out that it did not refuse to take back"
                );
                Err(BadInput::new(what, "none when no buffer is live"))
            }
        }
    }

    /// Checks that the figures of each pool add up when no buffer is live.
    fn check(&self) -> Result<(), BadInput> {
        for stats in self.stats() {
            let parts = stats.cached_bytes + stats.lost_bytes;
            if stats.allocated_bytes != 0 || stats.reserved_bytes != parts {
                let what = format!("figures that do not add up when nothing is live: {stats}");
                return Err(BadInput::new(what, "reserved = cached + lost"));
            }
        }
        Ok(())
    }
}

/// Operations of all threads.
#[derive(Default)]
struct SoakCounts {
    operations: AtomicU64,
    refused: AtomicU64,
}

/// Replays parts of `traces` on `threads` threads for this long. `tick` is called after each round
/// with the seconds that have passed.
///
/// # Errors
///
/// Figures of a pool that do not add up, memory that stays when no buffer is live, a thread that
/// panics, or a system that does not tell the memory of a process.
pub fn soak(
    traces: &[Trace],
    threads: usize,
    time: Duration,
    mut tick: impl FnMut(u64),
) -> Result<Soaked, BadInput> {
    if resident() == 0 {
        let what = "a system that does not tell the resident memory of a process";
        return Err(BadInput::new(what, "Linux, with /proc"));
    }
    let cycle = cycle(traces);
    let (pools, counts, start) = (Pools::new(), SoakCounts::default(), Instant::now());
    let (mut samples, mut rounds, mut outcome) = (Vec::new(), 0, Ok(()));
    let work = |number: usize, turn: usize| {
        let trace = &traces[(number + turn) % traces.len()];
        let part = turn / traces.len() % parts(trace);
        round(&pools, &counts, (trace, part), number + turn * threads);
    };
    let whole = rounds::run(threads, work, || {
        rounds += 1;
        tick(start.elapsed().as_secs());
        outcome = pools.check();
        if rounds % cycle == 0 && outcome.is_ok() {
            let (seconds, reserved) = (start.elapsed().as_secs_f64(), pools.reserved());
            outcome = pools.empty();
            let (resident, descriptors) = (resident(), descriptors());
            samples.push(Sample { seconds, reserved, resident, descriptors });
        }
        outcome.is_ok() && start.elapsed() < time
    });
    if !whole {
        return Err(BadInput::new("a panic in a round, printed above", "rounds without one"));
    }
    outcome?;
    pools.empty()?;
    let warm = &samples[samples.len() / WARM..];
    let slope = |of: fn(&Sample) -> u64| {
        Slope::of(warm.iter().map(|sample| (sample.seconds / 3600.0, of(sample) as f64)))
    };
    Ok(Soaked {
        soak_minutes: start.elapsed().as_secs_f64() / 60.0,
        threads,
        rounds: rounds as u64,
        samples: samples.len() as u64,
        operations: counts.operations.load(Relaxed),
        refused: counts.refused.load(Relaxed),
        reserved: slope(|sample| sample.reserved),
        resident: slope(|sample| sample.resident),
        descriptors: slope(|sample| sample.descriptors),
    })
}

/// Returns the number of parts that a trace has, one for a round.
fn parts(trace: &Trace) -> usize {
    trace.steps.len().div_ceil(STEPS).max(1)
}

/// Returns the number of rounds between two samples. In these rounds each thread replays each part
/// of each trace, so the pools reserve about as much before each sample. A sample empties them.
fn cycle(traces: &[Trace]) -> usize {
    traces.len() * traces.iter().map(parts).max().unwrap_or(1)
}

/// Replays a part of a trace over each pool, where a call of the device fails in the middle.
fn round(pools: &Pools, counts: &SoakCounts, (trace, part): (&Trace, usize), number: usize) {
    let from = part * STEPS;
    let steps = &trace.steps[from..trace.steps.len().min(from + STEPS)];
    pools.device.fail(FAULTS[number % FAULTS.len()], number as u64 % 7, 1 + number as u64 % 3);
    replay(&pools.buckets, trace, steps, counts);
    replay(&pools.pages, trace, steps, counts);
    replay(&pools.faulty, trace, steps, counts);
    replay(&pools.faulty_arena, trace, steps, counts);
    pools.device.run();
}

fn replay<A: DeviceAllocator>(
    pool: &BucketPool<A>,
    trace: &Trace,
    steps: &[Step],
    counts: &SoakCounts,
) {
    let mut live: Vec<Option<PooledBuffer<A>>> = Vec::new();
    live.resize_with(trace.slots, || None);
    let mut refused = 0;
    for step in steps {
        match *step {
            Step::Allocate { slot, bytes, .. } => {
                let got = pool.allocate(bytes);
                refused += u64::from(got.is_err());
                live[slot as usize] = got.ok();
            }
            Step::Free { slot, .. } => live[slot as usize] = None,
            Step::Use { .. } => {}
        }
    }
    counts.operations.fetch_add(steps.len() as u64, Relaxed);
    counts.refused.fetch_add(refused, Relaxed);
}

/// Open file descriptors of this process; 0 where the system does not tell.
fn descriptors() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64)
}

impl Soaked {
    /// Returns the figures that grow, by more than three errors of the line and more than they may;
    /// or whose error is so large that the line tells nothing.
    #[must_use]
    pub fn growing(&self) -> Vec<String> {
        if self.samples < SAMPLES {
            let found = self.samples;
            return vec![format!("{found} samples are too few to tell, of {SAMPLES}: run longer")];
        }
        let figures = [
            ("resident bytes", self.resident, BYTES_PER_HOUR),
            ("file descriptors", self.descriptors, DESCRIPTORS_PER_HOUR),
        ];
        let verdict = |(name, slope, allowed): (&str, Slope, f64)| {
            let is_wide = 3.0 * slope.error > allowed;
            match slope.exceeds(allowed) {
                true => {
                    Some(format!("{name} grow by {slope} an hour, where {allowed} are allowed"))
                }
                false if is_wide => {
                    Some(format!("{name}: {slope} an hour is too wide to tell; run longer"))
                }
                false => None,
            }
        };
        figures.into_iter().filter_map(verdict).collect()
    }
}

impl fmt::Display for Soaked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { soak_minutes, threads, rounds, operations, refused, .. } = self;
        let Self { reserved, resident, descriptors, .. } = self;
        writeln!(
            f,
            "{soak_minutes:.1} minutes, {threads} threads, {rounds} rounds, {operations} \
             operations, {refused} refused"
        )?;
        write!(
            f,
            "an hour, over the second half: reserved bytes {reserved}; resident {resident}; file \
             descriptors {descriptors}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_replays_each_part_of_each_trace_between_two_samples() {
        let long = |parts: usize| Trace {
            steps: vec![Step::Free { slot: 0, lane: 0 }; parts * STEPS],
            ..Trace::default()
        };
        let traces = [long(1), long(3)];
        assert_eq!(cycle(&traces), 6);
        let replayed = |turn: usize| {
            let at = turn % traces.len();
            (at, turn / traces.len() % parts(&traces[at]))
        };
        let all: std::collections::BTreeSet<_> = (0..6).map(replayed).collect();
        assert_eq!(all.into_iter().collect::<Vec<_>>(), [(0, 0), (1, 0), (1, 1), (1, 2)]);
    }

    #[test]
    fn a_line_is_judged_by_its_error_and_by_what_it_may_rise() {
        let of = |slope, error| Soaked {
            soak_minutes: 40.0,
            threads: 2,
            rounds: 100,
            samples: SAMPLES,
            operations: 1,
            refused: 0,
            reserved: Slope::default(),
            resident: Slope { slope, error },
            descriptors: Slope::default(),
        };
        let mib = f64::from(1 << 20);
        for (slope, error, verdict) in [
            (3.9 * mib, 0.1 * mib, None),
            (-9.0 * mib, 0.1 * mib, None),
            (4.1 * mib, 0.1 * mib, Some("resident bytes grow by ")),
            (8.3 * mib, 1.0 * mib, Some("resident bytes grow by ")),
            (4.1 * mib, 1.4 * mib, Some("resident bytes: ")),
            (0.0, 1.4 * mib, Some("resident bytes: ")),
        ] {
            let growing = of(slope, error).growing();
            let agrees = match verdict {
                None => growing.is_empty(),
                Some(begin) => growing.len() == 1 && growing[0].starts_with(begin),
            };
            assert!(agrees, "{slope} {error}: {growing:?}");
        }
        let short = Soaked { samples: SAMPLES - 1, ..of(0.0, 0.0) };
        assert!(short.growing()[0].ends_with("run longer"));
    }

    /// A soak whose calls fail ends, and leaves nothing but what the device did not take back.
    #[test]
    fn a_short_soak_ends_and_adds_up() {
        let steps = (0..200).flat_map(|at| {
            let allocate = Step::Allocate { slot: 0, bytes: 1 + at * 977, lane: 0 };
            [allocate, Step::Free { slot: 0, lane: 0 }]
        });
        let trace = Trace { steps: steps.collect(), slots: 1, ..Trace::default() };
        let mut rounds = 0;
        let soaked = soak(&[trace], 2, Duration::from_millis(50), |_| rounds += 1).unwrap();
        assert_eq!((soaked.rounds, soaked.threads), (rounds, 2));
        assert_eq!(soaked.operations, rounds * 2 * 4 * 400);
        assert!(!soaked.growing().is_empty() || rounds >= SAMPLES, "too short to tell");
    }
}
