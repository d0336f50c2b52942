//! The spread of a figure: the one place where it is computed.

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, Normal};
use statrs::statistics::{Data, OrderStatistics};
use std::fmt;

/// Resamples of one interval. 2000 put the ends of a 95 % interval on 50 resamples each.
const RESAMPLES: usize = 2000;
/// The interval holds this share of the resampled medians.
const LEVEL: f64 = 0.95;
/// The resamples of one set of samples are always the same.
const SEED: u64 = 0x6275_636b_6574;

/// How many times as long, or as fast, as something else in the same round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// The median over the rounds of all processes.
    pub median: f64,
    /// The lower end of the 95 % bootstrap interval of the median.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

impl Ratio {
    /// The median of `processes`, each the samples of one process, with its bootstrap interval.
    /// `None` without samples.
    ///
    /// A resample draws processes, and then rounds inside each (the two-stage bootstrap of Davison
    /// and Hinkley, *Bootstrap Methods and their Application*, 3.8), so that the interval holds
    /// what differs between processes: addresses, huge pages, the state of the machine.
    #[must_use]
    pub fn of(processes: &[Vec<f64>]) -> Option<Self> {
        let processes: Vec<_> = processes.iter().filter(|samples| !samples.is_empty()).collect();
        let all: Vec<f64> = processes.iter().copied().flatten().copied().collect();
        if all.is_empty() {
            return None;
        }
        let mut random = SmallRng::seed_from_u64(SEED);
        let mut medians = Vec::with_capacity(RESAMPLES);
        let mut resample = Vec::with_capacity(all.len());
        for _ in 0..RESAMPLES {
            resample.clear();
            for _ in 0..processes.len() {
                let samples = processes[random.random_range(0..processes.len())];
                let draw = |_| samples[random.random_range(0..samples.len())];
                resample.extend((0..samples.len()).map(draw));
            }
            medians.push(median(&resample));
        }
        let (low, high) = ((1.0 - LEVEL) / 2.0, 1.0 - (1.0 - LEVEL) / 2.0);
        let median = median(&all);
        // A resample of few rounds may lie on one side of their median.
        let (low, high) = (quantile(&medians, low), quantile(&medians, high));
        Some(Self { median, low: low.min(median), high: high.max(median) })
    }

    /// Whether `value` lies inside the interval.
    #[must_use]
    pub fn holds(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// Whether it lies below 1 significantly, as one of `comparisons` that are looked at together.
    ///
    /// Of 200 ratios that are 1 in truth, the 95 % intervals of five lie below 1. So the interval
    /// is widened to the level that Bonferroni's correction asks for, as if the logarithm of the
    /// median were normal.
    #[must_use]
    pub fn is_below_one(&self, comparisons: usize) -> bool {
        let deviations = |level: f64| Normal::standard().inverse_cdf(1.0 - (1.0 - level) / 2.0);
        let each = 1.0 - (1.0 - LEVEL) / comparisons.max(1) as f64;
        let wider = deviations(each) / deviations(LEVEL);
        self.median * (self.high / self.median).powf(wider) < 1.0
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = if self.median < 9.995 { 2 } else { 1 };
        let Self { median, low, high } = self;
        write!(f, "{median:.digits$} [{low:.digits$}, {high:.digits$}]")
    }
}

/// The median; NaN of no samples.
#[must_use]
pub fn median(samples: &[f64]) -> f64 {
    quantile(samples, 0.5)
}

/// The value below which a share of the samples lies; NaN of no samples.
#[must_use]
pub fn quantile(samples: &[f64], share: f64) -> f64 {
    Data::new(samples.to_vec()).quantile(share)
}

/// The geometric mean; NaN of no samples.
pub fn geometric_mean(samples: impl Iterator<Item = f64>) -> f64 {
    let logs: Vec<f64> = samples.map(f64::ln).collect();
    (logs.iter().sum::<f64>() / logs.len() as f64).exp()
}

/// The orders in which contenders take turns: random, and the same for the same seed.
#[derive(Debug)]
pub struct Orders(SmallRng);

impl Orders {
    /// The orders of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(SmallRng::seed_from_u64(seed))
    }

    /// The order of the next round of `contenders` contenders, by their places.
    pub fn next(&mut self, contenders: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..contenders).collect();
        order.shuffle(&mut self.0);
        order
    }
}

/// The slope of a line through points, by least squares, and its standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Slope {
    /// Growth for each unit.
    pub slope: f64,
    /// The standard error of `slope`.
    pub error: f64,
}

impl Slope {
    /// Fits a line. Fewer than three points have no slope and no error.
    #[must_use]
    pub fn of(points: impl Iterator<Item = (f64, f64)>) -> Self {
        let points: Vec<_> = points.collect();
        let count = points.len() as f64;
        if count < 3.0 {
            return Self::default();
        }
        let sum = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>();
        let (x, y) = (sum(&|point| point.0) / count, sum(&|point| point.1) / count);
        let spread = sum(&|point| (point.0 - x).powi(2));
        let slope = sum(&|point| (point.0 - x) * (point.1 - y)) / spread;
        let rest = sum(&|point| (point.1 - y - slope * (point.0 - x)).powi(2));
        Self { slope, error: (rest / (count - 2.0) / spread).sqrt() }
    }

    /// Returns whether it is more than three errors, and more than `allowed` for each unit.
    #[must_use]
    pub fn exceeds(&self, allowed: f64) -> bool {
        self.slope > 3.0 * self.error && self.slope > allowed
    }
}

impl fmt::Display for Slope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} (error {:.0})", self.slope, self.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(processes: &[&[f64]]) -> Ratio {
        Ratio::of(&processes.iter().map(|samples| samples.to_vec()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn equal_samples_leave_no_doubt() {
        let ratio = of(&[&[2.0; 9], &[2.0; 9], &[2.0; 9]]);
        assert_eq!(ratio, Ratio { median: 2.0, low: 2.0, high: 2.0 });
        assert_eq!(Ratio::of(&[vec![], vec![]]), None);
    }

    #[test]
    fn processes_that_differ_widen_the_interval_more_than_rounds_that_differ() {
        let apart = of(&[&[1.0; 9], &[2.0; 9], &[3.0; 9]]);
        assert!((1.0..1.5).contains(&apart.low) && (2.5..=3.0).contains(&apart.high), "{apart}");
        let rounds: Vec<f64> = (0..9).map(|at| 1.0 + f64::from(at % 3)).collect();
        let together = of(&[&rounds, &rounds, &rounds]);
        let width = |ratio: Ratio| ratio.high - ratio.low;
        assert!(width(together) <= width(apart), "{together} {apart}");
    }

    #[test]
    fn of_many_comparisons_each_must_be_clearer() {
        let ratio = Ratio { median: 0.86, low: 0.77, high: 0.95 };
        assert!(ratio.is_below_one(1) && !ratio.is_below_one(200));
        let clear = Ratio { median: 0.5, low: 0.49, high: 0.51 };
        assert!(clear.is_below_one(200));
    }

    #[test]
    fn one_outlier_does_not_move_the_median() {
        let ratio = of(&[&[1.0, 1.0, 1.0, 1.0, 900.0], &[1.0; 5], &[1.0; 5]]);
        assert_eq!((ratio.median, ratio.holds(1.0)), (1.0, true));
    }

    #[test]
    fn a_ratio_is_shown_with_its_interval() {
        let ratio = Ratio { median: 1.234, low: 1.2, high: 1.3 };
        assert_eq!(ratio.to_string(), "1.23 [1.20, 1.30]");
        let ratio = Ratio { median: 22.04, low: 19.4, high: 26.9 };
        assert_eq!(ratio.to_string(), "22.0 [19.4, 26.9]");
    }

    #[test]
    fn orders_are_random_and_repeat_with_their_seed() {
        let rounds = |seed| -> Vec<_> {
            let mut orders = Orders::new(seed);
            (0..100).map(|_| orders.next(4)).collect()
        };
        assert_eq!(rounds(7), rounds(7));
        assert_ne!(rounds(7), rounds(8));
        for place in 0..4 {
            let first = rounds(7).iter().filter(|order| order[0] == place).count();
            assert!((10..45).contains(&first), "contender {place} begins {first} of 100 rounds");
        }
    }

    #[test]
    fn a_line_that_rises_more_than_its_error_and_than_it_may_exceeds() {
        let at = |rise: f64| (0..100_i32).map(move |x| (f64::from(x), rise * f64::from(x)));
        let noise = || [9.0, -9.0].into_iter().cycle();
        let noisy = |rise| at(rise).zip(noise()).map(|((x, y), noise)| (x, y + noise));
        assert!((Slope::of(at(3.0)).slope - 3.0).abs() < 1e-9);
        assert!(Slope::of(noisy(1.0)).exceeds(0.5), "{}", Slope::of(noisy(1.0)));
        assert!(!Slope::of(noisy(0.0)).exceeds(0.5), "{}", Slope::of(noisy(0.0)));
        assert!(!Slope::of(at(0.1)).exceeds(0.5), "less than is allowed");
        assert_eq!(Slope::of(at(1.0).take(2)), Slope::default());
    }
}
