//! Workloads on host memory: pools against direct allocation, step by step in turns.

use crate::counted::{Calls, Counted};
use crate::machine::{free_memory, timed};
use crate::spec::PolicySpec;
use crate::workload::{Done, Source, Workload};
use bucketpool::host::HostAllocator;
use bucketpool::{BucketPool, GIB, PooledBuffer};
use serde::{Deserialize, Serialize};
use std::ops::Deref;
use std::sync::Arc;

/// Idle blocks of a contender are bounded by this many bytes, or a sixteenth of what is free.
const CACHED_LIMIT: u64 = GIB;
/// Smoke tests run this many steps.
const SMOKE_STEPS: u64 = 3;

/// What one contender came to on one workload; one line of `--json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are the documentation; README.md tells them")]
pub struct Standing {
    pub workload: Workload,
    pub policy: String,
    pub backend: String,
    pub samples: usize,
    pub allocations: u64,
    pub ns_per_op_p50: f64,
    pub ns_per_op_p99: f64,
    pub hit_rate: f64,
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

struct Pool(BucketPool<Counted<HostAllocator>>);

impl Source for Pool {
    type Buffer = PooledBuffer<Counted<HostAllocator>>;
    fn filled(&self, bytes: usize, byte: u8) -> Option<Self::Buffer> {
        let mut buffer = self.0.allocate(bytes as u64).ok()?;
        buffer.fill(byte);
        Some(buffer)
    }
}

/// What a program without a pool does: the global allocator, each time.
struct Direct(Arc<Calls>);

struct DirectBuffer {
    bytes: Vec<u8>,
    calls: Arc<Calls>,
}

impl Source for Direct {
    type Buffer = DirectBuffer;
    fn filled(&self, bytes: usize, byte: u8) -> Option<DirectBuffer> {
        self.0.took(bytes as u64);
        Some(DirectBuffer { bytes: vec![byte; bytes], calls: self.0.clone() })
    }
}

impl Deref for DirectBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for DirectBuffer {
    fn drop(&mut self) {
        self.calls.gave_back(self.bytes.len() as u64);
    }
}

/// A contender and its samples: nanoseconds per allocation, one for each step.
struct Contender {
    name: String,
    pool: Option<Pool>,
    calls: Arc<Calls>,
    samples: Vec<f64>,
    allocations: u64,
}

impl Contender {
    fn direct() -> Self {
        let calls = Arc::default();
        Self { name: "direct".into(), pool: None, calls, samples: Vec::new(), allocations: 0 }
    }

    fn pool(spec: &PolicySpec) -> Self {
        let device = Counted::new(HostAllocator::new());
        let calls = device.calls();
        let limit = free_memory().map_or(CACHED_LIMIT, |free| CACHED_LIMIT.min(free / 16));
        let mut builder =
            BucketPool::builder(device).policy(spec.policy.clone()).cached_limit(limit);
        if let Some(granule) = spec.granule {
            builder = builder.granule(granule);
        }
        let (name, pool) = (spec.text.clone(), Some(Pool(builder.build())));
        Self { name, pool, calls, samples: Vec::new(), allocations: 0 }
    }

    fn step(&mut self, workload: Workload, number: u64, small: bool) -> Option<Done> {
        let (done, ns) = match &self.pool {
            Some(pool) => timed(|| workload.step(pool, number, small)),
            None => timed(|| workload.step(&Direct(self.calls.clone()), number, small)),
        };
        let done = done?;
        self.samples.push(ns as f64 / done.allocations as f64);
        self.allocations += done.allocations;
        Some(done)
    }

    fn standing(&self, workload: Workload, direct: &[f64], live_peak_bytes: u64) -> Standing {
        let mut times: Vec<f64> = direct.iter().zip(&self.samples).map(|(d, s)| d / s).collect();
        let mut samples = self.samples.clone();
        let quartiles = (quantile(&mut times, 0.25), quantile(&mut times, 0.75));
        Standing {
            workload,
            policy: self.name.clone(),
            backend: "host".into(),
            samples: samples.len(),
            allocations: self.allocations,
            ns_per_op_p50: quantile(&mut samples, 0.5),
            ns_per_op_p99: quantile(&mut samples, 0.99),
            hit_rate: self.pool.as_ref().map_or(0.0, |pool| pool.0.stats().hit_rate()),
            device_allocations: self.calls.allocations(),
            device_frees: self.calls.frees(),
            live_peak_bytes,
            reserved_peak_bytes: self.calls.peak_bytes(),
            times_direct: quantile(&mut times, 0.5),
            times_direct_error: (quartiles.1 - quartiles.0) / 2.0,
        }
    }
}

/// Runs a workload on every contender in turns, direct allocation first. `tick` is called after
/// each step.
///
/// # Errors
///
/// A contender that had no memory, or that returned other contents than direct allocation.
pub fn run(
    workload: Workload,
    policies: &[PolicySpec],
    smoke: bool,
    tick: impl Fn(),
) -> Result<Vec<Standing>, Failed> {
    let mut contenders = vec![Contender::direct()];
    contenders.extend(policies.iter().map(Contender::pool));
    let steps = if smoke { SMOKE_STEPS } else { workload.steps() };
    for number in 0..steps {
        let mut expected = None;
        for contender in &mut contenders {
            let done = contender.step(workload, number, smoke);
            let what = format!("{} on {}, step {number}", contender.name, workload.name());
            let done = done.ok_or_else(|| Failed(format!("{what}: no memory")))?;
            if *expected.get_or_insert(done) != done {
                return Err(Failed(format!("{what}: {done:?} instead of {expected:?}")));
            }
        }
        tick();
    }
    let direct = contenders[0].samples.clone();
    let live_peak = contenders[0].calls.peak_bytes();
    Ok(contenders.iter().map(|c| c.standing(workload, &direct, live_peak)).collect())
}

/// The value below which a share of the samples lies, by the nearest rank.
fn quantile(samples: &mut [f64], share: f64) -> f64 {
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
