//! Random operations on ranges beside a plain list of live blocks.

use crate::port::{DeviceError, Order, StreamClock};
use crate::ranges::arena::ArenaConfig;
use crate::ranges::list::{Group, UsedBy};
use crate::ranges::node::{NodeState, RangeNode};
use crate::ranges::place;
use crate::ranges::returnable;
use crate::ranges::segment::Backing;
use crate::ranges::{RangeRequest, Ranges};
use crate::size::{KIB, MIB};
use crate::stream::{Pending, Requester, StealPolicy};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::ops::Range;

/// Streams that wait for each other never: work of a stream is ordered after its own only. They
/// have a number each, or all have `ONE`, as the scopes of wgpu do.
#[derive(Debug)]
struct Streams<const ONE: bool>;

type Apart = Streams<false>;
#[expect(non_upper_case_globals, reason = "the value of a type without fields")]
const Apart: Apart = Streams;

impl<const ONE: bool> StreamClock for Streams<ONE> {
    type Stream = u64;
    /// A stream and a time.
    type Mark = (u64, u64);

    fn default_stream(&self) -> &u64 {
        &0
    }
    fn owns(&self, _: &u64) -> bool {
        true
    }
    fn mark(&self, on: &u64) -> (u64, u64) {
        (*on, 0)
    }
    fn latest(&self, mark: (u64, u64)) -> (u64, u64) {
        mark
    }
    fn same_stream(&self, a: (u64, u64), b: (u64, u64)) -> bool {
        a.0 == b.0
    }
    fn later(&self, a: (u64, u64), b: (u64, u64)) -> (u64, u64) {
        a.max(b)
    }
    fn is_later(&self, a: (u64, u64), b: (u64, u64)) -> bool {
        a.0 == b.0 && a.1 >= b.1
    }
    fn stream_id(&self, mark: (u64, u64)) -> u64 {
        if ONE { 0 } else { mark.0 }
    }
    fn is_ordered(&self, on: &u64, after: (u64, u64)) -> bool {
        *on == after.0
    }
    fn order(&self, _: &u64, _: &[(u64, u64)]) -> Result<Order, DeviceError> {
        Ok(Order::NotYet)
    }
    fn is_seen_done(&self, _: (u64, u64)) -> bool {
        false
    }
    fn is_submitted(&self, _: (u64, u64)) -> bool {
        !ONE
    }
    fn is_done(&self, _: (u64, u64)) -> Result<bool, DeviceError> {
        Ok(false)
    }
    fn synchronize(&self, _: (u64, u64)) -> Result<(), DeviceError> {
        Ok(())
    }
}

impl<C: StreamClock> Ranges<C, u8> {
    /// Takes a range and counts it, as a pool does.
    fn lend(&mut self, request: &RangeRequest<u8>, requester: &Requester<'_, C>) -> Option<u32> {
        let served = self.take(request, requester)?;
        self.count_out(served.bytes);
        Some(served.id)
    }

    /// As `lend`, by a way that is not plain.
    fn lend_not_plain(
        &mut self,
        request: &RangeRequest<u8>,
        requester: &Requester<'_, C>,
    ) -> Option<u32> {
        let id = self.take_with_marks(request, requester)?;
        self.count_out(self.nodes[id].bytes);
        Some(id)
    }

    /// All ranges in order; marks and age of the free ones.
    fn all(&self) -> Vec<String> {
        let ids = self.segments.iter().flat_map(|(_, segment)| self.nodes.walk(segment.first));
        let said = ids.map(|id| {
            let RangeNode { state, dirty, marks, freed_at, .. } = &self.nodes[id];
            let free = matches!(state, NodeState::Free(_)).then_some((marks.marks(), freed_at));
            format!("{id}: {:?}, {state:?}, {dirty}, {free:?}", self.nodes[id].range())
        });
        let sums = (self.cached, self.cached_peak, self.used, self.used_peak, self.split);
        said.chain([format!("{sums:?}")]).collect()
    }
}

const ONE: Group<u8> = Group { kind: 0, small: false };

fn request(bytes: u64, stream: u64) -> RangeRequest<u8> {
    RangeRequest { bytes: bytes.next_multiple_of(512), group: ONE, stream }
}

fn requester(on: &u64) -> Requester<'_, Apart> {
    Requester {
        clock: &Apart,
        on,
        steal: StealPolicy::Never,
        cpu_touches: false,
        is_untold: false,
        host_waits: false,
    }
}

/// A live block: its range and its stream.
struct Block {
    id: u32,
    stream: u64,
}

/// Runs `steps` random allocations and frees; grows by segments of 4 MiB. Beside the plain ways the same
/// is done by those that are not plain.
fn run(config: &ArenaConfig, seed: u64, steps: u64, streams: u64) {
    let new = || Ranges::<Apart, u8>::new(config.clone(), Backing::Block);
    let (mut ranges, mut twin, mut random) = (new(), new(), StdRng::seed_from_u64(seed));
    let (mut live, mut reserved): (Vec<Block>, u64) = (Vec::new(), 0);
    for time in 0..steps {
        if random.random_range(0..2) == 0 || live.is_empty() {
            let stream = random.random_range(0..streams);
            let size = [64, 5000, 60_000, 600_000][random.random_range(0..4)];
            let request = request(1 + random.random_range(0..size), stream);
            let id = ranges.lend(&request, &requester(&stream)).unwrap_or_else(|| {
                let bytes = request.bytes.next_multiple_of(4 * MIB);
                reserved += bytes;
                for ranges in [&mut ranges, &mut twin] {
                    let whole = ranges.add_segment(ONE, bytes);
                    ranges.release(&Apart, whole, Pending::Nothing, 0);
                }
                ranges.lend(&request, &requester(&stream)).expect("a fresh segment has room")
            });
            assert_eq!(twin.lend_not_plain(&request, &requester(&stream)), Some(id));
            let node = &twin.nodes[id];
            assert_eq!(node.state, NodeState::Live);
            assert!(node.bytes >= request.bytes, "{} for {}", node.bytes, request.bytes);
            assert!(node.marks.marks().iter().all(|mark| mark.0 == stream), "another stream's");
            live.push(Block { id, stream });
        } else {
            let Block { id, stream } = live.swap_remove(random.random_range(0..live.len()));
            let other = random.random_range(0..streams);
            let marks = match random.random_range(0..8) {
                0 if other != stream => Pending::of(&[(stream, time), (other, time)]),
                1 => Pending::Nothing,
                _ => Pending::One((stream, time)),
            };
            let when = (random.random_range(0..4) == 0, time);
            twin.free_not_plain(&Apart, id, marks.clone(), when);
            ranges.free(&Apart, id, marks, when);
        }
        if time % 64 == 0 {
            let bytes = ranges.check(&Apart);
            assert_eq!(bytes.live + bytes.free, reserved);
            let held: u64 = live.iter().map(|block| ranges.nodes[block.id].bytes).sum();
            assert_eq!(held, bytes.live);
            assert_eq!(ranges.all(), twin.all(), "after {time} steps");
        }
    }
    for Block { id, stream } in live {
        ranges.free(&Apart, id, Pending::One((stream, steps)), (false, 0));
    }
    let bytes = ranges.check(&Apart);
    assert_eq!((bytes.live, bytes.free), (0, reserved));
    assert!(ranges.segments.iter().all(|(_, segment)| segment.used == 0));
    if streams == 1 {
        // All neighbours are one range again.
        let first = |(_, segment): (u32, &super::segment::Segment<u8>)| segment.first;
        assert!(ranges.segments.iter().map(first).all(|id| ranges.nodes.walk(id).count() == 1));
    }
}

/// Ranges over pages: what is committed and given back is counted here, page by page.
struct Paged {
    ranges: Ranges<Apart, u8>,
    committed: u64,
}

const PAGE: u64 = 64 * KIB;

impl Paged {
    fn new() -> Self {
        let mut ranges = Ranges::new(ArenaConfig::pages(PAGE, 0.05), Backing::Pages(PAGE));
        let whole = ranges.add_segment(ONE, 4096 * PAGE);
        place::put_hole(&mut ranges, &Apart, whole);
        Self { ranges, committed: 0 }
    }

    fn allocate(&mut self, request: &RangeRequest<u8>, ahead: u64) -> u32 {
        let requester = requester(&request.stream);
        if let Some(id) = self.ranges.lend(request, &requester) {
            return id;
        }
        let place =
            place::place(&self.ranges, request, &requester).expect("the reservation is large");
        let pieces = place::take_out(&mut self.ranges, &place, ahead);
        let mut fresh = 0;
        for id in &pieces {
            let node = &self.ranges.nodes[*id];
            assert!(node.marks.marks().iter().all(|mark| mark.0 == request.stream));
            if node.state == (NodeState::Out { hole: true }) {
                assert_eq!((node.offset % PAGE, node.bytes % PAGE), (0, 0), "a hole of pages");
                fresh += node.bytes;
            }
        }
        assert!((place.missing..=place.missing + ahead).contains(&fresh), "{fresh}");
        self.committed += fresh;
        let rest = Pending::One((request.stream, 0));
        let id = place::assemble(&mut self.ranges, &Apart, &pieces, &place, (&rest, 0)).unwrap();
        assert_eq!(self.ranges.nodes[id].range(), place.block);
        self.ranges.count_out(self.ranges.nodes[id].bytes);
        id
    }

    /// Allocates pages on stream 1 at the end of what is used.
    fn allocate_pages(&mut self, pages: u64) -> u32 {
        self.allocate(&request(pages * PAGE, 1), 0)
    }

    /// Gives pages of a free range back, by their numbers.
    fn make_hole(&mut self, pages: Range<u64>) {
        let part = pages.start * PAGE..pages.end * PAGE;
        let first = self.ranges.segments.get(0).unwrap().first;
        let holds = |id: &u32| self.ranges.nodes[*id].range().contains(&part.start);
        let id = self.ranges.nodes.walk(first).find(holds).unwrap();
        let piece = self.ranges.carve(id, &part).unwrap();
        place::put_hole(&mut self.ranges, &Apart, piece);
        self.committed -= part.end - part.start;
    }

    fn give_back(&mut self, bytes: u64) {
        for found in returnable::pick(&mut self.ranges, bytes) {
            let piece = self.ranges.carve(found.id, &found.part).unwrap();
            place::put_hole(&mut self.ranges, &Apart, piece);
            self.committed -= found.part.end - found.part.start;
        }
    }
}

fn run_paged(seed: u64, steps: u64, streams: u64) {
    let (mut paged, mut random) = (Paged::new(), StdRng::seed_from_u64(seed));
    let mut live: Vec<Block> = Vec::new();
    for time in 0..steps {
        match random.random_range(0..20) {
            0 => paged.give_back(random.random_range(0..10 * PAGE)),
            1..11 => {
                let stream = random.random_range(0..streams);
                let size = [64, 5000, 200_000][random.random_range(0..3)];
                let request = request(1 + random.random_range(0..size), stream);
                let id = paged.allocate(&request, random.random_range(0..3) * PAGE);
                live.push(Block { id, stream });
            }
            _ if live.is_empty() => {}
            _ => {
                let at = random.random_range(0..live.len());
                let Block { id, stream } = live.swap_remove(at);
                paged.ranges.free(&Apart, id, Pending::One((stream, time)), (false, 0));
            }
        }
        if time % 64 == 0 {
            let bytes = paged.ranges.check(&Apart);
            assert_eq!(bytes.live + bytes.free, paged.committed);
        }
    }
    for Block { id, stream } in live {
        paged.ranges.free(&Apart, id, Pending::One((stream, steps)), (false, 0));
    }
    let before = paged.ranges.check(&Apart);
    while !returnable::pick(&mut paged.ranges, 1).is_empty() {
        paged.give_back(1);
    }
    let after = paged.ranges.check(&Apart);
    assert_eq!(after.free, paged.committed);
    // What several streams used is not one range, so pages between them may stay.
    assert!(after.free < before.free / 2 || before.free < 4 * PAGE, "{before:?} {after:?}");
    assert!(streams > 1 || after.free == 0, "{after:?}");
}

#[test]
fn random_placements_keep_the_invariants() {
    for seed in 0..if cfg!(miri) { 1 } else { 20 } {
        println!("seed {seed}");
        for streams in [1, 3] {
            run_paged(seed, STEPS / 2, streams);
        }
    }
}

const STEPS: u64 = if cfg!(miri) { 300 } else { 20_000 };

#[test]
fn random_operations_keep_the_invariants() {
    for seed in 0..if cfg!(miri) { 1 } else { 20 } {
        println!("seed {seed}");
        for streams in [1, 2, 7] {
            run(&ArenaConfig::segments(4 * MIB), seed, STEPS, streams);
            run(&ArenaConfig::torch(), seed, STEPS / 4, streams);
        }
    }
}

/// Ranges of one free segment of this many bytes.
fn one_segment(config: ArenaConfig, bytes: u64) -> Ranges<Apart, u8> {
    let mut ranges = Ranges::new(config, Backing::Block);
    let whole = ranges.add_segment(ONE, bytes);
    ranges.release(&Apart, whole, Pending::Nothing, 0);
    ranges
}

#[test]
fn a_block_lies_over_free_pages_between_holes() {
    let mut paged = Paged::new();
    let block = paged.allocate_pages(12);
    paged.ranges.free(&Apart, block, Pending::One((1, 1)), (true, 0));
    paged.make_hole(0..10);
    let place = place::place(&paged.ranges, &request(3 * PAGE, 1), &requester(&1)).unwrap();
    assert_eq!(place.missing, PAGE);
    paged.ranges.check(&Apart);
}

#[test]
fn of_placements_that_lack_the_same_the_one_with_fewer_calls_is_taken() {
    let mut paged = Paged::new();
    let [first, _live, second] = [4, 1, 3].map(|pages| paged.allocate_pages(pages));
    for block in [first, second] {
        paged.ranges.free(&Apart, block, Pending::One((1, 1)), (true, 0));
    }
    // Holes and free pages: `h ff h L h ff hhh..`. The first place for 4 pages lacks two holes.
    for pages in [0..1, 3..4, 5..6] {
        paged.make_hole(pages);
    }
    let place = place::place(&paged.ranges, &request(4 * PAGE, 1), &requester(&1)).unwrap();
    assert_eq!((place.missing, place.block), (2 * PAGE, 6 * PAGE..10 * PAGE));
}

#[test]
fn of_equal_ranges_the_one_that_is_split_changes_its_place() {
    let mut ranges = one_segment(ArenaConfig::torch(), 2 * MIB);
    let ids = [(); 6].map(|()| ranges.lend(&request(8 * KIB, 1), &requester(&1)).unwrap());
    for id in [ids[0], ids[2], ids[4]] {
        ranges.free(&Apart, id, Pending::One((1, 1)), (false, 0));
    }
    let part = ranges.take_part(ids[4], 512).unwrap();
    ranges.count_out(512);
    assert_eq!(ranges.nodes[part].offset, 4 * 8 * KIB);
    ranges.check(&Apart);
}

#[test]
fn parts_of_a_range_that_several_streams_used_become_one_again() {
    let mut ranges = one_segment(ArenaConfig::grow(), MIB);
    let whole = ranges.lend(&request(MIB, 1), &requester(&1)).unwrap();
    let marks = || Pending::of(&[(1, 5), (2, 6)]);
    ranges.free(&Apart, whole, marks(), (false, 0));
    let part = ranges.take_part(whole, 64 * KIB).unwrap();
    ranges.count_out(64 * KIB);
    ranges.free(&Apart, part, marks(), (false, 0));
    assert_eq!(ranges.nodes.walk(part).count(), 2);
    ranges.rejoin(&Apart, part);
    assert_eq!(ranges.nodes.walk(part).count(), 1);
    ranges.check(&Apart);
}

#[test]
fn a_stream_owns_its_ranges_and_those_of_no_stream() {
    assert!(UsedBy::Stream(1).is_own(1) && UsedBy::NoStream.is_own(1));
    let others = [UsedBy::Stream(2), UsedBy::Several, UsedBy::Hole];
    assert!(!others.iter().any(|used_by| used_by.is_own(1)));
}

#[test]
fn of_several_streams_ranges_the_smallest_serves() {
    for sizes in [[32, 64], [64, 32]] {
        let mut ranges = one_segment(ArenaConfig::grow(), MIB);
        let ids = [(1, sizes[0]), (9, 4), (2, sizes[1]), (9, 4)].map(|(stream, kib)| {
            ranges.lend(&request(kib * KIB, stream), &requester(&stream)).unwrap()
        });
        ranges.free(&Apart, ids[0], Pending::One((1, 1)), (false, 0));
        ranges.free(&Apart, ids[2], Pending::One((2, 1)), (false, 0));
        let used = |node: &RangeNode<(u64, u64)>| !node.marks.marks().is_empty();
        let found = ranges.find(&request(4 * KIB, 3), |_| true, used).unwrap();
        assert_eq!(ranges.nodes[found].bytes, 32 * KIB, "{sizes:?}");
    }
}

#[test]
fn a_large_free_range_does_not_become_young_with_a_small_one() {
    let mut ranges = one_segment(ArenaConfig::torch(), 20 * MIB);
    let ids: Vec<u32> =
        (0..3).map(|_| ranges.lend(&request(4 * KIB, 1), &requester(&1)).unwrap()).collect();
    ranges.free(&Apart, ids[2], Pending::One((1, 1)), (false, 0)); // joins the rest of the segment
    let rest = ranges.nodes.walk(ranges.segments.get(0).unwrap().first).last().unwrap();
    let age = ranges.nodes[rest].freed_at;
    for turn in 1..100 {
        let id = ranges.lend(&request(4 * KIB, 1), &requester(&1)).unwrap();
        ranges.free(&Apart, id, Pending::One((1, 2)), (false, turn));
    }
    let rest = ranges.nodes.walk(ranges.segments.get(0).unwrap().first).last().unwrap();
    assert_eq!(ranges.nodes[rest].freed_at, age);
    ranges.free(&Apart, ids[0], Pending::One((1, 2)), (false, 0));
    ranges.free(&Apart, ids[1], Pending::One((1, 2)), (false, 0)); // between that one and the rest
    let all: Vec<u32> = ranges.nodes.walk(ranges.segments.get(0).unwrap().first).collect();
    assert_eq!((&all[..], ranges.nodes[rest].freed_at), (&[rest][..], age));
}

#[test]
fn a_part_of_a_range_keeps_the_marks_of_the_whole() {
    let mut ranges = one_segment(ArenaConfig::torch(), 2 * MIB);
    let whole = ranges.lend(&request(2 * MIB, 1), &requester(&1)).unwrap();
    ranges.free(&Apart, whole, Pending::of(&[(1, 7), (2, 9)]), (false, 0));
    assert_eq!(ranges.lend(&request(512, 1), &requester(&1)), None, "two streams used it");
    let low = ranges.take_part(whole, 512).unwrap();
    assert_eq!(ranges.nodes[low].marks.marks(), [(1, 7), (2, 9)]);
    assert_eq!(ranges.nodes[ranges.nodes[low].after].marks.marks(), [(1, 7), (2, 9)]);
}

#[test]
fn old_contents_stay_noted_through_splits_and_coalescing() {
    let mut ranges = one_segment(ArenaConfig::torch(), 2 * MIB);
    let ids: Vec<u32> =
        (0..2).map(|_| ranges.lend(&request(4 * KIB, 1), &requester(&1)).unwrap()).collect();
    ranges.free(&Apart, ids[1], Pending::One((1, 1)), (false, 0));
    ranges.free(&Apart, ids[0], Pending::One((1, 2)), (true, 0));
    for offset in [0, 512] {
        let part = ranges.lend(&request(512, 1), &requester(&1)).unwrap();
        assert_eq!((ranges.nodes[part].offset, ranges.nodes[part].dirty), (offset, true));
    }
}

#[test]
fn a_segment_that_several_streams_used_becomes_one_range_behind_all() {
    let mut ranges = one_segment(ArenaConfig::torch(), 2 * MIB);
    let (a, b) = (request(512, 1), request(512, 2));
    let first = ranges.lend(&a, &requester(&1)).unwrap();
    let second = ranges.lend(&b, &requester(&2)).unwrap();
    ranges.free(&Apart, first, Pending::One((1, 5)), (false, 0));
    returnable::coalesce_free_segments(&mut ranges, &Apart, &mut 0, 1, 9);
    assert!(returnable::aged(&ranges, 0, u32::MAX).0.is_empty(), "a block of it is live");
    ranges.free(&Apart, second, Pending::One((2, 6)), (false, 0));
    assert!(returnable::aged(&ranges, 0, u32::MAX).0.is_empty());
    returnable::coalesce_free_segments(&mut ranges, &Apart, &mut 0, 1, 9);
    let (aged, more) = returnable::aged(&ranges, 0, u32::MAX);
    assert_eq!((aged.len(), more), (1, None));
    assert_eq!(ranges.nodes[aged[0].1].marks.marks(), [(1, 5), (2, 6)]);
    ranges.check(&Apart);
}

#[test]
fn streams_of_one_number_are_not_ordered_after_each_other() {
    let (clock, mut ranges) = (Streams::<true>, Ranges::new(ArenaConfig::torch(), Backing::Block));
    let whole = ranges.add_segment(ONE, 2 * MIB);
    ranges.release(&clock, whole, Pending::Nothing, 0);
    let requester = |on| Requester {
        clock: &clock,
        on,
        steal: StealPolicy::Never,
        cpu_touches: false,
        is_untold: false,
        host_waits: false,
    };
    let first = ranges.lend(&request(512, 0), &requester(&5)).unwrap();
    let second = ranges.lend(&request(512, 0), &requester(&6)).unwrap();
    ranges.free(&clock, second, Pending::One((6, 1)), (false, 0));
    let third = ranges.lend(&request(512, 0), &requester(&5)).expect("the rest is untouched");
    assert_eq!(ranges.nodes[third].offset, 1024);
    ranges.free(&clock, first, Pending::One((5, 1)), (false, 0));
    ranges.check(&clock);
    let again = ranges.lend(&request(512, 0), &requester(&6));
    assert_eq!(again, Some(second), "not the one that the other scope used");
}

#[test]
fn a_free_segment_behind_unsubmitted_work_stays_in_parts() {
    let (clock, mut ranges) = (Streams::<true>, Ranges::new(ArenaConfig::torch(), Backing::Block));
    let whole = ranges.add_segment(ONE, 1024);
    ranges.release(&clock, whole, Pending::Nothing, 0);
    let requester = Requester {
        clock: &clock,
        on: &5,
        steal: StealPolicy::Never,
        cpu_touches: false,
        is_untold: false,
        host_waits: false,
    };
    let ids = [(); 2].map(|()| ranges.lend(&request(512, 0), &requester).unwrap());
    ranges.free(&clock, ids[0], Pending::One((5, 1)), (false, 0));
    ranges.free(&clock, ids[1], Pending::One((6, 1)), (false, 0));
    returnable::coalesce_free_segments(&mut ranges, &clock, &mut 0, 1, 9);
    assert_eq!(ranges.nodes.walk(ranges.segments.get(0).unwrap().first).count(), 2);
}

#[test]
fn neighbours_beyond_the_first_portion_are_not_forgotten() {
    let (clock, mut ranges) = (Streams::<true>, Ranges::new(ArenaConfig::torch(), Backing::Block));
    let whole = ranges.add_segment(ONE, 300 * 512);
    ranges.release(&clock, whole, Pending::Nothing, 0);
    let requester = Requester {
        clock: &clock,
        on: &5,
        steal: StealPolicy::Never,
        cpu_touches: false,
        is_untold: false,
        host_waits: false,
    };
    let mut ids: Vec<u32> =
        (0..300).map(|_| ranges.lend(&request(512, 0), &requester).unwrap()).collect();
    ids.sort_unstable();
    let [.., first, second] = ids[..] else { panic!("300 ranges") };
    assert_eq!(ranges.nodes[first].after, second);
    ranges.free(&clock, first, Pending::One((5, 1)), (false, 0));
    ranges.free(&clock, second, Pending::One((6, 1)), (false, 0));
    assert!(returnable::may_be_apart(&ranges, &request(1024, 0)));
    assert_eq!(
        returnable::coalesce_streams(&mut ranges, &clock, 0, 256, |_| true),
        (false, Some(256))
    );
    assert!(returnable::may_be_apart(&ranges, &request(1024, 0)), "they are still there");
    assert!(returnable::coalesce_streams(&mut ranges, &clock, 256, 256, |_| true).0);
    assert_eq!(ranges.lend(&request(1024, 0), &requester), None, "two streams used it");
    ranges.check(&clock);
}

#[test]
fn a_block_over_old_and_fresh_memory_may_show_old_contents() {
    let mut paged = Paged::new();
    let first = paged.allocate(&request(PAGE / 2, 1), 0);
    paged.ranges.free(&Apart, first, Pending::One((1, 1)), (true, 0));
    let second = paged.allocate(&request(3 * PAGE, 1), 0);
    assert_eq!((paged.ranges.nodes[second].offset, paged.ranges.nodes[second].dirty), (0, true));
}

#[test]
fn holes_stay_holes_when_there_are_more_streams_than_lists() {
    let mut lists = super::list::RangeLists::<u8>::new(9, false);
    let mut nodes = super::node::Nodes::<(u64, u64)>::new();
    for stream in 0..5000 {
        let list = lists.number(ONE, UsedBy::Stream(stream));
        let id = nodes.add(0, (0, 512), (super::node::NONE, super::node::NONE));
        lists.bins(list).insert(&mut nodes, id);
    }
    let of = |list: u16, lists: &super::list::RangeLists<u8>| lists.get(list).used_by;
    let shared = lists.number(ONE, UsedBy::Stream(5000));
    assert_eq!(of(shared, &lists), UsedBy::Stream(5000).in_common());
    let hole = lists.number(ONE, UsedBy::Hole);
    assert_eq!(of(hole, &lists), UsedBy::Hole);
}

#[test]
fn ranges_are_found_from_the_largest_step_down() {
    for ordered in [false, true] {
        let mut lists = super::list::RangeLists::<u8>::new(9, ordered);
        let mut nodes = super::node::Nodes::<(u64, u64)>::new();
        let list = lists.number(ONE, UsedBy::Hole);
        for (at, bytes) in [4 * KIB, 64 * MIB, 64 * KIB].into_iter().enumerate() {
            let place = (at as u64 * 64 * MIB, bytes);
            let id = nodes.add(0, place, (super::node::NONE, super::node::NONE));
            lists.bins(list).insert(&mut nodes, id);
        }
        let found = lists.get(list).bins.descending(&nodes).map(|id| nodes[id].bytes);
        assert!(found.eq([64 * MIB, 64 * KIB, 4 * KIB]), "ordered: {ordered}");
    }
}

#[test]
fn two_pages_above_the_peak_may_stay_committed_however_large_they_are() {
    for page in [64 * KIB, 1024 * MIB] {
        let limit = ArenaConfig::pages(page, 0.0).committed_limit(MIB, page, 1);
        assert!(limit >= MIB + 2 * page, "{limit} for pages of {page}");
    }
}

#[test]
fn several_shards_have_the_whole_slack() {
    let config = ArenaConfig::pages(64 * KIB, 0.1);
    let peak = 1000 * MIB;
    assert_eq!(config.committed_limit(peak, 64 * KIB, 1), 1070 * MIB);
    let of_four = config.committed_limit(peak, 64 * KIB, 4);
    assert!((1099 * MIB..=1100 * MIB).contains(&of_four), "{of_four}");
}

#[test]
fn a_placement_that_lacks_no_less_is_looked_at_for_its_calls() {
    let mut paged = Paged::new();
    let [first, _live, second, _end] = [4, 1, 4, 1].map(|pages| paged.allocate_pages(pages));
    for block in [first, second] {
        paged.ranges.free(&Apart, block, Pending::One((1, 1)), (true, 0));
    }
    // Holes and free pages: `h ff h L hh ff L`. The smallest holes are looked at first.
    for pages in [0..1, 3..4, 5..7] {
        paged.make_hole(pages);
    }
    let place = place::place(&paged.ranges, &request(4 * PAGE, 1), &requester(&1)).unwrap();
    assert_eq!((place.missing, place.block), (2 * PAGE, 5 * PAGE..9 * PAGE));
}
