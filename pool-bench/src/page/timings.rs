//! The sections of a page for times: workloads, and contenders beside peers.

use super::{Axis, Bar, PageBlock, Section};
use crate::contest::Standing;
use crate::rounds::Row;

/// Workloads: how many times as fast as direct allocation.
#[must_use]
pub fn standings(standings: &[Standing]) -> Option<Section> {
    if standings.is_empty() {
        return None;
    }
    let mut backends: Vec<&str> = standings.iter().map(|one| one.backend.name()).collect();
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
                ..Bar::default()
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
            "Each contender and direct allocation has a process; they took turns, in random order."
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
    let group = |row: &Row| {
        let size = if row.size > 0 { format!(", {}", row.size) } else { String::new() };
        format!("{}{size} {}", row.case, row.settings).trim().to_owned()
    };
    let bar = |row: &Row| {
        Some(Bar {
            group: group(row),
            name: row.contender.clone(),
            value: row.ns?,
            low: None,
            high: None,
            ..Bar::default()
        })
    };
    let times = |row: &Row| {
        row.times
            .iter()
            .map(|(than, ratio)| Bar {
                group: group(row),
                name: format!("{} over {than}", row.contender),
                value: ratio.median,
                low: Some(ratio.low),
                high: Some(ratio.high),
                ..Bar::default()
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
