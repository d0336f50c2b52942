//! An offline plan: where each allocation of a trace would go if all were known beforehand.
//!
//! Greedy by size (Pisarchyk and Lee, *Efficient Memory Management for Deep Neural Net Inference*,
//! 2020): the largest allocation first, each in the lowest gap between those that are placed and
//! live at the same time. Allocations below a ten-thousandth of the live peak are not placed: their
//! own live peak is added.

use crate::trace::{Step, Trace};

/// An allocation: its size, and the steps from its first to its end.
#[derive(Clone, Copy, Debug)]
struct Life {
    bytes: u64,
    start: usize,
    end: usize,
    at: u64,
}

/// Returns the bytes that the plan needs.
#[must_use]
pub fn greedy_by_size(trace: &Trace) -> u64 {
    let least = trace.live_peak_bytes / 10_000;
    let (mut lives, small_peak) = lives(trace, least);
    lives.sort_by_key(|life| (std::cmp::Reverse(life.bytes), life.start));
    let (mut placed, mut peak): (Vec<Life>, u64) = (Vec::with_capacity(lives.len()), 0);
    let mut beside: Vec<(u64, u64)> = Vec::new();
    for life in lives {
        beside.clear();
        let overlaps =
            placed.iter().filter(|other| other.start < life.end && life.start < other.end);
        beside.extend(overlaps.map(|other| (other.at, other.at + other.bytes)));
        beside.sort_unstable();
        let mut at = 0;
        for (start, end) in &beside {
            if *start >= at + life.bytes {
                break;
            }
            at = at.max(*end);
        }
        placed.push(Life { at, ..life });
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
            lives.push(Life { bytes, start, end: at, at: 0 });
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
}
