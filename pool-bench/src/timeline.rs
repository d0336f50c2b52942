//! A replay watched: live and reserved bytes over its operations, maps of the memory, and the time
//! of each operation.

use crate::counted::Counted;
use crate::spec::NamedPolicy;
use crate::trace::{Step, Trace};
use bucketpool::limits::CachedLimit;
use bucketpool::observe::MemoryMap;
use bucketpool::sim::SimDevice;
use bucketpool::{BucketPool, PooledBuffer, ZeroPolicy};
use std::time::Instant;

/// Moments at which bytes are read.
const MOMENTS: usize = 800;
/// Moments at which the map is read.
const MAPS: usize = 24;
/// A map with more ranges than this is left out: no picture shows them.
const RANGES_MOST: usize = 3000;

/// A replay on the simulated device, watched.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// Operations before each moment.
    pub at: Vec<u64>,
    /// Requested bytes of live buffers.
    pub live: Vec<u64>,
    /// Bytes that the pool had from the device.
    pub reserved: Vec<u64>,
    /// Operations before a map, and the map.
    pub maps: Vec<(u64, MemoryMap)>,
    /// Nanoseconds of each allocation and free, the fastest first.
    pub ns: Vec<u32>,
}

type Pool = BucketPool<Counted<SimDevice>>;

fn pool(spec: &NamedPolicy, limit: Option<CachedLimit>) -> Pool {
    let builder = spec.builder(Counted::new(SimDevice::new())).zero(ZeroPolicy::Never);
    match limit {
        Some(limit) => builder.cached_limit(limit).build(),
        None => builder.build(),
    }
}

/// Replays a trace twice: once for its bytes, and once for the time of each operation.
#[must_use]
pub fn watch(trace: &Trace, spec: &NamedPolicy, limit: Option<CachedLimit>) -> Timeline {
    let mut timeline = Timeline { ns: times(trace, &pool(spec, limit)), ..Timeline::default() };
    let pool = pool(spec, limit);
    let mut slots: Vec<Option<PooledBuffer<_>>> = Vec::new();
    slots.resize_with(trace.slots, || None);
    let mut sizes = vec![0; trace.slots];
    let (every, map_every) =
        (trace.steps.len().div_ceil(MOMENTS).max(1), trace.steps.len().div_ceil(MAPS).max(1));
    let (mut live, mut peak) = (0_u64, (0_u64, 0_u64));
    for (number, step) in trace.steps.iter().enumerate() {
        if number % every == 0 {
            timeline.add_moment(number as u64, peak);
            peak = (live, pool.reserved_bytes());
        }
        if number % map_every == 0 {
            timeline.add_map(number as u64, &pool);
        }
        match *step {
            Step::Allocate { slot, bytes, .. } => {
                slots[slot as usize] = pool.allocate(bytes).ok();
                sizes[slot as usize] = bytes;
                live += bytes;
            }
            Step::Free { slot, .. } => {
                slots[slot as usize] = None;
                live = live.saturating_sub(std::mem::take(&mut sizes[slot as usize]));
            }
            Step::Use { .. } => {}
        }
        peak = (peak.0.max(live), peak.1.max(pool.reserved_bytes()));
    }
    timeline.add_moment(trace.steps.len() as u64, peak);
    timeline
}

/// Returns the memory map of a pool at the moment when most requested bytes are live. A buffer
/// whose free is not completed yet has its memory still.
#[must_use]
pub fn map_at_live_peak(trace: &Trace, spec: &NamedPolicy) -> MemoryMap {
    let pool = pool(spec, None);
    let mut slots: Vec<Option<PooledBuffer<_>>> = Vec::new();
    slots.resize_with(trace.slots, || None);
    for step in trace.steps.iter().take(trace.live_peak_step + 1) {
        match *step {
            Step::Allocate { slot, bytes, .. } => slots[slot as usize] = pool.allocate(bytes).ok(),
            Step::Free { slot, .. } => slots[slot as usize] = None,
            Step::Use { .. } => {}
        }
    }
    pool.map()
}

impl Timeline {
    /// Adds the highest live and reserved bytes since the moment before, so that no peak is hidden.
    fn add_moment(&mut self, number: u64, (live, reserved): (u64, u64)) {
        self.at.push(number);
        self.live.push(live);
        self.reserved.push(reserved);
    }

    fn add_map(&mut self, number: u64, pool: &Pool) {
        let map = pool.map();
        let ranges: usize = map.segments.iter().map(|segment| segment.ranges.len()).sum();
        if ranges <= RANGES_MOST {
            self.maps.push((number, map));
        }
    }

    /// Returns the time of the operation that is slower than a share of all, 0 to 1.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let last = self.ns.len().checked_sub(1)?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a length"
        )]
        let at = (last as f64 * share.clamp(0.0, 1.0)).round() as usize;
        self.ns.get(at).map(|ns| f64::from(*ns))
    }
}

fn times(trace: &Trace, pool: &Pool) -> Vec<u32> {
    let mut slots: Vec<Option<PooledBuffer<_>>> = Vec::new();
    slots.resize_with(trace.slots, || None);
    let mut ns = Vec::with_capacity(trace.steps.len());
    for step in &trace.steps {
        let start = Instant::now();
        match *step {
            Step::Allocate { slot, bytes, .. } => slots[slot as usize] = pool.allocate(bytes).ok(),
            Step::Free { slot, .. } => slots[slot as usize] = None,
            Step::Use { .. } => continue,
        }
        ns.push(u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX));
    }
    ns.sort_unstable();
    ns
}

#[cfg(test)]
mod tests {
    use super::*;
    use bucketpool::KIB;
    use bucketpool::observe::RangeState;

    #[test]
    fn the_last_moment_has_the_peak_since_the_one_before() {
        let pair = |id: usize, bytes: usize| format!("a,{id},{bytes},0,0\nf,{id},,0,0\n");
        let pairs: String = (0..MOMENTS).map(|id| pair(id, 4096)).collect();
        let text = format!("op,id,size,lane,dt_ns\n{pairs}{}", pair(MOMENTS, 65536));
        let log = pool_trace::ptrace::read(text.as_bytes()).unwrap();
        let trace = Trace::of(&log).unwrap();
        let exact = &crate::spec::list("exact").unwrap()[0];
        let timeline = watch(&trace, exact, None);
        assert_eq!(timeline.at.last(), Some(&(trace.steps.len() as u64)));
        assert_eq!(timeline.live.iter().max(), Some(&trace.live_peak_bytes));
        assert_eq!(timeline.at.len(), timeline.live.len());
        assert_eq!(timeline.at.len(), timeline.reserved.len());
    }

    #[test]
    fn the_map_at_the_live_peak_has_buffers_whose_free_is_not_completed() {
        let text =
            "op,id,size,lane,dt_ns\na,0,4096,0,0\nf,0,,0,0\na,1,8192,0,0\nd,0,,0,0\nf,1,,0,0\n";
        let log = pool_trace::ptrace::read(text.as_bytes()).unwrap();
        let trace = Trace::of(&log).unwrap();
        assert_eq!((trace.live_peak_bytes, trace.live_peak_step), (8 * KIB, 1));
        let exact = &crate::spec::list("exact").unwrap()[0];
        let map = map_at_live_peak(&trace, exact);
        let ranges = map.segments.iter().flat_map(|segment| &segment.ranges);
        let live = ranges.filter(|range| range.state == RangeState::Used);
        assert_eq!(live.map(bucketpool::observe::RangeMap::bytes).sum::<u64>(), 12 * KIB);
    }
}
