//! Who used a free range last.

use crate::clock::StreamClock;

/// Who used a free range last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    Nobody,
    One(u64),
    Several,
    /// Nothing is there: no memory.
    Hole,
}

/// Who was there last.
pub(super) fn lane_of<C: StreamClock>(clock: &C, marks: &[C::Mark]) -> Lane {
    match marks {
        [] => Lane::Nobody,
        [one] => Lane::One(clock.lane(*one)),
        [first, rest @ ..] if rest.iter().all(|mark| clock.same_stream(*first, *mark)) => {
            Lane::One(clock.lane(*first))
        }
        _ => Lane::Several,
    }
}
