//! Workloads: pools beside direct allocation, step by step in turns.

use crate::backend::Backend;
use crate::counted::Asked;
use crate::counted::Counted;
use crate::machine::{page_faults, timed, timed_wall};
use crate::source::{DeviceDirect, DevicePool, HostDirect, HostSource, host_pool};
use crate::spec::PolicySpec;
use crate::statistics::{Orders, Ratio, quantile};
use crate::workload::{Done, Source, Workload};
use bucketpool::sim::SimDevice;
#[cfg(feature = "wgpu")]
use bucketpool::wgpu::WgpuAllocator;
use bucketpool::{Arena, ArenaConfig, DeviceAllocator, PoolStats};
use serde::{Deserialize, Serialize};

/// Smoke tests run this many steps.
const SMOKE_STEPS: u64 = 3;
/// What all others are compared with.
const DIRECT: &str = "direct";
/// Direct allocation once more. It differs from [`DIRECT`] in nothing, so what sets the two apart
/// is a fault of the measurement.
const CONTROL: &str = "control";
/// The control may differ by this share before it counts as a fault.
const TOLERANCE: f64 = 0.05;

/// What one contender came to on one workload; one line of `--json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are the documentation; README.md tells them")]
pub struct Standing {
    pub workload: Workload,
    pub policy: String,
    pub backend: Backend,
    pub steps: usize,
    pub ops: u64,
    pub allocations: u64,
    pub hits: u64,
    pub misses: u64,
    pub bypasses: u64,
    pub ooms: u64,
    pub evictions: u64,
    pub hit_rate: f64,
    /// Over all allocations and frees, the writing of the bytes included.
    pub ns_per_op: f64,
    /// The same of single steps: half of them, and 99 in 100, took no longer.
    pub ns_per_op_p50: f64,
    pub ns_per_op_p99: f64,
    pub device_allocations: u64,
    pub device_frees: u64,
    pub live_peak_bytes: u64,
    pub reserved_peak_bytes: u64,
    /// Page faults of the process during this contender's steps.
    pub page_faults: u64,
    pub processes: usize,
    /// How many times as fast as direct allocation in the same step.
    pub times_direct: Option<Ratio>,
    /// Nanoseconds per operation of each step, by process; emptied once the ratio is computed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<Vec<f64>>,
    /// The order of each step, by process, as places of contenders in base 36; in the first
    /// contender's line only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub orders: Vec<Vec<String>>,
}

/// What went wrong in a contest: a benchmark is a test.
#[derive(Debug)]
pub struct Failed(String);

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// How one process runs a contest.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The steps of the workload: which, and so which sizes.
    pub from: u64,
    /// How many.
    pub steps: u64,
    /// Steps are small.
    pub smoke: bool,
    /// What the orders are drawn from.
    pub seed: u64,
    /// The control keeps its buffers, so that they are touched beforehand: a fault that the bench
    /// must notice.
    pub planted: bool,
}

impl Terms {
    /// A few small steps.
    #[must_use]
    pub fn smoke(seed: u64) -> Self {
        Self { from: 0, steps: SMOKE_STEPS, smoke: true, seed, planted: false }
    }
}

/// A source of any kind.
trait Steps {
    fn step(&self, workload: Workload, number: u64, small: bool) -> Option<Done>;
    fn asked(&self) -> Asked;
    fn stats(&self) -> PoolStats;
}

impl<S: Source> Steps for S {
    fn step(&self, workload: Workload, number: u64, small: bool) -> Option<Done> {
        workload.step(self, number, small)
    }
    fn asked(&self) -> Asked {
        Source::asked(self)
    }
    fn stats(&self) -> PoolStats {
        Source::stats(self)
    }
}

/// A pool becomes a contender like any other.
struct Boxed;

impl HostSource<Box<dyn Steps>> for Boxed {
    fn wrap<S: Source + 'static>(self, source: S) -> Box<dyn Steps> {
        Box::new(source)
    }
}

/// A contender and what it took.
struct Contender {
    name: String,
    source: Box<dyn Steps>,
    page_faults: u64,
    /// Nanoseconds per operation, one for each step.
    samples: Vec<f64>,
    allocations: u64,
    ns: u64,
}

/// Direct allocation first, then its control, then a pool of each policy.
fn contenders(
    backend: Backend,
    policies: &[PolicySpec],
    planted: bool,
) -> Result<Vec<Contender>, Failed> {
    let specs = || policies.iter();
    let sources: Vec<Box<dyn Steps>> = match backend {
        Backend::Host => {
            let pools = specs().map(|spec| host_pool(spec, Boxed));
            let direct = |keeps| Box::new(HostDirect::new(keeps)) as Box<dyn Steps>;
            [direct(false), direct(planted)].into_iter().chain(pools).collect()
        }
        Backend::Sim => {
            let open = || Ok(SimDevice::new());
            let arena = |device, config| Ok(Arena::over_pages(device, config));
            on_device(open, arena, policies, false)?
        }
        #[cfg(feature = "cuda")]
        Backend::Cuda => {
            let open = || bucketpool::cuda::CudaAllocator::new(0);
            let arena = |device, config| Ok(Arena::new(device, config));
            on_device(open, arena, policies, true)?
        }
        #[cfg(feature = "wgpu")]
        Backend::Wgpu => {
            let policies: Vec<_> = policies.iter().filter(|s| s.arena.is_none()).cloned().collect();
            let no_arena = |_, _| -> Result<Counted<WgpuAllocator>, Failed> {
                Err(Failed("a wgpu buffer cannot be split, so there is no arena over them".into()))
            };
            on_device(WgpuAllocator::on_default_adapter, no_arena, &policies, true)?
        }
        #[cfg(not(all(feature = "cuda", feature = "wgpu")))]
        other => return Err(Failed(format!("`{}` was not built in", other.name()))),
    };
    let is_possible = |spec: &&PolicySpec| backend != Backend::Wgpu || spec.arena.is_none();
    let names = specs().filter(is_possible).map(|spec| spec.text.clone());
    let names = [DIRECT, CONTROL].map(str::to_owned).into_iter().chain(names);
    let contender = |(name, source)| Contender {
        name,
        source,
        page_faults: 0,
        samples: vec![],
        allocations: 0,
        ns: 0,
    };
    Ok(names.zip(sources).map(contender).collect())
}

/// Each contender opens the device for itself.
fn on_device<A: DeviceAllocator, B: DeviceAllocator>(
    open: impl Fn() -> Result<A, bucketpool::DeviceError>,
    arena: impl Fn(Counted<A>, ArenaConfig) -> Result<B, Failed>,
    policies: &[PolicySpec],
    writes: bool,
) -> Result<Vec<Box<dyn Steps>>, Failed> {
    let device = || open().map_err(|error| Failed(error.to_string()));
    let mut sources: Vec<Box<dyn Steps>> = Vec::new();
    for _ in [DIRECT, CONTROL] {
        sources.push(Box::new(DeviceDirect::new(device()?, writes)));
    }
    for spec in policies {
        let device = Counted::new(device()?);
        let calls = device.calls();
        sources.push(match spec.arena.clone() {
            None => Box::new(DevicePool::new(device, calls, spec, writes)),
            Some(config) => Box::new(DevicePool::new(arena(device, config)?, calls, spec, writes)),
        });
    }
    Ok(sources)
}

impl Contender {
    fn step(
        &mut self,
        workload: Workload,
        number: u64,
        small: bool,
        backend: Backend,
    ) -> Option<Done> {
        let work = || self.source.step(workload, number, small);
        let faults = page_faults();
        // A device works while this thread waits, so there the wall clock counts.
        let on_this_thread = matches!(backend, Backend::Host | Backend::Sim);
        let (done, ns) = if on_this_thread { timed(work) } else { timed_wall(work) };
        let done = done?;
        self.page_faults += page_faults().saturating_sub(faults);
        self.samples.push(ns as f64 / (2 * done.allocations) as f64);
        self.allocations += done.allocations;
        self.ns += ns;
        Some(done)
    }

    fn standing(&self, workload: Workload, backend: Backend, live_peak_bytes: u64) -> Standing {
        let (asked, stats) = (self.source.asked(), self.source.stats());
        let ops = 2 * self.allocations;
        Standing {
            workload,
            policy: self.name.clone(),
            backend,
            steps: self.samples.len(),
            ops,
            allocations: self.allocations,
            hits: stats.hits,
            misses: stats.misses,
            bypasses: stats.bypasses,
            ooms: stats.failures,
            evictions: stats.evictions,
            hit_rate: stats.hit_rate(),
            ns_per_op: self.ns as f64 / ops as f64,
            ns_per_op_p50: quantile(&self.samples, 0.5),
            ns_per_op_p99: quantile(&self.samples, 0.99),
            device_allocations: asked.allocations,
            device_frees: asked.frees,
            live_peak_bytes,
            reserved_peak_bytes: asked.peak_bytes,
            page_faults: self.page_faults,
            processes: 1,
            times_direct: None,
            samples: vec![self.samples.clone()],
            orders: Vec::new(),
        }
    }
}

/// Steps of a full run. Devices get a quarter: their steps are longer, and differ less.
#[must_use]
pub fn steps(workload: Workload, backend: Backend) -> u64 {
    if backend == Backend::Host { workload.steps() } else { workload.steps() / 4 }
}

/// Runs a workload on every contender in this process, in random order within each step. `tick` is
/// called after each step.
///
/// # Errors
///
/// A contender that had no memory, or that returned other contents than direct allocation.
pub fn run(
    workload: Workload,
    backend: Backend,
    policies: &[PolicySpec],
    terms: Terms,
    tick: impl Fn(),
) -> Result<Vec<Standing>, Failed> {
    let mut contenders = contenders(backend, policies, terms.planted)?;
    let (mut draw, mut orders) = (Orders::new(terms.seed), Vec::new());
    for number in terms.from..terms.from + terms.steps {
        let mut expected = None;
        let order = draw.next(contenders.len());
        for at in &order {
            let contender = &mut contenders[*at];
            let done = contender.step(workload, number, terms.smoke, backend);
            let what = format!("{} on {}, step {number}", contender.name, workload.name());
            let done = done.ok_or_else(|| Failed(format!("{what}: no memory")))?;
            if *expected.get_or_insert(done) != done {
                return Err(Failed(format!("{what}: {done:?} instead of {expected:?}")));
            }
        }
        let digit = |at: &usize| char::from_digit(u32::try_from(*at).ok()?, 36);
        orders.push(order.iter().filter_map(digit).collect());
        tick();
    }
    let live_peak = contenders.first().map_or(0, |direct| direct.source.asked().peak_bytes);
    let standing = |c: &Contender| c.standing(workload, backend, live_peak);
    let mut standings: Vec<Standing> = contenders.iter().map(standing).collect();
    if let Some(direct) = standings.first_mut() {
        direct.orders = vec![orders];
    }
    Ok(standings)
}

/// Joins what several processes came to on one workload, and computes the ratios.
#[must_use]
pub fn pool(processes: Vec<Vec<Standing>>) -> Vec<Standing> {
    let mut standings: Vec<Standing> = Vec::new();
    for standing in processes.into_iter().flatten() {
        match standings.iter_mut().find(|other| other.policy == standing.policy) {
            Some(other) => other.join(standing),
            None => standings.push(standing),
        }
    }
    let direct = standings.first().map_or_else(Vec::new, |direct| direct.samples.clone());
    for standing in &mut standings {
        standing.compare(&direct);
    }
    standings
}

impl Standing {
    /// Adds what another process came to.
    fn join(&mut self, other: Self) {
        let ns = self.ns_per_op * self.ops as f64 + other.ns_per_op * other.ops as f64;
        self.steps += other.steps;
        self.ops += other.ops;
        self.ns_per_op = ns / self.ops as f64;
        self.allocations += other.allocations;
        self.hits += other.hits;
        self.misses += other.misses;
        self.bypasses += other.bypasses;
        self.ooms += other.ooms;
        self.evictions += other.evictions;
        self.hit_rate = self.hits as f64 / self.allocations as f64;
        self.device_allocations += other.device_allocations;
        self.device_frees += other.device_frees;
        self.live_peak_bytes = self.live_peak_bytes.max(other.live_peak_bytes);
        self.reserved_peak_bytes = self.reserved_peak_bytes.max(other.reserved_peak_bytes);
        self.page_faults += other.page_faults;
        self.processes += other.processes;
        self.samples.extend(other.samples);
        self.orders.extend(other.orders);
    }

    /// Computes percentiles and the ratio to direct allocation; lets the samples go.
    fn compare(&mut self, direct: &[Vec<f64>]) {
        let within = |(direct, own): (&Vec<f64>, &Vec<f64>)| -> Vec<f64> {
            direct.iter().zip(own).map(|(direct, own)| direct / own).collect()
        };
        let times: Vec<Vec<f64>> = direct.iter().zip(&self.samples).map(within).collect();
        let all: Vec<f64> = std::mem::take(&mut self.samples).into_iter().flatten().collect();
        (self.ns_per_op_p50, self.ns_per_op_p99) = (quantile(&all, 0.5), quantile(&all, 0.99));
        self.times_direct = Ratio::of(&times);
    }

    /// Whether it is direct allocation once more, and no pool.
    #[must_use]
    pub fn is_control(&self) -> bool {
        self.policy == CONTROL
    }

    /// Whether it is what the others are compared with.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.policy == DIRECT
    }
}

/// Faults of the measurement: where the control differs from direct allocation by its time or by
/// its page faults. One line for each.
#[must_use]
pub fn biases(standings: &[Standing]) -> Vec<String> {
    let on = |s: &Standing| format!("{} on {}", s.workload.name(), s.backend.name());
    let mut biases = Vec::new();
    for control in standings.iter().filter(|standing| standing.is_control()) {
        let is_its = |s: &&Standing| {
            s.is_direct() && (s.workload, s.backend) == (control.workload, control.backend)
        };
        let times = control
            .times_direct
            .filter(|times| times.low > 1.0 + TOLERANCE || times.high < 1.0 - TOLERANCE);
        if let Some(times) = times {
            let what = "the control is as direct allocation, and was";
            biases.push(format!("biased: {}: {what} {times} times as fast", on(control)));
        }
        let Some(direct) = standings.iter().find(is_its) else { continue };
        let (own, others) = (control.page_faults as f64, direct.page_faults as f64);
        let most = own.max(others);
        // Below that other threads of the process may tell the difference.
        if most > 1000.0 && (own - others).abs() > TOLERANCE * most {
            let what = "the control is as direct allocation, and page faults were";
            biases.push(format!("biased: {}: {what} {own} for {others}", on(control)));
        }
    }
    biases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_whose_buffers_were_touched_beforehand_is_noticed() {
        let run = |planted| {
            let terms = Terms { planted, smoke: false, ..Terms::smoke(1) };
            let standings = run(Workload::Equal, Backend::Host, &[], terms, || {}).unwrap();
            biases(&pool(vec![standings]))
        };
        // The first process has learned nothing, so each buffer of direct allocation page-faults.
        let told = run(true).join("\n");
        assert!(told.contains("biased: equal on host") && told.contains("page faults"), "{told}");
    }

    #[test]
    fn processes_add_up_and_ratios_are_within_a_step() {
        let terms = |seed| Terms { seed, ..Terms::smoke(seed) };
        let one = |seed| run(Workload::Equal, Backend::Sim, &[], terms(seed), || {}).unwrap();
        let (a, b) = (one(1), one(2));
        let allocations = a[0].allocations;
        let pooled = pool(vec![a, b]);
        assert_eq!((pooled[0].allocations, pooled[0].processes), (2 * allocations, 2));
        assert_eq!(pooled[0].times_direct, Some(Ratio { median: 1.0, low: 1.0, high: 1.0 }));
        assert_eq!(pooled[0].orders.len(), 2);
        assert!(pooled.iter().all(|standing| standing.samples.is_empty()));
    }
}
