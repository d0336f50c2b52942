//! Replays a trace on a pool.

use crate::backend::Backend;
use crate::input::BadInput;
use crate::machine::free_memory;
use crate::pass::{InTurns, Pass, Tally};
use crate::spec::NamedPolicy;
use crate::trace::Trace;
use bucketpool::limits::CachedLimit;
use bucketpool::size::Bytes;
use serde::Serialize;

/// Settings of a replay.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Memory to replay on.
    pub backend: Backend,
    /// Bound on cached blocks, if one was given.
    pub cached_limit: Option<CachedLimit>,
    /// Size of the simulated device.
    pub capacity: Option<u64>,
    /// Threads that take turns.
    pub lanes: Option<InTurns>,
}

impl Settings {
    /// Lets so many threads take turns, in an order of this seed, over a pool of so many shards.
    #[must_use]
    pub fn in_turns(self, threads: usize, seed: u64, shards: Option<usize>) -> Self {
        Self { lanes: Some(InTurns { threads, seed, shards }), ..self }
    }
}

/// The result of a replay; one line of `--json`.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "the names are the documentation; README.md tells them")]
pub struct Outcome {
    pub trace: String,
    pub policy: String,
    pub backend: Backend,
    pub cached_limit: String,
    pub ops: u64,
    pub allocations: u64,
    pub live_peak_bytes: u64,
    pub reserved_peak_bytes: u64,
    /// The same of a pool of one shard in the same run, where several were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_peak_of_one_shard_bytes: Option<u64>,
    pub hits: u64,
    pub misses: u64,
    pub bypasses: u64,
    pub ooms: u64,
    /// Cached blocks that the pool gave back to the device because of a bound.
    pub evictions: u64,
    pub hit_rate: f64,
    /// Successful calls that took memory from the device, however many pages one covers.
    pub device_allocations: u64,
    pub device_frees: u64,
    /// Pieces of memory that these calls made and freed.
    pub device_handles: u64,
    pub ns_per_op: f64,
    #[serde(flatten)]
    pub streams: Option<OnStreams>,
}

/// Additional results of a replay on streams.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "the names are the documentation; README.md tells them")]
pub struct OnStreams {
    pub streams: usize,
    /// Rule for memory that another stream used last, or how the streams are separated.
    pub arrangement: &'static str,
    pub events: u64,
    pub waits: u64,
    /// Uses that were not ordered after the use before them.
    pub violations: usize,
}

/// Replays `trace` under one policy.
///
/// # Errors
///
/// Fails if the capacity is below the largest request, or if the memory cannot be had or not be
/// split for an arena.
pub fn replay(trace: &Trace, spec: &NamedPolicy, settings: Settings) -> Result<Outcome, BadInput> {
    let capacity = capacity(trace, settings)?;
    let backend = settings.backend;
    if let Some(why) = backend.refusal(spec) {
        let what = format!("policy `{}` on {}: {why}", spec.text, backend.name());
        return Err(BadInput::new(what, "a policy without an arena"));
    }
    let (cached_limit, lanes) = (settings.cached_limit, settings.lanes);
    let pass = Pass { trace, spec, cached_limit, capacity, lanes, clock: backend.clock() };
    let run = |pass: &Pass<'_>| backend.replay(pass).map_err(|why| absent(backend, &why));
    let mut outcome = outcome(trace, &spec.text, backend, &run(&pass)?);
    if let Some(lanes) = lanes.filter(|lanes| lanes.shards.is_some()) {
        let one = Pass { lanes: Some(InTurns { shards: Some(1), ..lanes }), ..pass };
        outcome.reserved_peak_of_one_shard_bytes = Some(run(&one)?.asked.peak_bytes);
    }
    Ok(outcome)
}

/// Checks that a replay on real memory has room on this machine: the policy is replayed on a
/// simulated device first.
///
/// # Errors
///
/// Fails if the policy reserves more there than half of the free memory.
pub fn check_room(trace: &Trace, spec: &NamedPolicy, settings: Settings) -> Result<(), BadInput> {
    if settings.backend.is_simulated() {
        return Ok(());
    }
    let simulated = replay(trace, spec, Settings { backend: Backend::SIM, ..settings })?;
    let cure = match settings.cached_limit {
        None if !spec.has_arena() => ", such as with `--cached-limit 25%`",
        _ => "",
    };
    fits_this_machine(trace, &spec.text, simulated.reserved_peak_bytes, cure)
}

/// Replays a trace without a pool; `None` if `backend` has no such reference. That of host memory
/// is the allocator of this process.
///
/// # Errors
///
/// Fails if the trace does not fit this machine's memory.
pub fn replay_directly(trace: &Trace, backend: Backend) -> Result<Option<Outcome>, BadInput> {
    let Some(reference) = backend.reference() else { return Ok(None) };
    fits_this_machine(trace, "direct", trace.live_peak_bytes, "")?;
    Ok(Some(outcome(trace, "direct", backend, &reference(trace))))
}

/// Returns the size of the simulated device. Fails if the largest request does not fit in it.
pub(crate) fn capacity(trace: &Trace, settings: Settings) -> Result<u64, BadInput> {
    let (largest, line) = trace.largest;
    let capacity = settings.capacity.unwrap_or(u64::MAX);
    if capacity >= largest {
        return Ok(capacity);
    }
    let request = format!("the largest request of {}, {largest} bytes in line {line}", trace.name);
    Err(BadInput::new(format!("capacity of {capacity} bytes"), format!("at least {request}")))
}

/// Returns the error for a kind of memory that this machine or build does not have.
fn absent(backend: Backend, why: &str) -> BadInput {
    let cure = backend.absence().map_or("another backend", |absence| absence.cure);
    BadInput::new(format!("backend `{}`: {why}", backend.name()), cure)
}

/// Returns the result of a replay.
pub(crate) fn outcome(trace: &Trace, policy: &str, backend: Backend, tally: &Tally) -> Outcome {
    let Tally { stats, asked, cached_limit, ns } = tally;
    Outcome {
        trace: trace.name.clone(),
        policy: policy.to_owned(),
        backend,
        cached_limit: cached_limit.to_string(),
        ops: trace.ops,
        allocations: trace.allocations,
        live_peak_bytes: trace.live_peak_bytes,
        reserved_peak_bytes: asked.peak_bytes,
        reserved_peak_of_one_shard_bytes: None,
        hits: stats.hits,
        misses: stats.misses,
        bypasses: stats.bypasses,
        ooms: stats.failures,
        evictions: stats.evictions,
        hit_rate: stats.hits as f64 / trace.allocations as f64,
        device_allocations: asked.allocations,
        device_frees: asked.frees,
        device_handles: asked.handles,
        ns_per_op: *ns as f64 / trace.steps.len() as f64,
        streams: None,
    }
}

/// Checks that what a policy reserves on a simulated device is at most half of the free memory,
/// before real memory is used.
fn fits_this_machine(trace: &Trace, policy: &str, needed: u64, cure: &str) -> Result<(), BadInput> {
    let half = free_memory().map_or(u64::MAX, |free| free / 2);
    if needed <= half {
        return Ok(());
    }
    let what = format!("{} needs {} of host memory under `{policy}`", trace.name, Bytes(needed));
    let expected = format!("at most half of what is free, {}{cure}", Bytes(half));
    Err(BadInput::new(what, expected))
}
