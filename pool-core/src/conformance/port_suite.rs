//! The promises of each method of the port, without a pool.
#![expect(clippy::unwrap_used, reason = "a suite of tests: a panic is how it reports")]
#![expect(unsafe_code, reason = "the port's copies, of whole blocks that the suite owns")]

use crate::device::transfer::Transfer;
use crate::device::{Request, Sliceable};
use crate::stream::clock::{Order, StreamClock};
use crate::{KIB, Why};
use std::ops::Range;

/// The port of memory in whole blocks.
pub(super) fn run<A: Transfer>(make: &impl Fn() -> A) {
    sizes_are_multiples_of_the_granule(&make());
    blocks_do_not_overlap(&make());
    zeroing_stops_where_it_was_told(&make());
    fresh_memory_is_as_declared(&make());
    alignments_are_kept_or_refused(&make());
    impossible_blocks_are_refused(&make());
    a_mark_is_done_once_waited_for(&make());
}

/// The port of memory that an arena splits.
pub(super) fn run_parts<A: Sliceable + Transfer>(make: &impl Fn() -> A) {
    a_part_is_zeroed_alone(&make());
    if make().pages().is_some() {
        pages_come_and_go(&make());
    }
}

fn take<A: Transfer>(memory: &A, bytes: u64) -> A::Block {
    let request = Request { bytes, kind: A::Kind::default() };
    memory.allocate(request, memory.clock().default_stream()).unwrap()
}

fn give<A: Transfer>(memory: &A, block: A::Block) {
    memory.free(block, &[memory.clock().mark(memory.clock().default_stream())]).unwrap();
}

fn write<A: Transfer>(memory: &A, block: &A::Block, bytes: Range<u64>, byte: u8) {
    let on = memory.clock().default_stream();
    let count = bytes.end - bytes.start;
    let view = memory.view(block, bytes.start, count, on);
    let from = vec![byte; usize::try_from(count).unwrap()];
    // SAFETY: the view has these bytes, and the block is the suite's alone.
    unsafe { memory.write(&view, 0, &from, on).unwrap() }
}

fn read<A: Transfer>(memory: &A, block: &A::Block, bytes: Range<u64>) -> Vec<u8> {
    let on = memory.clock().default_stream();
    let count = bytes.end - bytes.start;
    let view = memory.view(block, bytes.start, count, on);
    let mut to = vec![0xAA; usize::try_from(count).unwrap()];
    // SAFETY: as for `write`.
    unsafe { memory.read(&view, 0, &mut to, on).unwrap() }
    to
}

/// A size that every memory hands out: 4 KiB, or its granule.
fn some<A: Transfer>(memory: &A) -> u64 {
    (4 * KIB).next_multiple_of(memory.granule())
}

fn sizes_are_multiples_of_the_granule<A: Transfer>(memory: &A) {
    let granule = memory.granule();
    assert!(granule > 0, "a granule of no bytes");
    for count in [1, 2, 7] {
        let (block, bytes) = (take(memory, count * granule), count * granule);
        write(memory, &block, 0..bytes, 7);
        assert!(read(memory, &block, 0..bytes).iter().all(|byte| *byte == 7));
        give(memory, block);
    }
}

fn blocks_do_not_overlap<A: Transfer>(memory: &A) {
    let bytes = some(memory);
    let blocks: Vec<_> = (1..=8).map(|byte| (byte, take(memory, bytes))).collect();
    for (byte, block) in &blocks {
        write(memory, block, 0..bytes, *byte);
    }
    for (byte, block) in &blocks {
        let shown = read(memory, block, 0..bytes);
        assert!(shown.iter().all(|shown| shown == byte), "block {byte} was overwritten");
    }
    for (_, block) in blocks {
        give(memory, block);
    }
}

fn zeroing_stops_where_it_was_told<A: Transfer>(memory: &A) {
    let (bytes, half) = (some(memory), some(memory) / 2);
    let mut block = take(memory, bytes);
    write(memory, &block, 0..bytes, 9);
    memory.zero(&mut block, half, memory.clock().default_stream()).unwrap();
    assert!(read(memory, &block, 0..half).iter().all(|byte| *byte == 0), "not zeroed");
    assert!(read(memory, &block, half..bytes).iter().all(|byte| *byte == 9), "zeroed too much");
    give(memory, block);
}

/// Memory that says that it is zeroed when fresh is, also where it serves a second time.
fn fresh_memory_is_as_declared<A: Transfer>(memory: &A) {
    if !A::MEMORY.fresh_is_zeroed {
        return;
    }
    let bytes = some(memory);
    for turn in 0..3 {
        let block = take(memory, bytes);
        let dirty = read(memory, &block, 0..bytes).into_iter().filter(|byte| *byte != 0).count();
        assert_eq!(dirty, 0, "fresh memory, turn {turn}");
        write(memory, &block, 0..bytes, 3);
        give(memory, block);
    }
}

fn alignments_are_kept_or_refused<A: Transfer>(memory: &A) {
    let kind = A::Kind::default();
    for bad in [0, 3, 48, u64::MAX] {
        let error = memory.aligned(kind, bad).unwrap_err();
        assert_eq!(error.why, Why::Unsupported, "alignment {bad}: {error}");
    }
    let own = memory.alignment_of(kind);
    assert!(own.is_power_of_two(), "blocks are aligned to {own} bytes");
    for alignment in [1, 16, 256, 4 * KIB] {
        match memory.aligned(kind, alignment) {
            Ok(kind) => {
                let kept = memory.alignment_of(kind);
                assert!(alignment == 1 || kept >= alignment.min(own) && kept >= 1, "{kept}");
            }
            Err(error) => assert_eq!(error.why, Why::Unsupported, "{alignment}: {error}"),
        }
    }
}

/// A refused block takes nothing: the next request works.
fn impossible_blocks_are_refused<A: Transfer>(memory: &A) {
    let bytes = u64::MAX - u64::MAX % memory.granule();
    let request = Request { bytes, kind: A::Kind::default() };
    let got = memory.allocate(request, memory.clock().default_stream());
    assert!(got.is_err(), "a block of {bytes} bytes");
    let block = take(memory, some(memory));
    give(memory, block);
}

fn a_mark_is_done_once_waited_for<A: Transfer>(memory: &A) {
    let clock = memory.clock();
    let on = clock.default_stream();
    assert!(clock.owns(on) && clock.fault().is_none() && clock.takes_work(on));
    let block = take(memory, some(memory));
    let before = clock.mark(on);
    write(memory, &block, 0..some(memory), 1);
    let mark = clock.mark(on);
    assert!(clock.same_stream(mark, before), "two marks of a stream");
    assert!(clock.is_later(mark, before), "marks of a stream are ordered");
    assert!(clock.is_later(clock.later(mark, before), before), "the later of two marks");
    assert!(clock.is_ordered(on, mark), "a stream is ordered after itself");
    assert!(matches!(clock.order(on, &[mark]), Ok(Order::Ordered)));
    clock.synchronize(mark).unwrap();
    assert!(clock.is_seen_done(mark) || clock.is_done(mark).unwrap(), "not done though waited for");
    give(memory, block);
}

fn a_part_is_zeroed_alone<A: Sliceable + Transfer>(memory: &A) {
    let bytes = (16 * KIB).next_multiple_of(memory.granule());
    let (from, to) = (bytes / 4, bytes / 2);
    let block = take(memory, bytes);
    write(memory, &block, 0..bytes, 5);
    // SAFETY: the block is the suite's alone.
    unsafe { memory.zero_part(&block, from..to, memory.clock().default_stream()).unwrap() };
    for (part, byte) in [(0..from, 5), (from..to, 0), (to..bytes, 5)] {
        let shown = read(memory, &block, part.clone());
        assert!(shown.iter().all(|shown| *shown == byte), "{part:?} is not {byte}");
    }
    give(memory, block);
}

/// Committed pages hold bytes, apart from each other, and a page may be committed again.
fn pages_come_and_go<A: Sliceable + Transfer>(memory: &A) {
    let pages = memory.pages().unwrap();
    let page = pages.page_bytes;
    let block = (pages.reserve)(memory, 8 * page).unwrap();
    let mark = || memory.clock().mark(memory.clock().default_stream());
    for turn in 0..2 {
        (pages.commit)(memory, &block, page..3 * page).unwrap();
        (pages.commit)(memory, &block, 4 * page..5 * page).unwrap();
        write(memory, &block, page..3 * page, 1);
        write(memory, &block, 4 * page..5 * page, 2);
        assert!(read(memory, &block, page..3 * page).iter().all(|byte| *byte == 1), "{turn}");
        assert!(read(memory, &block, 4 * page..5 * page).iter().all(|byte| *byte == 2), "{turn}");
        (pages.decommit)(memory, &block, page..2 * page, &[mark()]).unwrap();
        assert!(read(memory, &block, 2 * page..3 * page).iter().all(|byte| *byte == 1), "{turn}");
        (pages.decommit)(memory, &block, 2 * page..3 * page, &[mark()]).unwrap();
        (pages.decommit)(memory, &block, 4 * page..5 * page, &[mark()]).unwrap();
    }
    (pages.commit)(memory, &block, 0..page).unwrap();
    (pages.release)(memory, block, &[mark()]).unwrap();
}
