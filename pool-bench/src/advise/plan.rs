//! An offline plan: where each allocation of a trace would go if all were known beforehand.
//!
//! Greedy by size (Pisarchyk and Lee, *Efficient Memory Management for Deep Neural Net Inference*,
//! 2020): the largest allocation first, each in the lowest gap between those that are placed and
//! live at the same time. Allocations below a ten-thousandth of the live peak are not placed: their
//! own live peak is added.

use crate::trace::{Step, Trace};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

/// An allocation: its size, and the steps from its first to its end.
#[derive(Clone, Copy, Debug)]
struct Life {
    bytes: u64,
    start: usize,
    end: usize,
}

/// The addresses that placed allocations take, found by the time of their lives.
///
/// A segment tree over the steps has the number of each life in `O(log steps)` nodes, so that those
/// which are live at a step are on the way from its leaf to the root.
struct Placed {
    addresses: Vec<Range<u64>>,
    leaves: usize,
    nodes: Vec<Vec<u32>>,
    by_start: BTreeMap<usize, u32>,
}

impl Placed {
    fn new(steps: usize) -> Self {
        let (leaves, by_start) = (steps + 1, BTreeMap::new());
        Self { addresses: Vec::new(), leaves, nodes: vec![Vec::new(); 2 * leaves], by_start }
    }

    /// Returns the addresses of the lives that overlap with this one.
    fn beside<'p>(&'p self, life: &Life) -> impl Iterator<Item = Range<u64>> + 'p {
        let at_leaf = life.start + self.leaves;
        let way = std::iter::successors(Some(at_leaf), |node| Some(node / 2).filter(|up| *up > 0));
        let at_start = way.flat_map(|node| &self.nodes[node]);
        let later = self.by_start.range(life.start + 1..life.end).map(|(_, number)| number);
        at_start.chain(later).map(|number| self.addresses[*number as usize].clone())
    }

    fn add(&mut self, life: &Life, addresses: Range<u64>) {
        let number = u32::try_from(self.addresses.len()).unwrap_or(u32::MAX);
        let (mut from, mut to) = (life.start + self.leaves, life.end + self.leaves);
        while from < to {
            if from % 2 == 1 {
                self.nodes[from].push(number);
                from += 1;
            }
            if to % 2 == 1 {
                to -= 1;
                self.nodes[to].push(number);
            }
            (from, to) = (from / 2, to / 2);
        }
        self.by_start.insert(life.start, number);
        self.addresses.push(addresses);
    }
}

/// Returns the bytes that the plan needs. It takes `O(n log n)` steps, and for each allocation the
/// sort of those that are live at the same time.
#[must_use]
pub fn greedy_by_size(trace: &Trace) -> u64 {
    let least = trace.live_peak_bytes / 10_000;
    let (mut lives, small_peak) = lives(trace, least);
    lives.sort_by_key(|life| (Reverse(life.bytes), life.start));
    let (mut placed, mut peak) = (Placed::new(trace.steps.len()), 0);
    let mut beside: Vec<Range<u64>> = Vec::new();
    for life in lives {
        beside.clear();
        beside.extend(placed.beside(&life));
        beside.sort_unstable_by_key(|taken| taken.start);
        let mut at = 0;
        for taken in &beside {
            if taken.start >= at + life.bytes {
                break;
            }
            at = at.max(taken.end);
        }
        placed.add(&life, at..at + life.bytes);
        peak = peak.max(at + life.bytes);
    }
    peak + small_peak
}

/// The allocations of at least `least` bytes, and the live peak of the others.
fn lives(trace: &Trace, least: u64) -> (Vec<Life>, u64) {
    let mut slots: Vec<Option<(usize, u64)>> = vec![None; trace.slots];
    let (mut lives, mut small, mut peak) = (Vec::new(), 0_u64, 0);
    let mut end = |life: Option<(usize, u64)>, at: usize, small: &mut u64| match life {
        Some((start, bytes)) if bytes >= least => {
            lives.push(Life { bytes, start, end: at });
        }
        Some((_, bytes)) => *small -= bytes,
        None => {}
    };
    for (at, step) in trace.steps.iter().enumerate() {
        match *step {
            Step::Allocate { slot, bytes, .. } => {
                slots[slot as usize] = Some((at, bytes));
                if bytes < least {
                    small += bytes;
                    peak = peak.max(small);
                }
            }
            Step::Free { slot, .. } => end(slots[slot as usize].take(), at, &mut small),
            Step::Use { .. } => {}
        }
    }
    for life in slots {
        end(life, trace.steps.len(), &mut small);
    }
    (lives, peak)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_do_not_live_together_share_their_place() {
        let allocate = |slot, bytes| Step::Allocate { slot, bytes, lane: 0 };
        let free = |slot| Step::Free { slot, lane: 0 };
        let steps = vec![allocate(0, 30), allocate(1, 20), free(0), allocate(0, 25), free(1)];
        let trace = Trace { steps, slots: 2, live_peak_bytes: 50, ..Trace::default() };
        assert_eq!(greedy_by_size(&trace), 50);
    }

    /// The plan by the definition: each allocation beside all that are placed.
    fn by_definition(trace: &Trace) -> u64 {
        let (mut lives, small_peak) = lives(trace, trace.live_peak_bytes / 10_000);
        lives.sort_by_key(|life| (Reverse(life.bytes), life.start));
        let mut placed: Vec<(Life, u64)> = Vec::new();
        for life in lives {
            let beside =
                |(other, _): &&(Life, u64)| other.start < life.end && life.start < other.end;
            let mut taken: Vec<_> =
                placed.iter().filter(beside).map(|(other, at)| (*at, at + other.bytes)).collect();
            taken.sort_unstable();
            let fits =
                |at: u64| taken.iter().all(|(from, to)| at + life.bytes <= *from || *to <= at);
            let ends = std::iter::once(0).chain(taken.iter().map(|(_, to)| *to));
            let at = ends.filter(|at| fits(*at)).min().unwrap();
            placed.push((life, at));
        }
        placed.iter().map(|(life, at)| at + life.bytes).max().unwrap_or(0) + small_peak
    }

    #[test]
    fn the_plan_is_that_of_its_definition() {
        for name in ["bert_embed", "resnet18_train"] {
            let file = format!("{}/../traces/{name}.ptrace.csv.zst", env!("CARGO_MANIFEST_DIR"));
            let mut trace = Trace::of(&crate::trace::read_log(file.as_ref()).unwrap()).unwrap();
            trace.steps.truncate(6000);
            assert_eq!(greedy_by_size(&trace), by_definition(&trace), "{name}");
        }
    }

    #[test]
    fn the_lives_beside_one_are_those_that_overlap_with_it() {
        let mut random = 7_u64;
        let mut below = |below: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) as usize % below
        };
        let (mut placed, mut lives) = (Placed::new(400), Vec::new());
        for start in (0..400).map(|turn| turn * 149 % 400) {
            let life = Life { bytes: 1, start, end: start + 1 + below(400 - start) };
            let overlaps = |other: &&(u64, Life)| {
                let (_, other) = other;
                other.start < life.end && life.start < other.end
            };
            let mut expected: Vec<u64> = lives.iter().filter(overlaps).map(|(at, _)| *at).collect();
            let mut found: Vec<u64> = placed.beside(&life).map(|taken| taken.start).collect();
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found, expected, "{life:?}");
            if below(3) > 0 {
                placed.add(&life, start as u64..start as u64 + 1);
                lives.push((start as u64, life));
            }
        }
        assert!(lives.len() > 200);
    }
}
