//! Workloads on real memory: pools against direct allocation, step by step in turns.

use crate::backend::Backend;
use crate::counted::Asked;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
use crate::counted::Counted;
use crate::machine::{timed, timed_wall};
use crate::source::{HostDirect, HostSource, host_pool};
use crate::spec::PolicySpec;
use crate::workload::{Done, Source, Workload};
#[cfg(feature = "cuda")]
use bucketpool::Arena;
use bucketpool::PoolStats;
#[cfg(feature = "wgpu")]
use bucketpool::wgpu::WgpuAllocator;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
use bucketpool::{ArenaConfig, DeviceAllocator};
use serde::{Deserialize, Serialize};
use std::iter::once;

/// Smoke tests run this many steps.
const SMOKE_STEPS: u64 = 3;

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
    /// How many times faster than direct allocation: the median over the steps, and half the
    /// distance between its quartiles.
    pub times_direct: f64,
    pub times_direct_error: f64,
}

/// What went wrong in a contest: a benchmark is a test.
#[derive(Debug)]
pub struct Failed(String);

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
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
    /// Nanoseconds per operation, one for each step.
    samples: Vec<f64>,
    allocations: u64,
    ns: u64,
}

/// Direct allocation first, then a pool of each policy.
fn contenders(backend: Backend, policies: &[PolicySpec]) -> Result<Vec<Contender>, Failed> {
    let specs = || policies.iter();
    let sources: Vec<Box<dyn Steps>> = match backend {
        Backend::Host => {
            let pools = specs().map(|spec| host_pool(spec, Boxed));
            once(Box::new(HostDirect::default()) as Box<dyn Steps>).chain(pools).collect()
        }
        #[cfg(feature = "cuda")]
        Backend::Cuda => {
            let open = || bucketpool::cuda::CudaAllocator::new(0);
            let arena = |device, config| Ok(Arena::new(device, config));
            on_device(open, arena, policies)?
        }
        #[cfg(feature = "wgpu")]
        Backend::Wgpu => {
            let policies: Vec<_> = policies.iter().filter(|s| s.arena.is_none()).cloned().collect();
            let no_arena = |_, _| -> Result<Counted<WgpuAllocator>, Failed> {
                Err(Failed("wgpu buffers are not cut, so there is no arena over them".into()))
            };
            on_device(WgpuAllocator::on_default_adapter, no_arena, &policies)?
        }
        Backend::Sim => return Err(Failed("workloads write memory, and `sim` has none".into())),
        #[cfg(not(all(feature = "cuda", feature = "wgpu")))]
        other => return Err(Failed(format!("`{}` was not built in", other.name()))),
    };
    let cut = |spec: &&PolicySpec| backend != Backend::Wgpu || spec.arena.is_none();
    let names = specs().filter(cut).map(|spec| spec.text.clone());
    let names = once("direct".to_owned()).chain(names);
    let contender =
        |(name, source)| Contender { name, source, samples: vec![], allocations: 0, ns: 0 };
    Ok(names.zip(sources).map(contender).collect())
}

/// Each contender opens the device for itself.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
fn on_device<A: DeviceAllocator, B: DeviceAllocator>(
    open: impl Fn() -> Result<A, bucketpool::DeviceError>,
    arena: impl Fn(Counted<A>, ArenaConfig) -> Result<B, Failed>,
    policies: &[PolicySpec],
) -> Result<Vec<Box<dyn Steps>>, Failed> {
    use crate::source::{DeviceDirect, DevicePool};
    let device = || open().map_err(|error| Failed(error.to_string()));
    let mut sources: Vec<Box<dyn Steps>> = vec![Box::new(DeviceDirect::new(device()?))];
    for spec in policies {
        let device = Counted::new(device()?);
        let calls = device.calls();
        sources.push(match spec.arena.clone() {
            None => Box::new(DevicePool::new(device, calls, spec)),
            Some(config) => Box::new(DevicePool::new(arena(device, config)?, calls, spec)),
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
        // A device works while this thread waits, so there the wall clock counts.
        let (done, ns) = if backend == Backend::Host { timed(work) } else { timed_wall(work) };
        let done = done?;
        self.samples.push(ns as f64 / (2 * done.allocations) as f64);
        self.allocations += done.allocations;
        self.ns += ns;
        Some(done)
    }

    fn standing(
        &self,
        workload: Workload,
        backend: Backend,
        direct: &[f64],
        live_peak_bytes: u64,
    ) -> Standing {
        let mut times: Vec<f64> = direct.iter().zip(&self.samples).map(|(d, s)| d / s).collect();
        let mut samples = self.samples.clone();
        let quartiles = (quantile(&mut times, 0.25), quantile(&mut times, 0.75));
        let (asked, stats) = (self.source.asked(), self.source.stats());
        let ops = 2 * self.allocations;
        Standing {
            workload,
            policy: self.name.clone(),
            backend,
            steps: samples.len(),
            ops,
            allocations: self.allocations,
            hits: stats.hits,
            misses: stats.misses,
            bypasses: stats.bypasses,
            ooms: stats.failures,
            hit_rate: stats.hit_rate(),
            ns_per_op: self.ns as f64 / ops as f64,
            ns_per_op_p50: quantile(&mut samples, 0.5),
            ns_per_op_p99: quantile(&mut samples, 0.99),
            device_allocations: asked.allocations,
            device_frees: asked.frees,
            live_peak_bytes,
            reserved_peak_bytes: asked.peak_bytes,
            times_direct: quantile(&mut times, 0.5),
            times_direct_error: (quartiles.1 - quartiles.0) / 2.0,
        }
    }
}

/// Steps of a full run. Devices get a quarter: their steps are longer, and differ less.
#[must_use]
pub fn steps(workload: Workload, backend: Backend) -> u64 {
    if backend == Backend::Host { workload.steps() } else { workload.steps() / 4 }
}

/// Runs a workload on every contender in turns, direct allocation first. `tick` is called after
/// each step.
///
/// # Errors
///
/// A contender that had no memory, or that returned other contents than direct allocation.
pub fn run(
    workload: Workload,
    backend: Backend,
    policies: &[PolicySpec],
    smoke: bool,
    tick: impl Fn(),
) -> Result<Vec<Standing>, Failed> {
    let mut contenders = contenders(backend, policies)?;
    let steps = if smoke { SMOKE_STEPS } else { steps(workload, backend) };
    for number in 0..steps {
        let mut expected = None;
        for contender in &mut contenders {
            let done = contender.step(workload, number, smoke, backend);
            let what = format!("{} on {}, step {number}", contender.name, workload.name());
            let done = done.ok_or_else(|| Failed(format!("{what}: no memory")))?;
            if *expected.get_or_insert(done) != done {
                return Err(Failed(format!("{what}: {done:?} instead of {expected:?}")));
            }
        }
        tick();
    }
    let (direct, live_peak) = contenders.first().map_or_else(Default::default, |direct| {
        (direct.samples.clone(), direct.source.asked().peak_bytes)
    });
    let standing = |c: &Contender| c.standing(workload, backend, &direct, live_peak);
    Ok(contenders.iter().map(standing).collect())
}

/// The value below which a share of the samples lies, by the nearest rank.
pub(crate) fn quantile(samples: &mut [f64], share: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
    let rank = (samples.len() as f64 * share).ceil() as usize;
    samples.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::quantile;
    use std::cmp::Ordering;

    #[test]
    fn a_quantile_is_a_sample() {
        for (mut samples, share, expected) in [
            (vec![3.0, 1.0, 2.0], 0.5, 2.0),
            (vec![3.0, 1.0, 2.0], 0.99, 3.0),
            (vec![3.0, 1.0], 0.25, 1.0),
        ] {
            assert_eq!(quantile(&mut samples, share).total_cmp(&expected), Ordering::Equal);
        }
        assert!(quantile(&mut [], 0.5).is_nan());
    }
}
