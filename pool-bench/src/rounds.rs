//! Contenders take turns, round by round; what is told are medians, and ratios within a round.

use crate::contest::quantile;
use serde::{Deserialize, Serialize};

/// One allocator in one case; one line of `--json`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are the documentation; records/README.md tells them")]
pub struct Row {
    pub case: String,
    /// Bytes of a block, or elements of an array of f32.
    pub size: u64,
    pub settings: String,
    pub allocator: String,
    /// Of one pair, expression, item or operation: the median over the rounds.
    pub ns: f64,
    /// How many times the floor, and half the distance between the quartiles; where there is one.
    pub times_floor: Option<f64>,
    pub times_floor_error: Option<f64>,
    /// How many times the tcache.
    pub times_tcache: Option<f64>,
    pub times_tcache_error: Option<f64>,
    /// The most memory that was resident beyond what was before, and the most that was alive.
    pub resident_peak_bytes: Option<u64>,
    pub live_peak_bytes: Option<u64>,
}

/// What floors and allocators took, by round.
#[derive(Debug)]
pub struct Rounds {
    names: Vec<&'static str>,
    samples: Vec<Vec<f64>>,
}

impl Rounds {
    /// Of these contenders; `floor` and `tcache` are what the others are compared with.
    #[must_use]
    pub fn new(names: &[&'static str]) -> Self {
        Self { names: names.to_vec(), samples: vec![vec![]; names.len()] }
    }

    /// Runs everybody so many times, in turns, and once more before that counts. `work` gets the
    /// place of a name and returns nanoseconds.
    #[must_use]
    pub fn run(mut self, rounds: usize, mut work: impl FnMut(usize) -> f64) -> Self {
        for round in 0..=rounds {
            for (at, samples) in self.samples.iter_mut().enumerate() {
                let ns = work(at);
                if round > 0 {
                    samples.push(ns);
                }
            }
        }
        self
    }

    /// What it came to.
    #[must_use]
    pub fn rows(&self, case: &str, size: usize) -> Vec<Row> {
        let of = |name: &str| {
            let at = self.names.iter().position(|other| *other == name)?;
            self.samples.get(at)
        };
        let times = |samples: &[f64], other: &str| {
            let mut times: Vec<f64> = samples.iter().zip(of(other)?).map(|(s, o)| s / o).collect();
            let spread = quantile(&mut times, 0.75) - quantile(&mut times, 0.25);
            Some((quantile(&mut times, 0.5), spread / 2.0))
        };
        let row = |(name, samples): (&&str, &Vec<f64>)| {
            let (floor, tcache) = (times(samples, "floor"), times(samples, "tcache"));
            Row {
                case: case.into(),
                size: size as u64,
                allocator: (*name).into(),
                ns: quantile(&mut samples.clone(), 0.5),
                times_floor: floor.map(|times| times.0),
                times_floor_error: floor.map(|times| times.1),
                times_tcache: tcache.map(|times| times.0),
                times_tcache_error: tcache.map(|times| times.1),
                ..Row::default()
            }
        };
        self.names.iter().zip(&self.samples).map(row).collect()
    }
}
