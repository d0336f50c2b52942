//! The section of a page for each trace, and the one for all of them.

use super::{Axis, Bar, Column, Frame, PageBlock, Range, Section, Segment, Series, rounded};
use crate::replay::Outcome;
use crate::spec::NamedPolicy;
use crate::timeline::Timeline;
use crate::trace::{Step, Trace};
use bucketpool::{MemoryMap, RangeState};
use serde_json::json;

/// Shares of the operations whose time a plot shows, in percent.
const SHARES: [f64; 9] = [50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.99, 100.0];

/// Replays of one trace: memory over time, the map, times and figures of each policy.
#[must_use]
pub fn trace(trace: &Trace, watched: &[(&NamedPolicy, Timeline)], outcomes: &[Outcome]) -> Section {
    let of: Vec<&Outcome> = outcomes.iter().filter(|one| one.trace == trace.name).collect();
    let mut blocks = Vec::new();
    blocks.extend(bytes_over_time(trace, watched));
    blocks.push(reserved_over_live(&of));
    blocks.extend(map_over_time(watched));
    blocks.push(latencies(watched));
    blocks.extend(peaks_by_lane(trace));
    blocks.push(figures(&of));
    let text = format!(
        "The trace has {} operations and {} allocations. At most {} were live at once, in {} \
         buffers.{}",
        trace.ops,
        trace.allocations,
        bucketpool::Bytes(trace.live_peak_bytes),
        trace.slots,
        trace.missing().map_or_else(String::new, |missing| format!(" Of {missing}."))
    );
    Section { title: trace.name.clone(), text, blocks }
}

fn bytes_over_time(trace: &Trace, watched: &[(&NamedPolicy, Timeline)]) -> Option<PageBlock> {
    let (_, first) = watched.first()?;
    let values = |bytes: &[u64]| bytes.iter().map(|bytes| Some(*bytes as f64)).collect();
    let mut series = vec![Series { name: "live".into(), values: values(&first.live) }];
    series.extend(watched.iter().map(|(spec, timeline)| Series {
        name: spec.text.clone(),
        values: values(&timeline.reserved),
    }));
    Some(PageBlock::Lines {
        title: format!("{}: live and reserved bytes", trace.name),
        caption: "The line `live` is what the program had requested; the others are what each \
                  policy had from a simulated device of any size, on one stream. A point is the \
                  highest value since the one before."
            .into(),
        x: Axis::new("operations", "count"),
        y: Axis::new("memory", "bytes"),
        x_values: first.at.iter().map(|at| *at as f64).collect(),
        series,
        steps: true,
        log_x: false,
        log_y: false,
    })
}

fn reserved_over_live(outcomes: &[&Outcome]) -> PageBlock {
    let bar = |one: &&Outcome| Bar {
        group: one.cached_limit_text(),
        name: one.contender(),
        value: one.reserved_peak_bytes as f64 / one.live_peak_bytes.max(1) as f64,
        low: None,
        high: None,
    };
    PageBlock::Bars {
        title: "Reserved peak over live peak".into(),
        caption: "1 is the least that any policy can need. The line marks it.".into(),
        value: Axis::new("reserved peak / live peak", ""),
        reference: Some(1.0),
        log: outcomes.iter().any(|one| one.reserved_peak_bytes > 8 * one.live_peak_bytes),
        bars: outcomes.iter().map(bar).collect(),
    }
}

/// The maps of the first policy that has an arena.
fn map_over_time(watched: &[(&NamedPolicy, Timeline)]) -> Option<PageBlock> {
    let (spec, timeline) = watched.iter().find(|(spec, _)| spec.has_arena())?;
    let frames: Vec<Frame> = timeline
        .maps
        .iter()
        .map(|(at, map)| Frame { label: format!("after {at} operations"), segments: segments(map) })
        .collect();
    (!frames.is_empty()).then(|| PageBlock::Map {
        title: format!("Memory map under `{}`", spec.text),
        caption: "Each row is a segment of the arena, from its first byte to its last. The slider \
                  chooses the moment."
            .into(),
        frames,
    })
}

fn segments(map: &MemoryMap) -> Vec<Segment> {
    let segment = |segment: &bucketpool::SegmentMap| {
        // The addresses behind the last memory are no part of the picture.
        let end = segment.ranges.iter().rev().find(|range| range.state != RangeState::Hole);
        let end = end.map_or(0, |range| range.range.end);
        let ranges = segment.ranges.iter().filter(|range| range.range.start < end);
        let ranges = ranges.map(|range| Range {
            at: range.range.start,
            bytes: range.bytes(),
            state: match range.state {
                RangeState::Used => "used",
                RangeState::Private => "private",
                RangeState::Pending => "pending",
                RangeState::Hole => "hole",
                _ => "free",
            },
            stream: range.stream,
            tag: String::new(),
        });
        Segment { bytes: end, ranges: ranges.collect() }
    };
    map.segments.iter().map(segment).filter(|segment| segment.bytes > 0).collect()
}

fn latencies(watched: &[(&NamedPolicy, Timeline)]) -> PageBlock {
    let series = watched.iter().map(|(spec, timeline)| Series {
        name: spec.text.clone(),
        values: SHARES.iter().map(|share| timeline.quantile(share / 100.0)).collect(),
    });
    // The slowest of n operations: an axis on which 90, 99 and 99.9 % are as far apart.
    let rarity = |share: &f64| 100.0 / (100.0 - share).max(0.001);
    PageBlock::Lines {
        title: "Time of an allocation or a free".into(),
        caption: "One operation in so many takes longer than the line says: at 100 the line is \
                  the 99th percentile. Calls of the simulated device take no time."
            .into(),
        x: Axis::new("one operation in", "count"),
        y: Axis::new("time", "ns"),
        x_values: SHARES.iter().map(rarity).collect(),
        series: series.collect(),
        steps: false,
        log_x: true,
        log_y: true,
    }
}

/// The live peak of each lane, where a trace has several.
fn peaks_by_lane(trace: &Trace) -> Option<PageBlock> {
    if trace.lanes < 2 {
        return None;
    }
    let (mut live, mut peaks) = (vec![0_u64; trace.lanes], vec![0_u64; trace.lanes]);
    let mut owners = vec![(0_usize, 0_u64); trace.slots];
    for step in &trace.steps {
        match *step {
            Step::Allocate { slot, bytes, lane } => {
                let lane = lane as usize;
                owners[slot as usize] = (lane, bytes);
                live[lane] += bytes;
                peaks[lane] = peaks[lane].max(live[lane]);
            }
            Step::Free { slot, .. } => {
                let (lane, bytes) = std::mem::take(&mut owners[slot as usize]);
                live[lane] = live[lane].saturating_sub(bytes);
            }
            Step::Use { .. } => {}
        }
    }
    let bar = |(lane, bytes): (usize, &u64)| Bar {
        group: String::new(),
        name: format!("lane {lane}"),
        value: *bytes as f64,
        low: None,
        high: None,
    };
    Some(PageBlock::Bars {
        title: "Live peak of each stream".into(),
        caption: "A lane is a stream or a thread. Lanes reach their peaks at different moments."
            .into(),
        value: Axis::new("live peak", "bytes"),
        reference: None,
        log: false,
        bars: peaks.iter().enumerate().map(bar).collect(),
    })
}

fn figures(outcomes: &[&Outcome]) -> PageBlock {
    let row = |one: &&Outcome| {
        let calls = one.device_allocations + one.device_frees;
        let per_1000 = 1000.0 * calls as f64 / one.allocations.max(1) as f64;
        vec![
            json!(one.contender()),
            json!(one.cached_limit),
            json!(one.reserved_peak_bytes),
            rounded(one.reserved_peak_bytes as f64 / one.live_peak_bytes.max(1) as f64, 3),
            rounded(100.0 * one.hit_rate, 2),
            json!(one.ooms),
            rounded(per_1000, 1),
            rounded(one.ns_per_op, 1),
        ]
    };
    PageBlock::Table {
        title: "All figures".into(),
        caption: "Calls are those of the device, per 1000 allocations.".into(),
        columns: vec![
            Column::text("policy"),
            Column::text("cached limit"),
            Column::number("reserved peak", "bytes"),
            Column::number("over live", ""),
            Column::number("hits, %", ""),
            Column::number("refused", "count"),
            Column::number("calls/1000", ""),
            Column::number("time of an operation", "ns"),
        ],
        rows: outcomes.iter().map(row).collect(),
    }
}

/// Policies over several traces.
#[must_use]
pub fn across(outcomes: &[Outcome]) -> Option<Section> {
    let several = outcomes.iter().any(|one| one.trace != outcomes[0].trace);
    let bar = |one: &Outcome| Bar {
        group: one.trace.clone(),
        name: one.named(),
        value: one.reserved_peak_bytes as f64 / one.live_peak_bytes.max(1) as f64,
        low: None,
        high: None,
    };
    several.then(|| Section {
        title: "All traces".into(),
        text: "Each policy on each trace. No policy is best in both memory and calls.".into(),
        blocks: vec![PageBlock::Bars {
            title: "Reserved peak over live peak".into(),
            caption: "1 is the least that any policy can need.".into(),
            value: Axis::new("reserved peak / live peak", ""),
            reference: Some(1.0),
            log: outcomes.iter().any(|one| one.reserved_peak_bytes > 8 * one.live_peak_bytes),
            bars: outcomes.iter().map(bar).collect(),
        }],
    })
}

impl Outcome {
    fn cached_limit_text(&self) -> String {
        match self.cached_limit.as_str() {
            "none" => "no cached limit".into(),
            limit => format!("cached limit {limit}"),
        }
    }

    /// The policy, with what else tells it from others of a page: how streams share pools, and
    /// which memory it was, unless it is simulated.
    fn contender(&self) -> String {
        let mut name = self.policy.clone();
        if let Some(on) = &self.streams {
            name = format!("{name}, {}", on.arrangement);
        }
        match self.backend.is_simulated() {
            true => name,
            false => format!("{name} on {}", self.backend.name()),
        }
    }

    /// The contender, and its cached limit if it has one.
    fn named(&self) -> String {
        match self.cached_limit.as_str() {
            "none" => self.contender(),
            limit => format!("{}, {limit}", self.contender()),
        }
    }
}
