//! The steps of a trace on one pool, and what was counted.

use crate::counted::{Asked, Counted};
use crate::machine::Clock;
use crate::spec::NamedPolicy;
use crate::trace::{Step, Trace};
use bucketpool::limits::CachedLimit;
use bucketpool::sim::TestThreads;
use bucketpool::{DeviceAllocator, PoolBuilder, PoolStats, ZeroPolicy};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Makes the builder of a pool with this policy over a device whose calls are counted:
/// [`NamedPolicy::builder`], or [`NamedPolicy::without_arena`] where blocks cannot be split.
pub type ToBuilder<A> = fn(&NamedPolicy, Counted<A>) -> PoolBuilder<Counted<A>>;

/// A trace, and the pool that it is replayed on.
#[derive(Clone, Copy, Debug)]
pub struct Pass<'a> {
    /// The trace.
    pub trace: &'a Trace,
    /// Policy of the pool.
    pub spec: &'a NamedPolicy,
    /// Bound on cached blocks; the policy's own one if `None`.
    pub cached_limit: Option<CachedLimit>,
    /// Size of a simulated device, in bytes.
    pub capacity: u64,
    /// Threads that take turns; all steps are done by one thread if `None`.
    pub lanes: Option<InTurns>,
    /// Clock that the steps are timed by.
    pub clock: Clock,
}

/// Threads that take turns of 1 to 8 steps, and hand buffers to each other.
#[derive(Clone, Copy, Debug)]
pub struct InTurns {
    /// How many.
    pub threads: usize,
    /// The seed of their order.
    pub seed: u64,
    /// The shards of the pool; as many as it takes by itself if `None`.
    pub shards: Option<usize>,
}

/// Counters after all steps of a trace.
#[derive(Clone, Copy, Debug)]
pub struct Tally {
    /// Figures of the pool at the end.
    pub stats: PoolStats,
    /// Calls to the device.
    pub asked: Asked,
    /// The bound on cached blocks that held.
    pub cached_limit: CachedLimit,
    /// Nanoseconds of all steps.
    pub ns: u64,
}

impl Pass<'_> {
    /// Replays the trace on a pool over `device`. A request that the pool refuses is counted, and
    /// its later steps do nothing.
    pub fn run<A: DeviceAllocator>(&self, device: A, to_builder: ToBuilder<A>) -> Tally {
        let device = Counted::new(device);
        let calls = device.calls();
        let mut builder = to_builder(self.spec, device).zero(ZeroPolicy::Never);
        if let Some(limit) = self.cached_limit {
            builder = builder.cached_limit(limit);
        }
        if let Some(shards) = self.lanes.and_then(|lanes| lanes.shards) {
            builder = builder.shards(shards);
        }
        let cached_limit = builder.bound_on_cached_bytes();
        let pool = builder.build();
        let mut slots: Vec<_> = std::iter::repeat_with(|| None).take(self.trace.slots).collect();
        let mut do_steps = |steps: &[Step]| {
            for step in steps {
                match *step {
                    Step::Allocate { slot, bytes, .. } => {
                        slots[slot as usize] = pool.allocate(bytes).ok();
                    }
                    Step::Free { slot, .. } => slots[slot as usize] = None,
                    Step::Use { .. } => {}
                }
            }
        };
        let ((), ns) = self.clock.time(|| match self.lanes {
            None => do_steps(&self.trace.steps),
            Some(lanes) => {
                let mut threads = TestThreads::new(lanes.threads);
                for (thread, steps) in turns(&self.trace.steps, lanes) {
                    threads.as_thread(thread, || do_steps(steps));
                }
            }
        });
        // The deferred frees of the last drops belong to the trace.
        let _ = pool.trim(0);
        let asked = calls.asked().with_handles_of(pool.device_stats());
        Tally { stats: pool.stats(), asked, cached_limit, ns }
    }
}

/// Cuts steps into turns of 1 to 8, each of a thread; the same for the same seed.
fn turns(steps: &[Step], lanes: InTurns) -> impl Iterator<Item = (usize, &[Step])> {
    const MAX_TURN: usize = 8;
    let (mut random, mut rest) = (SmallRng::seed_from_u64(lanes.seed), steps);
    std::iter::from_fn(move || {
        let length = random.random_range(1..=MAX_TURN).min(rest.len());
        let (turn, behind) = rest.split_at(length);
        rest = behind;
        (length > 0).then(|| (random.random_range(0..lanes.threads), turn))
    })
}
