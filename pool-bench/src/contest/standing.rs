//! Results of a contender: joined over processes, as a ratio to direct allocation, and whether the
//! measurement itself is to be trusted.

use super::{COLD, CONTROL, DIRECT, Turn};
use crate::backend::Backend;
use crate::statistics::{Ratio, quantile};
use crate::workload::Workload;
use serde::{Deserialize, Serialize};

/// The control may differ by this share before it counts as a fault.
const TOLERANCE: f64 = 0.05;

/// Result of one contender on one workload; one line of `--json`.
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
    /// Nanoseconds per operation that half of the steps, and 99 in 100, did not exceed.
    pub ns_per_op_p50: f64,
    pub ns_per_op_p99: f64,
    pub device_allocations: u64,
    pub device_frees: u64,
    /// Pieces of memory that these calls made and freed.
    pub device_handles: u64,
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
    /// Fills in what its turns took.
    pub(super) fn took(&mut self, turns: &[Turn]) {
        let ns: u64 = turns.iter().map(|turn| turn.ns).sum();
        self.steps = turns.len();
        self.allocations = turns.iter().map(|turn| turn.done.allocations).sum();
        self.ops = 2 * self.allocations;
        self.ns_per_op = ns as f64 / self.ops as f64;
        self.page_faults = turns.iter().map(|turn| turn.page_faults).sum();
        let sample = |turn: &Turn| turn.ns as f64 / (2 * turn.done.allocations) as f64;
        let cold = if turns.len() > COLD { COLD } else { 0 };
        self.samples = vec![turns[cold..].iter().map(sample).collect()];
    }

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
        self.device_handles += other.device_handles;
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
