//! The lanes of a file: numbers of streams. A lane is given to another stream when the one that had
//! it has no live buffer and was not used for long.

use super::live::Live;
use crate::ptrace::LANES_MOST;
use std::collections::HashMap;

/// Streams that keep their lanes however long they are not used. A program that makes a stream or a
/// thread for each piece of work has any number of streams, and few at once.
const MAX_IDLE_LANES: usize = 1024;
/// The lane of all streams that found no other.
pub(super) const SHARED_LANE: u32 = LANES_MOST - 1;

/// The streams that have a lane each.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    of_stream: HashMap<u64, Lane>,
    /// Lanes whose streams were forgotten.
    spare: Vec<u32>,
    /// Operations so far, and how many of them at the last search for streams to forget.
    operations: u64,
    searched_at: u64,
}

#[derive(Clone, Copy, Debug)]
struct Lane {
    number: u32,
    used_at: u64,
}

impl Lanes {
    /// Returns the lane of a stream for one operation; `None` if all but [`SHARED_LANE`] belong to
    /// streams with live buffers.
    pub(super) fn lane(&mut self, stream: u64, live: &Live) -> Option<u32> {
        self.operations += 1;
        let used_at = self.operations;
        if let Some(lane) = self.of_stream.get_mut(&stream) {
            lane.used_at = used_at;
            return Some(lane.number);
        }
        // A search looks at all lanes and live buffers, so it is made once in half as many operations.
        let cost = (self.of_stream.len() + live.len()) as u64;
        let may_search = self.operations - self.searched_at >= cost / 2;
        if self.spare.is_empty() && self.of_stream.len() >= MAX_IDLE_LANES && may_search {
            self.forget_unused(live);
        }
        let next = || u32::try_from(self.of_stream.len()).ok().filter(|next| *next < SHARED_LANE);
        let number = self.spare.pop().or_else(next)?;
        self.of_stream.insert(stream, Lane { number, used_at });
        Some(number)
    }

    /// Takes the lanes of those streams without a live buffer that were used before half of them.
    fn forget_unused(&mut self, live: &Live) {
        self.searched_at = self.operations;
        let streams = live.streams();
        let unused = self.of_stream.iter().filter(|(stream, _)| !streams.contains(stream));
        let mut unused: Vec<(u64, u64)> =
            unused.map(|(stream, lane)| (lane.used_at, *stream)).collect();
        unused.sort_unstable();
        unused.truncate(unused.len().div_ceil(2));
        for (_, stream) in unused {
            self.spare.extend(self.of_stream.remove(&stream).map(|lane| lane.number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Event;
    use super::*;
    use crate::operation::Kind;
    use std::collections::HashSet;

    /// An operation on a buffer of a stream, both of the same number.
    fn follow(live: &mut Live, kind: Kind, stream: u64) {
        let (address, bytes, ticks, tag, stack) = (stream, 64, 0, 0, 0);
        live.follow(Event { kind, address, bytes, stream, ticks, tag, stack });
    }

    #[test]
    fn streams_that_end_leave_their_lanes_to_others() {
        let (mut lanes, mut live) = (Lanes::default(), Live::default());
        follow(&mut live, Kind::Allocate, 0);
        let kept = lanes.lane(0, &live);
        for stream in 1..100_000 {
            follow(&mut live, Kind::Allocate, stream);
            let lane = lanes.lane(stream, &live);
            assert_ne!(lane, kept, "a stream with a live buffer keeps its lane");
            assert!(lane.is_some_and(|lane| lane < 1100), "{lane:?} of stream {stream}");
            follow(&mut live, Kind::Free, stream);
            assert_eq!(lanes.lane(stream, &live), lane);
        }
        assert_eq!(lanes.lane(0, &live), kept);
    }

    #[test]
    fn more_streams_with_live_buffers_than_lanes_find_none() {
        let (mut lanes, mut live) = (Lanes::default(), Live::default());
        let mut seen = HashSet::new();
        let mut without = 0;
        for stream in 0..70_000 {
            follow(&mut live, Kind::Allocate, stream);
            match lanes.lane(stream, &live) {
                Some(lane) => assert!(lane < SHARED_LANE && seen.insert(lane), "{lane}"),
                None => without += 1,
            }
        }
        assert_eq!((seen.len(), without), (65_535, 70_000 - 65_535));
    }
}
