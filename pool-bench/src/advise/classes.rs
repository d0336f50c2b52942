//! Size classes for a trace: what given classes reserve, and the best classes by an exact dynamic
//! programme.
//!
//! A bucket pool without a cached limit ends with `sum over classes of size * P`, where `P` is the
//! most blocks of the class that were live at once. `P` of the sizes in `(S[i], S[j]]` does not
//! depend on the other classes, so the best boundaries are a shortest path, and the programme is
//! exact.

use crate::trace::Step;
use std::collections::BTreeMap;

/// Distinct sizes that the programme tells apart; more are rounded up together.
const SIZES_MOST: usize = 128;
/// The most classes that are learned.
const CLASSES_MOST: usize = 16;
/// Requests up to this size may be served by any class: their bytes do not matter.
const SMALL: u64 = 16 << 10;
/// A class is at most this many times as large as the next smaller one, above [`SMALL`], so that a
/// request of another phase of the program is not served by a class far too large.
const RATIO_MOST: u64 = 4;
/// Classes are added up to this many times the largest size, for requests that have not come yet.
const BEYOND: u64 = 8;

/// The bytes that a rule reserves on a trace, and its device calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReservedByClasses {
    /// The most bytes that the pool has from the device at once.
    pub peak_bytes: u64,
    /// Allocations and frees of the device.
    pub calls: u64,
}

/// Computes what a bucket pool without a cached limit reserves under a rounding rule. `class`
/// returns the size of a request's class, or `None` if the request bypasses the pool.
#[must_use]
pub fn reserved(steps: &[Step], class: impl Fn(u64) -> Option<u64>) -> ReservedByClasses {
    let mut live: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let mut slots: Vec<(u64, bool)> = Vec::new();
    let (mut bytes, mut sum) = (0_u64, ReservedByClasses::default());
    for step in steps {
        match *step {
            Step::Allocate { slot, bytes: requested, .. } => {
                let slot = slot as usize;
                if slots.len() <= slot {
                    slots.resize(slot + 1, (0, false));
                }
                slots[slot] = if let Some(size) = class(requested) {
                    let (now, most) = live.entry(size).or_default();
                    *now += 1;
                    if *now > *most {
                        *most = *now;
                        (bytes, sum.calls) = (bytes + size, sum.calls + 1);
                    }
                    (size, true)
                } else {
                    (bytes, sum.calls) = (bytes + requested.max(1), sum.calls + 1);
                    (requested.max(1), false)
                };
                sum.peak_bytes = sum.peak_bytes.max(bytes);
            }
            Step::Free { slot, .. } => match slots.get(slot as usize).copied() {
                Some((size, true)) => {
                    if let Some((now, _)) = live.get_mut(&size) {
                        *now -= 1;
                    }
                }
                Some((size, false)) => (bytes, sum.calls) = (bytes - size, sum.calls + 1),
                None => {}
            },
            Step::Use { .. } => {}
        }
    }
    sum
}

/// The class of a request among ascending classes.
#[must_use]
pub fn class_of(classes: &[u64], bytes: u64) -> Option<u64> {
    classes.get(classes.partition_point(|class| *class < bytes)).copied()
}

/// The class of a request under powers of two.
#[must_use]
pub fn power_of_two(bytes: u64) -> u64 {
    bytes.max(512).next_power_of_two()
}

/// Learns the classes that reserve the least on these steps, with a penalty of `call_bytes` bytes
/// for each block that is taken from the device, and adds classes for sizes that have not come.
#[must_use]
pub fn learn(steps: &[Step], call_bytes: u64) -> Vec<u64> {
    let sizes = distinct_sizes(steps);
    if sizes.is_empty() {
        return Vec::new();
    }
    let live = live_up_to_each(steps, &sizes);
    let mut best: Option<(u64, Vec<u64>)> = None;
    for classes in best_boundaries(&sizes, &live, call_bytes) {
        let guarded = guard(classes);
        let cost = reserved(steps, |bytes| class_of(&guarded, bytes)).peak_bytes;
        if best.as_ref().is_none_or(|(least, _)| cost < *least) {
            best = Some((cost, guarded));
        }
    }
    best.map(|(_, classes)| classes).unwrap_or_default()
}

/// The sizes of requests, rounded up so that at most [`SIZES_MOST`] are distinct.
fn distinct_sizes(steps: &[Step]) -> Vec<u64> {
    let requested = steps.iter().filter_map(|step| match step {
        Step::Allocate { bytes, .. } => Some((*bytes).max(1)),
        _ => None,
    });
    let mut sizes: Vec<u64> = requested.collect();
    // Coarser for larger sizes: the same share of each is lost.
    for bits in (0..=10).rev() {
        let round = |bytes: u64| {
            let step = 1 << bytes.ilog2().saturating_sub(bits).max(9);
            bytes.next_multiple_of(step)
        };
        for bytes in &mut sizes {
            *bytes = round(*bytes);
        }
        sizes.sort_unstable();
        sizes.dedup();
        if sizes.len() <= SIZES_MOST {
            break;
        }
    }
    sizes
}

/// For each size, the number of live blocks of at most that size at each allocation.
fn live_up_to_each(steps: &[Step], sizes: &[u64]) -> Vec<Vec<u32>> {
    let allocations = steps.iter().filter(|step| matches!(step, Step::Allocate { .. })).count();
    let mut live = vec![Vec::with_capacity(allocations); sizes.len()];
    let mut counts = vec![0_u32; sizes.len()];
    let mut slots: Vec<usize> = Vec::new();
    for step in steps {
        match *step {
            Step::Allocate { slot, bytes, .. } => {
                let (slot, size) = (slot as usize, sizes.partition_point(|size| *size < bytes));
                if slots.len() <= slot {
                    slots.resize(slot + 1, 0);
                }
                slots[slot] = size;
                counts[size] += 1;
                let mut sum = 0;
                for (line, count) in live.iter_mut().zip(&counts) {
                    sum += count;
                    line.push(sum);
                }
            }
            Step::Free { slot, .. } => {
                if let Some(size) = slots.get(slot as usize) {
                    counts[*size] -= 1;
                }
            }
            Step::Use { .. } => {}
        }
    }
    live
}

/// The best boundaries for each number of classes, 1 to [`CLASSES_MOST`].
fn best_boundaries(sizes: &[u64], live: &[Vec<u32>], call_bytes: u64) -> Vec<Vec<u64>> {
    let count = sizes.len();
    // The cost of one class for the sizes behind `from` up to and with `to`.
    let cost = |from: Option<usize>, to: usize| {
        let most = match from {
            None => live[to].iter().copied().max(),
            Some(from) => live[to].iter().zip(&live[from]).map(|(all, less)| all - less).max(),
        };
        u64::from(most.unwrap_or(0)) * (sizes[to] + call_bytes)
    };
    // The row of `from` is one later: row 0 holds the classes that begin with the smallest size.
    let rows = std::iter::once(None).chain((0..count).map(Some));
    let costs: Vec<Vec<u64>> = rows
        .map(|from| {
            let begins = from.map_or(0, |from| from + 1);
            (0..count).map(|to| if to < begins { 0 } else { cost(from, to) }).collect()
        })
        .collect();
    // The least cost of the sizes up to `to` with that many classes, and where the last one begins.
    let mut least: Vec<(u64, usize)> = (0..count).map(|to| (costs[0][to], 0)).collect();
    let mut begins = vec![vec![0; count]];
    let mut found = vec![boundaries(sizes, &begins)];
    for _ in 1..CLASSES_MOST.min(count) {
        let next: Vec<(u64, usize)> = (0..count)
            .map(|to| {
                let with = (0..to).map(|from| (least[from].0 + costs[from + 1][to], from + 1));
                with.chain([(costs[0][to], 0)]).min().unwrap_or((u64::MAX, 0))
            })
            .collect();
        begins.push(next.iter().map(|(_, begin)| *begin).collect());
        least = next;
        found.push(boundaries(sizes, &begins));
    }
    found
}

/// Follows where the classes begin, from the last one back.
fn boundaries(sizes: &[u64], begins: &[Vec<usize>]) -> Vec<u64> {
    let (mut classes, mut end) = (Vec::new(), sizes.len());
    for begin in begins.iter().rev() {
        let Some(last) = end.checked_sub(1) else { break };
        classes.push(sizes[last]);
        end = begin[last];
    }
    classes.reverse();
    classes
}

/// Adds classes where two are far apart, and beyond the largest.
fn guard(mut classes: Vec<u64>) -> Vec<u64> {
    let largest = classes.last().copied().unwrap_or(0).max(SMALL);
    let last = largest.saturating_mul(BEYOND).next_power_of_two();
    let mut lower = classes.iter().copied().find(|class| *class >= SMALL).map_or(SMALL, |first| {
        // Classes below the first large one, down to what is small.
        let mut lower = first;
        while lower > RATIO_MOST * SMALL {
            lower = lower.div_ceil(RATIO_MOST).next_multiple_of(512);
            classes.push(lower);
        }
        first
    });
    let learned: Vec<u64> = classes.iter().copied().filter(|class| *class > lower).collect();
    for class in learned.into_iter().chain([last]) {
        while class > lower.saturating_mul(RATIO_MOST) {
            lower *= RATIO_MOST;
            classes.push(lower);
        }
        lower = class;
    }
    classes.push(last);
    classes.sort_unstable();
    classes.dedup();
    classes
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    fn steps(script: &[(u32, u64)]) -> Vec<Step> {
        let step = |(slot, bytes): &(u32, u64)| match bytes {
            0 => Step::Free { slot: *slot, lane: 0 },
            bytes => Step::Allocate { slot: *slot, bytes: *bytes, lane: 0 },
        };
        script.iter().map(step).collect()
    }

    #[test]
    fn a_class_reserves_the_most_blocks_that_were_live_at_once() {
        let script = steps(&[(0, 100), (1, 200), (0, 0), (2, 90), (1, 0), (3, 300)]);
        let of = |classes: &[u64]| reserved(&script, |bytes| class_of(classes, bytes));
        assert_eq!(of(&[100, 300]), ReservedByClasses { peak_bytes: 400, calls: 2 });
        assert_eq!(of(&[300]), ReservedByClasses { peak_bytes: 600, calls: 2 });
        // 200 and 300 bypass: they are there only while they are live.
        assert_eq!(of(&[100]), ReservedByClasses { peak_bytes: 400, calls: 4 });
    }

    /// Every set of boundaries, for as many classes.
    fn brute_force(script: &[Step], sizes: &[u64], classes: usize) -> u64 {
        let last = sizes.len() - 1;
        let sets = (0..1_u32 << last).filter(|set| set.count_ones() as usize == classes - 1);
        let cost = |set: u32| {
            let kept = |at: &usize| *at == last || set >> at & 1 == 1;
            let chosen: Vec<u64> = (0..=last).filter(kept).map(|at| sizes[at]).collect();
            reserved(script, |bytes| class_of(&chosen, bytes)).peak_bytes
        };
        sets.map(cost).min().unwrap()
    }

    #[test]
    fn the_programme_finds_the_least_for_each_number_of_classes() {
        for seed in 0..40 {
            let mut random = SmallRng::seed_from_u64(seed);
            let mut live = [false; 8];
            let script: Vec<(u32, u64)> = (0..60)
                .map(|_| {
                    let slot = random.random_range(0..8_usize);
                    live[slot] = !live[slot];
                    let size = 512 * random.random_range(1..=7_u64);
                    (u32::try_from(slot).unwrap(), if live[slot] { size } else { 0 })
                })
                .collect();
            let script = steps(&script);
            let sizes = distinct_sizes(&script);
            let live = live_up_to_each(&script, &sizes);
            let found = best_boundaries(&sizes, &live, 0);
            for (classes, chosen) in (1..=sizes.len()).zip(found) {
                let cost = reserved(&script, |bytes| class_of(&chosen, bytes)).peak_bytes;
                assert!(chosen.len() <= classes, "seed {seed}");
                let least = (1..=classes).map(|k| brute_force(&script, &sizes, k)).min();
                assert_eq!(Some(cost), least, "seed {seed}, {classes} classes");
            }
        }
    }

    #[test]
    fn no_class_is_far_above_the_next_smaller_one() {
        for classes in [vec![512], vec![512, 1 << 30], vec![4096, 40 << 20], vec![48 << 10]] {
            let guarded = guard(classes.clone());
            assert!(guarded.is_sorted() && classes.iter().all(|class| guarded.contains(class)));
            let far =
                guarded.windows(2).any(|pair| pair[1] > RATIO_MOST * pair[0].max(SMALL) + 512);
            assert!(!far, "{guarded:?}");
            assert!(guarded.last() >= Some(&(RATIO_MOST * classes[classes.len() - 1])));
        }
    }
}
