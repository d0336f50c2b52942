//! Contenders take turns in random order, round by round. Figures are medians, and ratios within a
//! round, over several processes.

use crate::statistics::{Orders, Ratio, median};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One contender in one case; one line of `--json`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Row {
    /// The thing that was measured.
    pub case: String,
    /// Bytes of a block, or elements of an array; 0 where the case says it all.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub size: u64,
    /// `default`, or `tuned` as a user would who knows the contender; empty where that is no
    /// question.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub settings: String,
    /// Who was measured.
    pub contender: String,
    /// Processes, and rounds of all of them that gave a figure.
    pub processes: usize,
    /// See `processes`.
    pub rounds: usize,
    /// Nanoseconds of one pair, expression, item, operation or frame, as the case says: the median.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ns: Option<f64>,
    /// How many times as long as each of these took in the same round.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub times: BTreeMap<String, Ratio>,
    /// The most bytes that the device had handed out at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_peak_bytes: Option<u64>,
    /// The same of a pool of one shard with this policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_peak_of_one_shard_bytes: Option<u64>,
    /// The most bytes that were resident beyond what was before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident_peak_bytes: Option<u64>,
    /// The most requested bytes that were live at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_peak_bytes: Option<u64>,
    /// The most page faults of the whole process in a round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_faults: Option<u64>,
    /// The part of the requests that a cache served, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hit_rate: Option<f64>,
    /// Things that the contender does not do, where others do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub absent: String,
    /// Why there is no figure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Nanoseconds of each round, by process; emptied once the ratios are computed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<Vec<Option<f64>>>,
    /// The order of each round, by process, as places of contenders in base 36; in the first
    /// contender's row only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub orders: Vec<Vec<String>>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The rounds of one case in this process.
#[derive(Debug)]
pub struct Rounds {
    names: Vec<String>,
    samples: Vec<Vec<Option<f64>>>,
    faults: Vec<u64>,
    orders: Vec<String>,
}

impl Rounds {
    /// Runs `rounds` rounds, and `cold` more before them that do not count. In each, every
    /// contender takes one turn, in the next order of `seed`. `work` gets a contender's place in
    /// `names` and returns nanoseconds; a contender that fails is not asked again.
    pub fn run<E>(
        names: &[impl AsRef<str>],
        (cold, rounds): (usize, usize),
        seed: u64,
        mut work: impl FnMut(usize) -> Result<f64, E>,
    ) -> (Self, Vec<Option<E>>) {
        let names: Vec<String> = names.iter().map(|name| name.as_ref().to_owned()).collect();
        let mut failures: Vec<Option<E>> = names.iter().map(|_| None).collect();
        let (mut samples, mut faults) = (vec![Vec::new(); names.len()], vec![0; names.len()]);
        let (mut draw, mut orders) = (Orders::new(seed), Vec::new());
        for round in 0..cold + rounds {
            let order = draw.next(names.len());
            for at in &order {
                let before = crate::machine::page_faults();
                let took = match &failures[*at] {
                    Some(_) => None,
                    None => work(*at).map_err(|failure| failures[*at] = Some(failure)).ok(),
                };
                if round >= cold {
                    samples[*at].push(took);
                    let now = crate::machine::page_faults().saturating_sub(before);
                    faults[*at] = now.max(faults[*at]);
                }
            }
            orders.push(order.iter().copied().filter_map(place).collect());
        }
        (Self { names, samples, faults, orders }, failures)
    }

    /// Runs contenders that cannot fail, with one cold round.
    #[must_use]
    pub fn of(
        names: &[impl AsRef<str>],
        rounds: usize,
        seed: u64,
        mut work: impl FnMut(usize) -> f64,
    ) -> Self {
        Self::run(names, (1, rounds), seed, |at| Ok::<_, ()>(work(at))).0
    }

    /// Rounds that were run elsewhere: the samples of each contender, and the order of each round.
    #[must_use]
    pub fn of_samples(
        names: Vec<String>,
        samples: Vec<Vec<Option<f64>>>,
        orders: &[Vec<usize>],
    ) -> Self {
        let orders = orders.iter().map(|order| order.iter().copied().filter_map(place).collect());
        let (faults, orders) = (Vec::new(), orders.collect());
        Self { names, samples, faults, orders }
    }

    /// A row for each contender, ratios not computed yet ([`pool`]).
    #[must_use]
    pub fn rows(self, case: &str, size: u64) -> Vec<Row> {
        let faults = self.faults.into_iter().map(Some).chain(std::iter::repeat(None));
        let contenders = self.names.into_iter().zip(self.samples).zip(faults);
        let row = |((contender, samples), faults)| Row {
            case: case.into(),
            size,
            contender,
            page_faults: faults,
            samples: vec![samples],
            ..Row::default()
        };
        let mut rows: Vec<Row> = contenders.map(row).collect();
        if let Some(first) = rows.first_mut() {
            first.orders = vec![self.orders];
        }
        rows
    }
}

fn place(at: usize) -> Option<char> {
    char::from_digit(u32::try_from(at).ok()?, 36)
}

/// Joins the rows of several processes, and computes medians and ratios. What others are compared
/// with are the contenders named in `references`; none named means the first of each case.
#[must_use]
pub fn pool(processes: Vec<Vec<Row>>, references: &[&str]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (number, process) in processes.into_iter().enumerate() {
        for mut row in process {
            // A contender that was missing before has no samples of those processes.
            if !rows.iter().any(|other| other.is_of_the_same(&row)) {
                let missing = vec![Vec::new(); number];
                row.samples.splice(0..0, missing);
            }
            match rows.iter_mut().find(|other| other.is_of_the_same(&row)) {
                Some(other) => other.join(row),
                None => rows.push(row),
            }
        }
        for row in &mut rows {
            row.samples.resize(row.samples.len().max(number + 1), Vec::new());
        }
    }
    // Rows of one case stand together, whatever process brought them first.
    let mut order: Vec<Row> = Vec::new();
    while let Some(first) = rows.first().cloned() {
        let (case, rest) = rows.into_iter().partition(|row| row.is_of_the_same_case(&first));
        order.extend::<Vec<Row>>(case);
        rows = rest;
    }
    let rows = order;
    let cases: Vec<Vec<Row>> =
        rows.chunk_by(Row::is_of_the_same_case).map(<[Row]>::to_vec).collect();
    let mut pooled = Vec::new();
    for case in cases {
        let is_reference = |row: &&Row| match references {
            [] => row.contender == case[0].contender,
            named => named.contains(&row.contender.as_str()),
        };
        let references: Vec<&Row> = case.iter().filter(is_reference).collect();
        pooled.extend(case.iter().map(|row| row.beside(&references)));
    }
    pooled
}

impl Row {
    fn is_of_the_same_case(&self, other: &Self) -> bool {
        (&self.case, self.size, &self.settings) == (&other.case, other.size, &other.settings)
    }

    fn is_of_the_same(&self, other: &Self) -> bool {
        self.is_of_the_same_case(other) && self.contender == other.contender
    }

    /// Adds what another process measured.
    fn join(&mut self, other: Self) {
        self.samples.extend(other.samples);
        self.orders.extend(other.orders);
        let most = |a: Option<u64>, b: Option<u64>| a.max(b);
        self.reserved_peak_bytes = most(self.reserved_peak_bytes, other.reserved_peak_bytes);
        self.resident_peak_bytes = most(self.resident_peak_bytes, other.resident_peak_bytes);
        self.live_peak_bytes = most(self.live_peak_bytes, other.live_peak_bytes);
        self.page_faults = most(self.page_faults, other.page_faults);
        self.hit_rate = match (self.hit_rate, other.hit_rate) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        self.refused = self.refused.take().or(other.refused);
    }

    /// Returns the row with its median, and its ratios to these rows of the same case.
    fn beside(&self, references: &[&Row]) -> Self {
        let all: Vec<f64> = self.samples.iter().flatten().copied().flatten().collect();
        let ratio = |reference: &&Row| {
            let within = |(own, others): (&Vec<Option<f64>>, &Vec<Option<f64>>)| -> Vec<f64> {
                own.iter()
                    .zip(others)
                    .filter_map(|(own, other)| Some((*own)? / (*other)?))
                    .collect()
            };
            let processes: Vec<Vec<f64>> =
                self.samples.iter().zip(&reference.samples).map(within).collect();
            Some((reference.contender.clone(), Ratio::of(&processes)?))
        };
        Self {
            processes: self.samples.len(),
            rounds: all.len(),
            ns: (!all.is_empty()).then(|| median(&all)),
            times: references.iter().filter_map(ratio).collect(),
            samples: Vec::new(),
            ..self.clone()
        }
    }
}

/// Cells that beat a bound that nothing should beat (`floor`) significantly, given how many cells
/// are compared with it. One line for each.
#[must_use]
pub fn beaten_floors(rows: &[Row]) -> Vec<String> {
    let compared = rows.iter().filter(|row| row.times.contains_key("floor")).count();
    let beaten = |row: &Row| {
        let ratio = row.times.get("floor").filter(|ratio| ratio.is_below_one(compared))?;
        let Row { case, size, contender, .. } = row;
        Some(format!("the floor of {case} {size} is beaten by {contender}: {ratio} times as long"))
    };
    rows.iter().filter_map(beaten).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process in which each contender takes what its place says, and the machine a bit more
    /// each round.
    fn process(seed: u64, slow: f64) -> Vec<Row> {
        let mut turn = 0.0;
        let work = |at: usize| {
            turn += 1.0;
            [10.0, 20.0, 5.0][at] * slow
        };
        let rows = Rounds::of(&["floor", "ours", "fast"], 8, seed, work).rows("pair", 64);
        assert!(turn > 0.0);
        rows
    }

    #[test]
    fn ratios_are_within_a_round_whatever_a_process_took() {
        let rows = pool(vec![process(1, 1.0), process(2, 3.0), process(3, 2.0)], &["floor"]);
        let ours = &rows[1];
        assert_eq!((ours.processes, ours.rounds, ours.ns), (3, 24, Some(40.0)));
        assert_eq!(ours.times["floor"], Ratio { median: 2.0, low: 2.0, high: 2.0 });
        assert!(rows.iter().all(|row| row.samples.is_empty() && row.times.len() == 1));
        assert_eq!((rows[0].orders.len(), rows[0].orders[0].len()), (3, 9));
    }

    #[test]
    fn a_beaten_floor_is_told() {
        let rows = pool(vec![process(1, 1.0)], &["floor"]);
        let told = ["the floor of pair 64 is beaten by fast: 0.50 [0.50, 0.50] times as long"];
        assert_eq!(beaten_floors(&rows), told);
    }

    #[test]
    fn without_a_name_the_first_is_the_reference() {
        let rows = pool(vec![process(1, 1.0)], &[]);
        assert!(rows.iter().all(|row| row.times.keys().eq(["floor"])));
    }

    #[test]
    fn a_contender_that_fails_is_not_asked_again() {
        let mut asked = 0;
        let (rounds, failures) = Rounds::run(&["a", "b"], (1, 5), 3, |at| {
            asked += usize::from(at == 1);
            if at == 1 { Err("no memory") } else { Ok(1.0) }
        });
        assert_eq!((asked, failures), (1, vec![None, Some("no memory")]));
        let rows = pool(vec![rounds.rows("pair", 0)], &[]);
        assert_eq!((rows[0].rounds, rows[1].rounds, rows[1].ns), (5, 0, None));
    }
}
