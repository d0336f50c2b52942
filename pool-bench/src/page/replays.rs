//! The sections of a page for each command.

use super::{Axis, Bar, Column, Frame, PageBlock, Range, Section, Segment, Series};
use crate::advise::{Advice, Advised, Bounds, CALLS_MOST};
use crate::contest::Standing;
use crate::replay::Outcome;
use crate::rounds::Row;
use crate::spec::PolicySpec;
use crate::timeline::Timeline;
use crate::trace::{Step, Trace};
use bucketpool::{MemoryMap, RangeState};
use serde_json::{Value, json};

/// Shares of the operations whose time a plot shows, in percent.
const SHARES: [f64; 9] = [50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.99, 100.0];

/// Replays of one trace: memory over time, the map, times and figures of each policy.
#[must_use]
pub fn trace(trace: &Trace, watched: &[(&PolicySpec, Timeline)], outcomes: &[Outcome]) -> Section {
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
        match trace.lost {
            0 => String::new(),
            lost => format!(" The recorder lost {lost} operations."),
        }
    );
    Section { title: trace.name.clone(), text, blocks }
}

fn bytes_over_time(trace: &Trace, watched: &[(&PolicySpec, Timeline)]) -> Option<PageBlock> {
    let (_, first) = watched.first()?;
    let values = |bytes: &[u64]| bytes.iter().map(|bytes| Some(*bytes as f64)).collect();
    let mut series = vec![Series { name: "live".into(), values: values(&first.live) }];
    series.extend(watched.iter().map(|(spec, timeline)| Series {
        name: spec.text.clone(),
        values: values(&timeline.reserved),
    }));
    Some(PageBlock::Lines {
        title: format!("{}: live and reserved bytes", trace.name),
        caption:
            "The line `live` is what the program had requested. The other lines are what each \
                  policy had from the device. Each point is the highest value since the point \
                  before."
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
        name: one.policy.clone(),
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
fn map_over_time(watched: &[(&PolicySpec, Timeline)]) -> Option<PageBlock> {
    let (spec, timeline) = watched.iter().find(|(spec, _)| spec.arena.is_some())?;
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

fn latencies(watched: &[(&PolicySpec, Timeline)]) -> PageBlock {
    let series = watched.iter().map(|(spec, timeline)| Series {
        name: spec.text.clone(),
        values: SHARES.iter().map(|share| timeline.quantile(share / 100.0)).collect(),
    });
    // The slowest of n operations: an axis on which 90, 99 and 99.9 % are as far apart.
    let rarity = |share: &f64| 100.0 / (100.0 - share).max(0.001);
    PageBlock::Lines {
        title: "Time of an allocation or a free".into(),
        caption:
            "One operation in so many takes longer than the line says: at 100 the line is the \
                  time of the 99th percentile. Calls of the simulated device take no time."
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
        caption:
            "A lane of the trace is a stream or a thread. Peaks of several lanes need not be at \
                  the same moment."
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
            json!(one.policy),
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

fn rounded(value: f64, digits: i32) -> Value {
    let factor = 10_f64.powi(digits);
    json!((value * factor).round() / factor)
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
        text:
            "Each policy on each trace. Less memory and fewer calls are better; no policy is best \
               in both."
                .into(),
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

/// Workloads: how many times as fast as direct allocation.
#[must_use]
pub fn standings(standings: &[Standing]) -> Option<Section> {
    if standings.is_empty() {
        return None;
    }
    let mut backends: Vec<String> = standings.iter().map(|one| one.backend.name()).collect();
    backends.sort_unstable();
    backends.dedup();
    let blocks = backends.into_iter().map(|backend| {
        let of = standings.iter().filter(|one| one.backend.name() == backend);
        let bars = of.filter_map(|one| {
            let ratio = one.times_direct.as_ref()?;
            Some(Bar {
                group: one.workload.name(),
                name: one.policy.clone(),
                value: ratio.median,
                low: Some(ratio.low),
                high: Some(ratio.high),
            })
        });
        PageBlock::Bars {
            title: format!("Workloads on {backend}: times as fast as direct allocation"),
            caption: "The line marks direct allocation. Whiskers are 95 % intervals of the median."
                .into(),
            value: Axis::new("times as fast", ""),
            reference: Some(1.0),
            log: true,
            bars: bars.collect(),
        }
    });
    Some(Section {
        title: "Workloads".into(),
        text:
            "Each contender took turns with direct allocation in the same process, in random order."
                .into(),
        blocks: blocks.collect(),
    })
}

/// Contenders beside peers: the median of each, and how many times as long as ours.
#[must_use]
pub fn peers(rows: &[Row]) -> Option<Section> {
    if rows.is_empty() {
        return None;
    }
    let bar = |row: &Row| {
        let size = if row.size > 0 { format!(", {}", row.size) } else { String::new() };
        Some(Bar {
            group: format!("{}{size} {}", row.case, row.settings).trim().to_owned(),
            name: row.contender.clone(),
            value: row.ns?,
            low: None,
            high: None,
        })
    };
    let times = |row: &Row| {
        row.times
            .iter()
            .map(|(than, ratio)| Bar {
                group: format!("{} {}", row.case, row.settings).trim().to_owned(),
                name: format!("{} over {than}", row.contender),
                value: ratio.median,
                low: Some(ratio.low),
                high: Some(ratio.high),
            })
            .collect::<Vec<_>>()
    };
    let mut blocks = vec![PageBlock::Bars {
        title: "Time of each contender".into(),
        caption: "Medians over the rounds of all processes.".into(),
        value: Axis::new("time", "ns"),
        reference: None,
        log: true,
        bars: rows.iter().filter_map(bar).collect(),
    }];
    let ratios: Vec<Bar> = rows.iter().flat_map(times).collect();
    if !ratios.is_empty() {
        blocks.push(PageBlock::Bars {
            title: "Times as long as another contender in the same round".into(),
            caption: "Below 1 the contender is faster. Whiskers are 95 % intervals of the median."
                .into(),
            value: Axis::new("times as long", ""),
            reference: Some(1.0),
            log: true,
            bars: ratios,
        });
    }
    let text = "Contenders took turns in random order, in several processes.".into();
    Some(Section { title: "Peers".into(), text, blocks })
}

impl Outcome {
    fn cached_limit_text(&self) -> String {
        match self.cached_limit.as_str() {
            "none" => "no cached limit".into(),
            limit => format!("cached limit {limit}"),
        }
    }

    /// The policy, and its cached limit if it has one.
    fn named(&self) -> String {
        match self.cached_limit.as_str() {
            "none" => self.policy.clone(),
            limit => format!("{}, {limit}", self.policy),
        }
    }
}

/// The advice: memory against device calls, and all figures.
#[must_use]
pub fn advice(advised: &Advised) -> Section {
    let blocks =
        vec![few_calls(&advised.advice), advised_figures(&advised.advice), bounds(advised)];
    Section { title: "Advice".into(), text: advised.choice.sentence(), blocks }
}

fn few_calls(advice: &[Advice]) -> PageBlock {
    let short = |policy: &str| match policy.split_once(':') {
        Some(("tiered", _)) => "tiered, learned".to_owned(),
        _ => policy.to_owned(),
    };
    let bar = |one: &Advice| Bar {
        group: one.trace.clone(),
        name: match one.cached_limit.as_str() {
            "none" => short(&one.policy),
            limit => format!("{}, {limit}", short(&one.policy)),
        },
        value: one.over_live,
        low: None,
        high: None,
    };
    let few = advice.iter().filter(|one| one.calls_per_1000 <= CALLS_MOST);
    PageBlock::Bars {
        title: "Policies with few device calls: reserved peak over live peak".into(),
        caption: "Only policies with at most 10 device calls per 1000 allocations. 1 is the least \
                  that any policy can need."
            .into(),
        value: Axis::new("reserved peak / live peak", ""),
        reference: Some(1.0),
        log: true,
        bars: few.map(bar).collect(),
    }
}

fn advised_figures(advice: &[Advice]) -> PageBlock {
    let row = |one: &Advice| {
        vec![
            json!(one.trace),
            json!(one.policy),
            json!(one.cached_limit),
            rounded(one.over_live, 3),
            rounded(one.calls_per_1000, 1),
            rounded(one.handles_per_1000, 1),
            one.capacity_over_live.map_or(Value::Null, |over| rounded(over, 3)),
            json!(one.by),
        ]
    };
    PageBlock::Table {
        title: "All policies".into(),
        caption: "Calls per 1000 allocations: where a range of pages is one call, and where each \
                  page is one. Capacity is the smallest device without a refused request, over \
                  the live peak."
            .into(),
        columns: vec![
            Column::text("trace"),
            Column::text("policy"),
            Column::text("cached limit"),
            Column::number("over live", ""),
            Column::number("calls/1000", ""),
            Column::number("handles/1000", ""),
            Column::number("capacity", ""),
            Column::text("by"),
        ],
        rows: advice.iter().map(row).collect(),
    }
}

fn bounds(advised: &Advised) -> PageBlock {
    let row = |one: &Bounds| {
        vec![
            json!(one.trace),
            json!(one.live_peak_bytes),
            rounded(one.plan_bytes as f64 / one.live_peak_bytes.max(1) as f64, 3),
            rounded(one.second_half_over_pow2, 3),
            rounded(one.whole_over_pow2, 3),
        ]
    };
    PageBlock::Table {
        title: "What can be had".into(),
        caption: "The plan knows all of the trace beforehand. The last columns are learned \
                  classes, from the first half of the traces, over powers of two."
            .into(),
        columns: vec![
            Column::text("trace"),
            Column::number("live peak", "bytes"),
            Column::number("plan over live", ""),
            Column::number("second half over pow2", ""),
            Column::number("whole over pow2", ""),
        ],
        rows: advised.bounds.iter().map(row).collect(),
    }
}
