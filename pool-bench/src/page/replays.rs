//! The section of a page for each trace, and the one for all of them.

use super::{Axis, Bar, Column, Frame, PageBlock, Range, Section, Segment, Series, rounded};
use crate::replay::Outcome;
use crate::spec::NamedPolicy;
use crate::timeline::Timeline;
use crate::trace::{Step, Trace};
use bucketpool::observe::{MemoryMap, RangeState};
use bucketpool::size::Bytes;
use serde_json::json;
use std::cmp::Ordering;

/// Shares of the operations whose time a plot shows, in percent.
const SHARES: [f64; 9] = [50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.99, 100.0];

/// Replays of one trace: memory over time, the map, times and figures of each policy.
#[must_use]
pub fn trace(trace: &Trace, watched: &[(&NamedPolicy, Timeline)], outcomes: &[Outcome]) -> Section {
    let mut of: Vec<&Outcome> = outcomes.iter().filter(|one| one.trace == trace.name).collect();
    of.sort_by(|a, b| by_memory(a, b));
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
        Bytes(trace.live_peak_bytes),
        trace.slots,
        trace.missing().map_or_else(String::new, |missing| format!(" Of {missing}."))
    );
    Section { title: trace.name.clone(), text, blocks }
}

fn bytes_over_time(trace: &Trace, watched: &[(&NamedPolicy, Timeline)]) -> Option<PageBlock> {
    let (_, first) = watched.first()?;
    let values = |bytes: &[u64]| bytes.iter().map(|bytes| Some(*bytes as f64)).collect();
    let peaks = watched.iter().map(|(spec, timeline)| {
        (spec.text.as_str(), timeline.reserved.iter().copied().max().unwrap_or(0))
    });
    let cut = Cut::of(trace.live_peak_bytes, &peaks.collect::<Vec<_>>());
    let caption = "The line `live` is what the program had requested; the others are what each \
                   policy had from a simulated device of any size, on one stream. A point is the \
                   highest value since the one before.";
    let mut series = vec![Series { name: "live".into(), values: values(&first.live) }];
    series.extend(watched.iter().map(|(spec, timeline)| Series {
        name: spec.text.clone(),
        values: values(&timeline.reserved),
    }));
    Some(PageBlock::Lines {
        title: format!("{}: live and reserved bytes", trace.name),
        caption: match &cut {
            Some(cut) => format!("{caption} {}", cut.sentence),
            None => caption.into(),
        },
        x: Axis::new("operations", "count"),
        y: Axis::new("memory", "bytes"),
        x_values: first.at.iter().map(|at| *at as f64).collect(),
        series,
        steps: true,
        log_x: false,
        log_y: false,
        cut: cut.map(|cut| cut.at as f64),
    })
}

/// Where a vertical axis ends, so that a few policies with many bytes do not press all others onto
/// the horizontal axis.
struct Cut {
    at: u64,
    /// Says which lines go on above it.
    sentence: String,
}

impl Cut {
    /// The highest value of a cut axis, as a multiple of the live peak.
    const SHOWN: u64 = 4;
    /// A line above this multiple of the live peak presses the others onto the axis.
    const FLATTENING: u64 = 6;

    fn of(live_peak: u64, peaks: &[(&str, u64)]) -> Option<Self> {
        let at = live_peak.saturating_mul(Self::SHOWN);
        let above: Vec<_> = peaks.iter().filter(|(_, peak)| *peak > at).collect();
        let flattening = live_peak.saturating_mul(Self::FLATTENING);
        let is_flat = above.iter().any(|(_, peak)| *peak > flattening);
        if !is_flat || 2 * above.len() >= peaks.len() {
            return None;
        }
        let named = above.iter().map(|(name, peak)| format!("`{name}` {}", Bytes(*peak)));
        let sentence = format!(
            "The axis ends at {}, {} times the live peak; above it go {}.",
            Bytes(at),
            Self::SHOWN,
            named.collect::<Vec<_>>().join(", ")
        );
        Some(Self { at, sentence })
    }
}

/// The device calls of a replay, per 1000 allocations.
fn calls_per_1000(one: &Outcome) -> f64 {
    let calls = one.device_allocations + one.device_frees;
    1000.0 * calls as f64 / one.allocations.max(1) as f64
}

/// The pieces of memory that these calls made and freed, per 1000 allocations.
fn handles_per_1000(one: &Outcome) -> f64 {
    1000.0 * one.device_handles as f64 / one.allocations.max(1) as f64
}

/// Whether a policy serves less than half of the requests from its cached memory, such as one that
/// bypasses most: little memory is no merit then.
fn is_bypass(one: &Outcome) -> bool {
    one.hit_rate < 0.5
}

/// The bars of replays: reserved over live peak, with the device calls.
fn bars_of<'o>(
    outcomes: impl Iterator<Item = &'o Outcome>,
    group: impl Fn(&Outcome) -> String,
) -> Vec<Bar> {
    let bar = |one: &'o Outcome| {
        let calls = format!("{:.1} calls/1000", calls_per_1000(one));
        let is_grey = is_bypass(one);
        let note = match is_grey {
            true => format!("{calls}, serves {:.1} %", 100.0 * one.hit_rate),
            false => calls,
        };
        let (value, name) = (over_live(one), one.named());
        Bar { group: group(one), name, value, note, is_grey, ..Bar::default() }
    };
    outcomes.map(bar).collect()
}

fn over_live(one: &Outcome) -> f64 {
    one.reserved_peak_bytes as f64 / one.live_peak_bytes.max(1) as f64
}

/// How bars of replays are read.
const BARS: &str = "1 is the least that any policy can need. Behind each value are the device calls \
                    per 1000 allocations. Grey policies serve less than half of the requests from \
                    cached memory, so they save few calls.";

fn reserved_over_live(outcomes: &[&Outcome]) -> PageBlock {
    PageBlock::Bars {
        title: "Reserved peak over live peak".into(),
        caption: BARS.into(),
        value: Axis::new("reserved peak / live peak", ".3"),
        reference: Some(1.0),
        log: outcomes.iter().any(|one| one.reserved_peak_bytes > 8 * one.live_peak_bytes),
        bars: bars_of(outcomes.iter().copied(), |_| String::new()),
    }
}

/// The maps of the first policy that has an arena.
fn map_over_time(watched: &[(&NamedPolicy, Timeline)]) -> Option<PageBlock> {
    let (spec, timeline) = watched.iter().find(|(spec, _)| spec.has_arena())?;
    let frames: Vec<Frame> = timeline
        .maps
        .iter()
        .map(|(at, map)| Frame { label: format!("after {at} operations"), segments: segments(map) })
        .filter(|frame| !frame.segments.is_empty())
        .collect();
    (!frames.is_empty()).then(|| PageBlock::Map {
        title: format!("Memory map under `{}`", spec.text),
        caption: "Each row is a segment of the arena, from its first byte to its last. The slider \
                  chooses the moment."
            .into(),
        frames,
    })
}

/// Memory that waits for its stream is drawn as free: no work was given to the stream of a replay.
fn segments(map: &MemoryMap) -> Vec<Segment> {
    let segment = |segment: &bucketpool::observe::SegmentMap| {
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
        cut: None,
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
        ..Bar::default()
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
        vec![
            json!(one.contender()),
            rounded(over_live(one), 3),
            rounded(calls_per_1000(one), 1),
            rounded(handles_per_1000(one), 1),
            rounded(100.0 * one.hit_rate, 2),
            json!(one.cached_limit),
            json!(one.reserved_peak_bytes),
            json!(one.ooms),
            rounded(one.ns_per_op, 1),
        ]
    };
    PageBlock::Table {
        title: "All figures".into(),
        caption: "Per 1000 allocations: calls of the device, and the handles that they made and \
                  freed, since one call may cover several pages with a handle each."
            .into(),
        columns: vec![
            Column::text("policy"),
            Column::number("over live", ".3"),
            Column::number("calls/1000", ".1"),
            Column::number("handles/1000", ".1"),
            Column::number("hits, %", ".1"),
            Column::text("cached limit"),
            Column::number("reserved peak", "bytes"),
            Column::number("refused", "count"),
            Column::number("time of an operation", "ns"),
        ],
        rows: outcomes.iter().map(row).collect(),
    }
}

/// Policies over several traces.
#[must_use]
pub fn across(outcomes: &[Outcome]) -> Option<Section> {
    let several = outcomes.iter().any(|one| one.trace != outcomes[0].trace);
    let mut sorted: Vec<&Outcome> = outcomes.iter().collect();
    sorted.sort_by(|a, b| a.trace.cmp(&b.trace).then(by_memory(a, b)));
    several.then(|| Section {
        title: "All traces".into(),
        text: "Each policy on each trace. No policy is best in both memory and calls.".into(),
        blocks: vec![PageBlock::Bars {
            title: "Reserved peak over live peak".into(),
            caption: BARS.into(),
            value: Axis::new("reserved peak / live peak", ".3"),
            reference: Some(1.0),
            log: outcomes.iter().any(|one| one.reserved_peak_bytes > 8 * one.live_peak_bytes),
            bars: bars_of(sorted.iter().copied(), |one| one.trace.clone()),
        }],
    })
}

/// The order of policies on a page: the least memory first, bypasses last.
fn by_memory(a: &Outcome, b: &Outcome) -> Ordering {
    let key = |one: &Outcome| (is_bypass(one), over_live(one));
    key(a).partial_cmp(&key(b)).unwrap_or(Ordering::Equal)
}

impl Outcome {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Backend;
    use crate::replay::{Settings, replay};
    use std::path::Path;

    #[test]
    fn an_axis_that_few_policies_flatten_is_cut_and_says_which() {
        let cut = Cut::of(10 << 20, &[("exact", 3 << 30), ("arena", 11 << 20), ("pow2", 20 << 20)]);
        let sentence =
            "The axis ends at 40.00 MiB, 4 times the live peak; above it go `exact` 3.00 GiB.";
        assert_eq!(cut.map(|cut| (cut.at, cut.sentence)), Some((40 << 20, sentence.into())));
        assert!(Cut::of(10, &[("exact", 50), ("arena", 11), ("pow2", 20)]).is_none(), "not flat");
        assert!(Cut::of(10, &[("exact", 500), ("pow2", 400), ("arena", 11)]).is_none(), "most");
    }

    #[test]
    fn policies_stand_by_memory_and_a_bypass_is_grey_and_last() {
        let file = format!("{}/../traces/bert_embed.ptrace.csv.zst", env!("CARGO_MANIFEST_DIR"));
        let read = crate::trace::read(Path::new(&file)).unwrap();
        let settings =
            Settings { backend: Backend::SIM, cached_limit: None, capacity: None, lanes: None };
        let outcomes: Vec<_> = ["pow2", "tiered:16", "arena"]
            .map(|text| NamedPolicy::from(text.parse::<bucketpool::config::PolicySpec>().unwrap()))
            .map(|policy| replay(&read, &policy, settings).unwrap())
            .into();
        let section = trace(&read, &[], &outcomes);
        let bars = section.blocks.iter().find_map(|block| match block {
            PageBlock::Bars { bars, .. } => Some(bars),
            _ => None,
        });
        let shown: Vec<_> =
            bars.unwrap().iter().map(|bar| (bar.name.as_str(), bar.is_grey)).collect();
        assert_eq!(shown, [("arena", false), ("pow2", false), ("tiered:16", true)]);
        let note = &bars.unwrap()[2].note;
        assert!(note.contains(" calls/1000, serves "), "{note}");
    }
}
