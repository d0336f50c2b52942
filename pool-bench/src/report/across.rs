//! The comparison of backends: one table a workload, policies down, backends across, and then one
//! sentence that says what to take.

use super::{reserved_over_live, row, table};
use crate::backend::Backend;
use crate::contest::Standing;
use crate::statistics::{Ratio, geometric_mean};
use crate::workload::Workload;
use bucketpool::size::Bytes;

/// Policies within this share of the fastest count as equally fast.
const EQUAL: f64 = 0.05;

/// The tables, and the sentence.
#[must_use]
pub fn across_backends(standings: &[Standing]) -> Vec<String> {
    let mut workloads: Vec<Workload> = Vec::new();
    let mut backends: Vec<Backend> = Vec::new();
    let mut policies: Vec<&str> = Vec::new();
    for s in standings.iter().filter(|s| !s.is_direct() && !s.is_control()) {
        keep(&mut workloads, s.workload);
        keep(&mut backends, s.backend);
        keep(&mut policies, s.policy.as_str());
    }
    let mut parts = vec![
        "How many times as fast as direct allocation on that backend, every byte written (on sim: \
         how many times fewer device calls), with the 95 % interval; then the most bytes reserved, \
         and that over the most that lived."
            .to_owned(),
    ];
    for workload in &workloads {
        let of = |policy: &str, backend| find(standings, *workload, backend, policy);
        let names = backends.iter().map(|backend| backend.name());
        let columns: Vec<&str> = ["policy"].into_iter().chain(names).collect();
        let mut table = table(&columns);
        for policy in &policies {
            let cell = |backend: &Backend| {
                let direct = of("direct", *backend);
                of(policy, *backend).zip(direct).map_or("-".into(), |(s, direct)| cell(s, direct))
            };
            let cells: Vec<String> =
                [(*policy).to_owned()].into_iter().chain(backends.iter().map(cell)).collect();
            table.add_row(row(&cells.iter().map(String::as_str).collect::<Vec<_>>()));
        }
        parts.push(format!("{}: {}\n\n{table}", workload.name(), workload.title()));
    }
    parts.push(advice(standings, &workloads, &backends, &policies));
    parts
}

fn keep<T: PartialEq>(all: &mut Vec<T>, one: T) {
    if !all.contains(&one) {
        all.push(one);
    }
}

/// The ratio that counts on a backend: of time, but on the simulated device, which has none, of
/// device calls.
fn ratio(standing: &Standing, direct: &Standing) -> Option<Ratio> {
    if !standing.backend.is_simulated() {
        return standing.times_direct;
    }
    let calls = |s: &Standing| (s.device_allocations + s.device_frees).max(1) as f64;
    let median = calls(direct) / calls(standing);
    Some(Ratio { median, low: median, high: median })
}

fn cell(standing: &Standing, direct: &Standing) -> String {
    let times = match ratio(standing, direct) {
        Some(ratio) if standing.backend.is_simulated() => format!("{:.1}", ratio.median),
        Some(ratio) => ratio.to_string(),
        None => "-".into(),
    };
    let reserved = Bytes(standing.reserved_peak_bytes);
    let over = reserved_over_live(standing.reserved_peak_bytes, standing.live_peak_bytes);
    format!("{times}; {reserved}, {over}")
}

/// The standing of a policy, if it ran there.
fn find<'s>(
    standings: &'s [Standing],
    workload: Workload,
    backend: Backend,
    policy: &str,
) -> Option<&'s Standing> {
    standings.iter().find(|s| (s.workload, s.backend) == (workload, backend) && s.policy == policy)
}

/// How fast a policy is over all workloads of a backend, and what it reserves over the live peak:
/// geometric means. `None` if it did not run on each.
fn over_all(
    standings: &[Standing],
    workloads: &[Workload],
    backend: Backend,
    policy: &str,
) -> Option<(f64, f64)> {
    let mut ratios = Vec::new();
    for workload in workloads {
        let own = find(standings, *workload, backend, policy)?;
        let direct = find(standings, *workload, backend, "direct")?;
        let over = own.reserved_peak_bytes as f64 / own.live_peak_bytes.max(1) as f64;
        ratios.push((ratio(own, direct)?.median, over));
    }
    let speed = geometric_mean(ratios.iter().map(|(speed, _)| *speed));
    Some((speed, geometric_mean(ratios.iter().map(|(_, over)| *over))))
}

/// Says which policy to take on each backend: among the policies that are about as fast as the
/// fastest over all workloads, the one that reserves least.
fn advice(
    standings: &[Standing],
    workloads: &[Workload],
    backends: &[Backend],
    policies: &[&str],
) -> String {
    let take = |backend: &Backend| {
        let sums: Vec<(&str, f64, f64)> = policies
            .iter()
            .filter_map(|policy| {
                let (speed, over) = over_all(standings, workloads, *backend, policy)?;
                Some((*policy, speed, over))
            })
            .collect();
        let fastest = sums.iter().map(|(_, speed, _)| *speed).fold(0.0, f64::max);
        let fast = sums.into_iter().filter(|(_, speed, _)| *speed >= fastest * (1.0 - EQUAL));
        let (policy, speed, over) = fast.min_by(|a, b| a.2.total_cmp(&b.2))?;
        let what = match backend.is_simulated() {
            true => format!("{speed:.0} times fewer device calls"),
            false => format!("{speed:.1} times as fast as direct allocation"),
        };
        Some(format!("on {} `{policy}` ({what}, {over:.2} times the live peak)", backend.name()))
    };
    let taken: Vec<String> = backends.iter().filter_map(take).collect();
    if taken.is_empty() {
        return "Nothing to take: no policy ran on every workload.".into();
    }
    format!(
        "Over these workloads take {}: the least memory among the policies within {:.0} % of the \
         fastest.",
        taken.join(", "),
        100.0 * EQUAL
    )
}
