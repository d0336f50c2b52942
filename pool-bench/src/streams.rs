//! Replays a trace on several streams: each lane is a stream of the simulated device, each
//! operation gives its stream work on the block, and the work is done 1000 operations later.

use crate::backend::Backend;
use crate::counted::{Calls, Counted};
use crate::input::BadInput;
use crate::machine::timed;
use crate::pass::Tally;
use crate::replay::{OnStreams, Outcome, Settings, capacity, outcome};
use crate::spec::NamedPolicy;
use crate::trace::{Step, Trace};
use bucketpool::observe::DeviceStats;
use bucketpool::sim::{SimDevice, SimDriver, SimStream, SimView};
use bucketpool::stream::{StealPolicy, Timeline};
use bucketpool::{BucketPool, DeviceAllocator, PoolBuilder, PoolStats, PooledBuffer, ZeroPolicy};
use std::collections::VecDeque;
use std::sync::Arc;

/// How many operations of the trace work is behind.
const BEHIND: usize = 1000;

/// How the streams of a trace share memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrangement {
    /// One pool, and this rule.
    Shared(StealPolicy),
    /// A pool for each stream.
    Apart,
    /// One pool, and one stream for all.
    OneStream,
}

impl Arrangement {
    /// All that are compared.
    pub const ALL: [Self; 5] = [
        Self::Shared(StealPolicy::Never),
        Self::Shared(StealPolicy::Ordered),
        Self::Shared(StealPolicy::Wait),
        Self::Apart,
        Self::OneStream,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Shared(StealPolicy::Never) => "steal never",
            Self::Shared(StealPolicy::Ordered) => "steal ordered",
            Self::Shared(StealPolicy::Wait) => "steal wait",
            Self::Apart => "a pool a stream",
            Self::OneStream => "one stream",
        }
    }

    fn steal(self) -> StealPolicy {
        if let Self::Shared(steal) = self { steal } else { StealPolicy::default() }
    }
}

/// An allocator over the simulated device.
trait OnSim: for<'b> DeviceAllocator<View<'b> = SimView<'b>, Clock = Timeline<SimDriver>> {}

impl<A> OnSim for A where
    A: for<'b> DeviceAllocator<View<'b> = SimView<'b>, Clock = Timeline<SimDriver>>
{
}

/// Replays `trace` under one policy on streams.
///
/// # Errors
///
/// Another backend than the simulated device; a capacity below the largest request.
pub fn replay(
    trace: &Trace,
    spec: &NamedPolicy,
    settings: Settings,
    arrangement: Arrangement,
) -> Result<Outcome, BadInput> {
    if settings.backend != Backend::SIM {
        let what = format!("streams on `{}`", settings.backend.name());
        return Err(BadInput::new(what, "backend sim, whose streams can run late"));
    }
    let device = SimDevice::with_capacity(capacity(trace, settings)?);
    let calls = Arc::new(Calls::default());
    let counted = || Counted::together(device.clone(), calls.clone());
    let make = || spec.builder(counted());
    Ok(run(trace, spec, settings, arrangement, &device, &calls, make))
}

/// The pools and streams of a replay, by lane.
struct Lanes<A: OnSim> {
    pools: Vec<BucketPool<A>>,
    streams: Vec<SimStream>,
}

impl<A: OnSim> Lanes<A> {
    fn pool(&self, lane: u32) -> &BucketPool<A> {
        &self.pools[lane as usize % self.pools.len()]
    }

    fn stream(&self, lane: u32) -> &SimStream {
        &self.streams[lane as usize % self.streams.len()]
    }
}

fn run<A: OnSim>(
    trace: &Trace,
    spec: &NamedPolicy,
    settings: Settings,
    arrangement: Arrangement,
    device: &SimDevice,
    calls: &Calls,
    make: impl Fn() -> PoolBuilder<A>,
) -> Outcome {
    let built = || {
        let builder = make().steal(arrangement.steal()).zero(ZeroPolicy::Never);
        match settings.cached_limit {
            Some(limit) => builder.cached_limit(limit).build(),
            None => builder.build(),
        }
    };
    let count = |apart: bool| if apart { trace.lanes } else { 1 };
    let pools = (0..count(arrangement == Arrangement::Apart)).map(|_| built()).collect();
    let streams = (0..count(arrangement != Arrangement::OneStream)).map(|_| device.stream());
    let lanes = Lanes { pools, streams: streams.collect() };
    let ((), ns) = timed(|| steps(trace, device, &lanes));
    for pool in &lanes.pools {
        // Deferred frees of the last drops belong to the trace.
        let _ = pool.trim(0);
    }
    let (mut sum, mut arenas) = (PoolStats::default(), None::<DeviceStats>);
    for pool in &lanes.pools {
        if let Some(stats) = pool.device_stats() {
            let arenas = arenas.get_or_insert_default();
            arenas.num_device_alloc += stats.num_device_alloc;
            arenas.num_device_free += stats.num_device_free;
        }
        let stats = pool.stats();
        sum.hits += stats.hits;
        sum.misses += stats.misses;
        sum.bypasses += stats.bypasses;
        sum.failures += stats.failures;
        sum.evictions += stats.evictions;
    }
    let done = device.calls();
    let on_streams = OnStreams {
        streams: lanes.streams.len(),
        arrangement: arrangement.name(),
        events: done.records,
        waits: done.waits,
        violations: device.hazards(),
    };
    let cached_limit = settings.cached_limit.unwrap_or_else(|| make().bound_on_cached_bytes());
    let asked = calls.asked().with_handles_of(arenas);
    let tally = Tally { stats: sum, asked, cached_limit, ns };
    let outcome = outcome(trace, &spec.text, settings.backend, &tally);
    Outcome { streams: Some(on_streams), ..outcome }
}

/// Each operation gives its stream work on the block; what is [`BEHIND`] operations old is done.
fn steps<A: OnSim>(trace: &Trace, device: &SimDevice, lanes: &Lanes<A>) {
    let mut slots: Vec<Option<PooledBuffer<A>>> = Vec::new();
    slots.resize_with(trace.slots, || None);
    let mut late = VecDeque::new();
    for step in &trace.steps {
        let (slot, lane) = match *step {
            Step::Allocate { slot, lane, bytes } => {
                let buffer = lanes.pool(lane).allocate_on(lanes.stream(lane), bytes);
                slots[slot as usize] = buffer.ok();
                (slot, lane)
            }
            Step::Use { slot, lane } | Step::Free { slot, lane } => (slot, lane),
        };
        let on = lanes.stream(lane);
        if let Some(buffer) = &slots[slot as usize]
            && let Ok(view) = buffer.on(on)
        {
            device.kernel(on, &view);
        }
        if matches!(step, Step::Free { .. }) {
            slots[slot as usize] = None;
        }
        late.push_back((on, device.given(on)));
        if late.len() > BEHIND
            && let Some((on, given)) = late.pop_front()
        {
            device.run_to(on, given);
        }
    }
}
