//! Workloads: pools compared with direct allocation, step by step in turns.

mod child;
mod standing;

pub use child::{Child, answer};
pub use standing::{Standing, biases, pool};

use crate::backend::Backend;
use crate::machine::page_faults;
use crate::source::Steps;
use crate::spec::{self, NamedPolicy};
use crate::statistics::Orders;
use crate::workload::{Done, Workload};
use serde::{Deserialize, Serialize};

/// Number of steps in a smoke test.
pub const SMOKE_STEPS: u64 = 3;
/// Number of first steps of a process, in which pools fill. They count but do not enter ratios.
pub const COLD: usize = 5;
/// Name of the contender that all others are compared with.
const DIRECT: &str = "direct";
/// Name of the control: a second contender with direct allocation. It is identical to [`DIRECT`],
/// so a difference between the two is a fault of the measurement.
const CONTROL: &str = "control";

/// Error of a contest. A benchmark is also a test.
#[derive(Debug)]
pub struct Failed(pub(crate) String);

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The steps that a set of contenders runs, and the seed of their orders.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Number of the first step; the number decides the sizes.
    pub from: u64,
    /// Number of steps in all.
    pub steps: u64,
    /// Seed of the random orders.
    pub seed: u64,
}

/// The measurement of one step of a contender.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Turn {
    /// Nanoseconds of the whole step.
    pub ns: u64,
    /// Page faults of the process during it.
    pub page_faults: u64,
    /// The work of the step, which must be the same for all contenders.
    pub done: Done,
}

/// A contender that takes turns, in this process or in a child process.
pub trait Contender {
    /// Returns the name of the contender in a record.
    fn name(&self) -> &str;

    /// Runs the step with this number.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory, or if the contender's process has ended.
    fn turn(&mut self, number: u64) -> Result<Turn, Failed>;

    /// Ends the contender and returns its counts. The caller fills in the times.
    ///
    /// # Errors
    ///
    /// Fails if the contender's process has already ended.
    fn end(self: Box<Self>) -> Result<Standing, Failed>;
}

/// A contender in this process.
struct Here {
    name: String,
    workload: Workload,
    backend: Backend,
    smoke: bool,
    source: Box<dyn Steps>,
}

/// Returns the names of the contenders.
///
/// They are direct allocation, its control, and the policies that the backend supports.
#[must_use]
pub fn names(backend: Backend, policies: &[NamedPolicy]) -> Vec<String> {
    let policies = policies.iter().filter(|spec| backend.serves(spec)).map(|s| s.text.clone());
    [DIRECT, CONTROL].map(str::to_owned).into_iter().chain(policies).collect()
}

/// Creates the contender with this name in this process.
///
/// With `planted`, the control keeps its buffers, so that their pages are already touched: a fault
/// that the bench must notice.
///
/// # Errors
///
/// Fails if the name is no policy, or if the device cannot be opened.
pub fn contender(
    workload: Workload,
    backend: Backend,
    name: &str,
    smoke: bool,
    planted: bool,
) -> Result<Box<dyn Contender>, Failed> {
    let is_direct = name == DIRECT || name == CONTROL;
    let spec = match is_direct {
        true => None,
        false => spec::list(name).map_err(|bad| Failed(bad.to_string()))?.pop(),
    };
    if let Some(why) = spec.as_ref().and_then(|spec| backend.refusal(spec)) {
        return Err(Failed(why.to_owned()));
    }
    let source = backend.source(spec.as_ref(), planted && name == CONTROL).map_err(Failed)?;
    Ok(Box::new(Here { name: name.to_owned(), workload, backend, smoke, source }))
}

impl Contender for Here {
    fn name(&self) -> &str {
        &self.name
    }

    fn turn(&mut self, number: u64) -> Result<Turn, Failed> {
        let work = || self.source.step(self.workload, number, self.smoke);
        let faults = page_faults();
        let (done, ns) = self.backend.clock().time(work);
        let done = done.ok_or_else(|| Failed("no memory".into()))?;
        Ok(Turn { ns, page_faults: page_faults().saturating_sub(faults), done })
    }

    fn end(self: Box<Self>) -> Result<Standing, Failed> {
        let (asked, stats) = (self.source.asked(), self.source.stats());
        Ok(Standing {
            workload: self.workload,
            policy: self.name.clone(),
            backend: self.backend,
            steps: 0,
            ops: 0,
            allocations: 0,
            hits: stats.hits,
            misses: stats.misses,
            bypasses: stats.bypasses,
            ooms: stats.failures,
            evictions: stats.evictions,
            hit_rate: stats.hit_rate(),
            ns_per_op: 0.0,
            ns_per_op_p50: 0.0,
            ns_per_op_p99: 0.0,
            device_allocations: asked.allocations,
            device_frees: asked.frees,
            device_handles: asked.handles,
            live_peak_bytes: 0,
            reserved_peak_bytes: asked.peak_bytes,
            page_faults: 0,
            processes: 1,
            times_direct: None,
            samples: Vec::new(),
            orders: Vec::new(),
        })
    }
}

/// Returns the number of steps of a full run. Devices run a quarter, because their steps take
/// longer and vary less.
#[must_use]
pub fn steps(workload: Workload, backend: Backend) -> u64 {
    if backend == Backend::HOST { workload.steps() } else { workload.steps() / 4 }
}

/// Runs the contenders in turns, in random order within each step.
///
/// The first contender is direct allocation. `tick` is called after each step.
///
/// # Errors
///
/// Fails if a contender had no memory, or returned other contents than another contender.
pub fn run(
    mut contenders: Vec<Box<dyn Contender>>,
    terms: Terms,
    tick: impl Fn(),
) -> Result<Vec<Standing>, Failed> {
    let (mut draw, mut orders) = (Orders::new(terms.seed), Vec::new());
    let mut turns: Vec<Vec<Turn>> = contenders.iter().map(|_| Vec::new()).collect();
    for number in terms.from..terms.from + terms.steps {
        let mut expected = None;
        let order = draw.next(contenders.len());
        for at in &order {
            let contender = &mut contenders[*at];
            let turn = contender.turn(number);
            let what = |why: String| Failed(format!("{}, step {number}: {why}", contender.name()));
            let turn = turn.map_err(|Failed(why)| what(why))?;
            if *expected.get_or_insert(turn.done) != turn.done {
                return Err(what(format!("{:?} instead of {expected:?}", turn.done)));
            }
            turns[*at].push(turn);
        }
        let digit = |at: &usize| char::from_digit(u32::try_from(*at).ok()?, 36);
        orders.push(order.iter().filter_map(digit).collect());
        tick();
    }
    let ended = contenders.into_iter().zip(turns).map(|(contender, turns)| {
        let mut standing = contender.end()?;
        standing.took(&turns);
        Ok(standing)
    });
    let mut standings = ended.collect::<Result<Vec<Standing>, Failed>>()?;
    let live_peak = standings.first().map_or(0, |direct| direct.reserved_peak_bytes);
    for standing in &mut standings {
        standing.live_peak_bytes = live_peak;
    }
    if let Some(direct) = standings.first_mut() {
        direct.orders = vec![orders];
    }
    Ok(standings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Ratio;

    fn contest(workload: Workload, backend: Backend, planted: bool, seed: u64) -> Vec<Standing> {
        let new = |name: &String| contender(workload, backend, name, false, planted).unwrap();
        let contenders = names(backend, &[]).iter().map(new).collect();
        run(contenders, Terms { from: 0, steps: 3, seed }, || {}).unwrap()
    }

    #[test]
    fn a_control_whose_buffers_were_touched_beforehand_is_noticed() {
        let told = biases(&pool(vec![contest(Workload::Tiles, Backend::HOST, true, 1)])).join("\n");
        assert!(told.contains("biased: tiles on host") && told.contains("page faults"), "{told}");
    }

    #[test]
    fn processes_add_up_and_ratios_are_within_a_step() {
        let one = |seed| contest(Workload::Equal, Backend::SIM, false, seed);
        let (a, b) = (one(1), one(2));
        let allocations = a[0].allocations;
        let pooled = pool(vec![a, b]);
        assert_eq!((pooled[0].allocations, pooled[0].processes), (2 * allocations, 2));
        assert_eq!(pooled[0].times_direct, Some(Ratio { median: 1.0, low: 1.0, high: 1.0 }));
        assert_eq!(pooled[0].orders.len(), 2);
        assert!(pooled.iter().all(|standing| standing.samples.is_empty()));
    }
}
