//! Which policy a trace asks for: every policy with its best parameters, predicted from the trace
//! or replayed, beside the least that any could need.

pub mod classes;
pub mod plan;

use crate::backend::Backend;
use crate::input::BadInput;
use crate::replay::{Settings, replay};
use crate::spec::{self, NamedPolicy};
use crate::trace::{Step, Trace};
use bucketpool::BucketPolicy;
use bucketpool::config::{PolicySpec, PoolConfig};
use bucketpool::limits::CachedLimit;
use classes::{ReservedByClasses, class_of, learn, power_of_two, reserved};
use serde::Serialize;

/// Device calls per 1000 allocations that the advice allows.
pub const CALLS_MOST: f64 = 10.0;
/// Policies that are replayed: what they reserve cannot be computed from sizes alone.
const REPLAYED: &str = "fit:1.25,fit:1.5,fit:2,fit:4,arena,arena:torch,arena:pages=64K:slack=0%,\
                        arena:pages=64K:slack=2%,arena:pages=64K:slack=5%,\
                        arena:pages=64K:slack=10%,arena:pages=2M:slack=5%,arena:pages=32M";
/// Cached limits that bucket policies and `fit` are tried with.
const LIMITS: [Option<f64>; 4] = [None, Some(0.5), Some(0.25), Some(0.1)];
/// The smallest capacity is found to within this share of the live peak.
const PRECISION: f64 = 0.005;

/// A policy on one trace; one line of `--json`.
#[derive(Clone, Debug, Serialize)]
pub struct Advice {
    /// The trace.
    pub trace: String,
    /// The policy, as `replay` takes it.
    pub policy: String,
    /// The cached limit, as `replay` takes it; `none` without one.
    pub cached_limit: String,
    /// Reserved peak, in bytes.
    pub reserved_peak_bytes: u64,
    /// Reserved peak over the live peak.
    pub over_live: f64,
    /// Device calls per 1000 allocations, however many pages one covers.
    pub calls_per_1000: f64,
    /// Pieces of memory that these calls made and freed, per 1000 allocations.
    pub handles_per_1000: f64,
    /// The smallest device on which no request fails, over the live peak; only of the best.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_over_live: Option<f64>,
    /// `computed` from the sizes of the trace, or `replayed`.
    pub by: &'static str,
}

/// The bounds that a trace can be compared with; one line of `--json`.
#[derive(Clone, Debug, Serialize)]
pub struct Bounds {
    /// The trace.
    pub trace: String,
    /// The live peak: the least that any policy can reserve.
    pub live_peak_bytes: u64,
    /// The bytes that a plan needs which knows all of the trace.
    pub plan_bytes: u64,
    /// Classes learned on the first half, on the second half: reserved peak over that of power of
    /// two.
    pub second_half_over_pow2: f64,
    /// Classes learned on the first half, on the whole: reserved peak over that of power of two.
    pub whole_over_pow2: f64,
}

/// A configuration to compare.
#[derive(Clone, Debug)]
struct Candidate {
    policy: NamedPolicy,
    limit: Option<f64>,
}

/// The advice for some traces.
#[derive(Clone, Debug)]
pub struct Advised {
    /// Each policy on each trace.
    pub advice: Vec<Advice>,
    /// The bounds of each trace.
    pub bounds: Vec<Bounds>,
    /// The policy to take.
    pub choice: Choice,
}

/// The policy to take; the last line of `--json`.
#[derive(Clone, Debug, Serialize)]
pub struct Choice {
    /// The policy, as `replay` takes it.
    pub policy: String,
    /// Its cached limit, as `replay` takes it.
    pub cached_limit: String,
    /// The geometric mean, over the traces, of its reserved peak over the live peak.
    pub over_live: f64,
    /// Device calls per 1000 allocations, of all traces together.
    pub calls_per_1000: f64,
    /// Its configuration.
    pub config: PoolConfig,
}

/// Compares all policies on these traces. `tick` is called for each step of the work.
///
/// # Errors
///
/// A trace that no policy can be compared on.
pub fn advise(traces: &[Trace], mut tick: impl FnMut()) -> Result<Advised, BadInput> {
    let halves: Vec<Vec<Step>> = traces.iter().map(first_half).collect();
    let learned = learn(&halves.concat(), 0);
    let candidates = candidates(&learned)?;
    let mut advice = Vec::new();
    for candidate in &candidates {
        for trace in traces {
            advice.push(candidate.on(trace)?);
            tick();
        }
    }
    let choice = choose(&candidates, &advice, traces)?;
    for (number, trace) in traces.iter().enumerate() {
        let of_trace = advice.iter_mut().skip(number).step_by(traces.len());
        let mut best: Vec<(&Candidate, &mut Advice)> = candidates
            .iter()
            .zip(of_trace)
            .filter(|(_, one)| one.calls_per_1000 <= CALLS_MOST)
            .collect();
        best.sort_by(|(_, a), (_, b)| a.over_live.total_cmp(&b.over_live));
        for (candidate, one) in best.into_iter().take(3) {
            let limit = candidate.limit.map(CachedLimit::OfPeak);
            one.capacity_over_live = smallest_capacity(trace, &candidate.policy, limit);
            tick();
        }
    }
    let bounds = traces.iter().map(|trace| bounds(trace, &learned)).collect();
    Ok(Advised { advice, bounds, choice })
}

/// How many times [`advise`] calls `tick`.
#[must_use]
pub fn ticks(traces: usize) -> u64 {
    let replayed = REPLAYED.split(',').count();
    let fits = 4;
    let bucket = 3;
    let rows = bucket * LIMITS.len() + fits * LIMITS.len() + (replayed - fits);
    (traces * (rows + 3)) as u64
}

/// The operations of the first half of the allocations, and the frees of what is live in the end.
fn first_half(trace: &Trace) -> Vec<Step> {
    let mut allocations = 0;
    let half = trace.steps.iter().take_while(|step| {
        allocations += u64::from(matches!(step, Step::Allocate { .. }));
        allocations <= trace.allocations / 2
    });
    let mut steps: Vec<Step> = half.copied().collect();
    let mut live = vec![false; trace.slots];
    for step in &steps {
        match *step {
            Step::Allocate { slot, .. } => live[slot as usize] = true,
            Step::Free { slot, .. } => live[slot as usize] = false,
            Step::Use { .. } => {}
        }
    }
    let ends = (0..).zip(live).filter(|(_, live)| *live);
    steps.extend(ends.map(|(slot, _)| Step::Free { slot, lane: 0 }));
    steps
}

/// The second half, without frees of what the first half allocated.
fn second_half(trace: &Trace) -> Vec<Step> {
    let mut allocations = 0;
    let mut known = vec![false; trace.slots];
    let mut steps = Vec::new();
    for step in &trace.steps {
        allocations += u64::from(matches!(step, Step::Allocate { .. }));
        if allocations <= trace.allocations / 2 {
            continue;
        }
        match *step {
            Step::Allocate { slot, .. } => known[slot as usize] = true,
            Step::Free { slot, .. } if !known[slot as usize] => continue,
            _ => {}
        }
        steps.push(*step);
    }
    steps
}

fn candidates(learned: &[u64]) -> Result<Vec<Candidate>, BadInput> {
    let blocks = |policy| PolicySpec::Blocks { policy, granule: None }.into();
    let mut policies: Vec<NamedPolicy> =
        vec![blocks(BucketPolicy::Exact), blocks(BucketPolicy::PowerOfTwo)];
    // The first half of a trace of one allocation teaches nothing.
    policies.extend((!learned.is_empty()).then(|| blocks(BucketPolicy::tiered(learned))));
    policies.extend(spec::list(REPLAYED)?);
    let mut candidates = Vec::new();
    for policy in policies {
        let limits: &[Option<f64>] = if policy.has_arena() { &[None] } else { &LIMITS };
        let with = |limit: &Option<f64>| Candidate { policy: policy.clone(), limit: *limit };
        candidates.extend(limits.iter().map(with));
    }
    Ok(candidates)
}

impl Candidate {
    fn limit_text(&self) -> String {
        self.limit.map_or_else(|| "none".into(), |share| format!("{}%", 100.0 * share))
    }

    fn on(&self, trace: &Trace) -> Result<Advice, BadInput> {
        let (of, by) = match computed(&self.policy.spec, trace) {
            Some(of) if self.limit.is_none() => ((of.peak_bytes, of.calls, of.calls), "computed"),
            _ => {
                let limit = self.limit.map(CachedLimit::OfPeak);
                let settings = Settings {
                    backend: Backend::SIM,
                    cached_limit: limit,
                    capacity: None,
                    lanes: None,
                };
                let outcome = replay(trace, &self.policy, settings)?;
                let calls = outcome.device_allocations + outcome.device_frees;
                ((outcome.reserved_peak_bytes, calls, outcome.device_handles), "replayed")
            }
        };
        let per_1000 = |calls: u64| 1000.0 * calls as f64 / trace.allocations as f64;
        Ok(Advice {
            trace: trace.name.clone(),
            policy: self.policy.text.clone(),
            cached_limit: self.limit_text(),
            reserved_peak_bytes: of.0,
            over_live: of.0 as f64 / trace.live_peak_bytes.max(1) as f64,
            calls_per_1000: per_1000(of.1),
            handles_per_1000: per_1000(of.2),
            capacity_over_live: None,
            by,
        })
    }

    fn config(&self) -> PoolConfig {
        let mut config = PoolConfig::of(self.policy.spec.clone());
        config.cached_share = self.limit;
        config
    }
}

/// Computes what a bucket policy without a cached limit reserves on a trace; `None` for others.
#[must_use]
pub fn computed(spec: &PolicySpec, trace: &Trace) -> Option<ReservedByClasses> {
    let PolicySpec::Blocks { policy, granule: None } = spec else { return None };
    let steps = &trace.steps;
    match policy {
        BucketPolicy::Exact => Some(reserved(steps, |bytes| Some(bytes.max(1)))),
        BucketPolicy::PowerOfTwo => Some(reserved(steps, |bytes| Some(power_of_two(bytes)))),
        BucketPolicy::Tiered(classes) => Some(reserved(steps, |bytes| class_of(classes, bytes))),
        _ => None,
    }
}

/// The candidate with the least memory, as the geometric mean over the traces, among those with few
/// device calls; where none has few, the one with the fewest.
fn choose(
    candidates: &[Candidate],
    advice: &[Advice],
    traces: &[Trace],
) -> Result<Choice, BadInput> {
    let all: f64 = traces.iter().map(|trace| trace.allocations as f64).sum();
    let choices = candidates.iter().zip(advice.chunks(traces.len())).map(|(candidate, rows)| {
        let mean = crate::statistics::geometric_mean(rows.iter().map(|row| row.over_live));
        let weighted = rows.iter().zip(traces);
        let weighted = weighted.map(|(row, trace)| row.calls_per_1000 * trace.allocations as f64);
        (candidate, mean, weighted.sum::<f64>() / all)
    });
    let choices: Vec<_> = choices.collect();
    let few = choices.iter().filter(|one| one.2 <= CALLS_MOST);
    let best = few.min_by(|a, b| a.1.total_cmp(&b.1));
    let best = best.or_else(|| choices.iter().min_by(|a, b| a.2.total_cmp(&b.2)));
    let (candidate, over_live, calls_per_1000) =
        *best.ok_or_else(|| BadInput::new("no policy to choose from", "a trace"))?;
    Ok(Choice {
        policy: candidate.policy.text.clone(),
        cached_limit: candidate.limit_text(),
        over_live,
        calls_per_1000,
        config: candidate.config(),
    })
}

/// The smallest capacity without a refused request, over the live peak.
fn smallest_capacity(trace: &Trace, spec: &NamedPolicy, limit: Option<CachedLimit>) -> Option<f64> {
    let live = trace.live_peak_bytes.max(1) as f64;
    let fails = |over: f64| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a few times the live peak"
        )]
        let capacity = Some(((live * over) as u64).max(trace.largest.0));
        let settings =
            Settings { backend: Backend::SIM, cached_limit: limit, capacity, lanes: None };
        replay(trace, spec, settings).map_or(true, |outcome| outcome.ooms > 0)
    };
    let (mut low, mut high) = (1.0, 1.0 + PRECISION);
    while fails(high) {
        (low, high) = (high, 1.0 + (high - 1.0) * 2.0);
        if high > 16.0 {
            return None;
        }
    }
    while high - low > PRECISION {
        let middle = f64::midpoint(low, high);
        if fails(middle) { low = middle } else { high = middle }
    }
    Some(high)
}

fn bounds(trace: &Trace, learned: &[u64]) -> Bounds {
    let over_pow2 = |steps: &[Step]| {
        let classes = reserved(steps, |bytes| class_of(learned, bytes)).peak_bytes;
        let pow2 = reserved(steps, |bytes| Some(power_of_two(bytes))).peak_bytes;
        classes as f64 / pow2.max(1) as f64
    };
    Bounds {
        trace: trace.name.clone(),
        live_peak_bytes: trace.live_peak_bytes,
        plan_bytes: plan::greedy_by_size(trace),
        second_half_over_pow2: over_pow2(&second_half(trace)),
        whole_over_pow2: over_pow2(&trace.steps),
    }
}

impl Advice {
    /// Returns the policy, without its many learned classes.
    #[must_use]
    pub fn shown_policy(&self) -> String {
        match self.policy.split_once(':') {
            Some(("tiered", classes)) if classes.len() > 24 => {
                format!("tiered: {} learned classes", classes.split('+').count())
            }
            _ => self.policy.clone(),
        }
    }
}

impl Choice {
    /// Returns whether a row of the advice is about this policy with its limit.
    #[must_use]
    pub fn is_of(&self, one: &Advice) -> bool {
        (&one.policy, &one.cached_limit) == (&self.policy, &self.cached_limit)
    }

    /// Returns the policy.
    #[must_use]
    pub fn named(&self) -> NamedPolicy {
        self.config.policy.clone().into()
    }

    /// Returns the cached limit; `None` without one.
    #[must_use]
    pub fn limit(&self) -> Option<CachedLimit> {
        self.config.cached_share.map(CachedLimit::OfPeak)
    }

    /// One sentence that says what to take, and what it brings.
    #[must_use]
    pub fn sentence(&self) -> String {
        let limit = match self.cached_limit.as_str() {
            "none" => "without a cached limit".into(),
            limit => format!("with a cached limit of {limit} of the peak"),
        };
        let calls = match self.calls_per_1000 > CALLS_MOST {
            true => ", the fewest of all",
            false => "",
        };
        format!(
            "Take `{}` {limit}: it reserves {:.3} times the live peak, with {:.1} device calls per \
             1000 allocations{calls}.",
            self.policy, self.over_live, self.calls_per_1000
        )
    }

    /// The configuration as a TOML file.
    #[must_use]
    pub fn toml(&self) -> String {
        let config = toml::to_string(&self.config).unwrap_or_default();
        format!(
            "# {}\n# A program reads it by toml::from_str::<PoolConfig>(&text)?.pool(memory)?\n{config}",
            self.sentence()
        )
    }
}
