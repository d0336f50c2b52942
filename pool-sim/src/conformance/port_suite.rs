//! The promises of each method of the port, without a pool.
#![expect(clippy::panic, reason = "a suite of tests: a panic is how it reports")]
#![expect(unsafe_code, reason = "the port's copies, of whole blocks that the suite owns")]

use super::promise::{Served, promise};
use pool_core::port::{Handles, Order, Request, Sliceable};
use pool_core::{DeviceError, KIB, StreamClock, Transfer, Why};
use std::ops::Range;

/// The port of memory in whole blocks.
pub(super) fn run<A: Transfer>(make: &impl Fn() -> A) {
    promise("`allocate` returns blocks of the requested bytes, for multiples of `granule`", || {
        sizes_are_multiples_of_the_granule(&make());
    });
    promise("`allocate` returns blocks that do not overlap", || blocks_do_not_overlap(&make()));
    promise("`view` of some bytes from an offset on is that part of the block", || {
        a_view_begins_at_its_offset(&make());
    });
    promise("`zero` fills the first bytes of a block with zeroes, and no others", || {
        zeroing_stops_where_it_was_told(&make());
    });
    promise("`MEMORY.fresh_is_zeroed`: blocks are zero when `allocate` returns them", || {
        fresh_memory_is_as_declared(&make());
    });
    promise(
        "`aligned` refuses what is not a power of two with `Why::Unsupported`, and lowers no \
         alignment that `alignment_of` tells",
        || alignments_are_kept_or_refused(&make()),
    );
    promise("`allocate` refuses what the device cannot have, and then serves others", || {
        impossible_blocks_are_refused(&make());
    });
    promise(
        "`clock` orders the marks of a stream, and a mark is done when it was waited for",
        || {
            a_mark_is_done_once_waited_for(&make());
        },
    );
}

/// The port of memory that an arena splits.
pub(super) fn run_parts<A: Sliceable + Transfer>(make: &impl Fn() -> A) {
    promise("`zero_part` fills a part of a block with zeroes, and no others", || {
        a_part_is_zeroed_alone(&make());
    });
    if make().pages().is_some() {
        promise(
            "`commit` gives pages that hold bytes until `decommit`, and may come again",
            || {
                pages_come_and_go(&make());
            },
        );
    }
}

fn take<A: Transfer>(memory: &A, bytes: u64) -> A::Block {
    let request = Request { bytes, kind: A::Kind::default() };
    let block = memory.allocate(request, memory.clock().default_stream());
    block.served(format_args!("`allocate` of {bytes} B"))
}

fn give<A: Transfer>(memory: &A, block: A::Block) {
    let mark = memory.clock().mark(memory.clock().default_stream());
    memory.free(block, &[mark]).served("`free`");
}

fn length(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn write<A: Transfer>(memory: &A, block: &A::Block, bytes: Range<u64>, byte: u8) {
    let on = memory.clock().default_stream();
    let count = bytes.end - bytes.start;
    let view = memory.view(block, bytes.start, count, on);
    let from = vec![byte; length(count)];
    // SAFETY: the view has these bytes, and the block is the suite's alone.
    let written = unsafe { memory.write(&view, 0, &from, on) };
    written.served(format_args!("`write` of bytes {bytes:?}"));
}

fn read<A: Transfer>(memory: &A, block: &A::Block, bytes: Range<u64>) -> Vec<u8> {
    let on = memory.clock().default_stream();
    let count = bytes.end - bytes.start;
    let view = memory.view(block, bytes.start, count, on);
    let mut to = vec![0xAA; length(count)];
    // SAFETY: as for `write`.
    let read = unsafe { memory.read(&view, 0, &mut to, on) };
    read.served(format_args!("`read` of bytes {bytes:?}"));
    to
}

/// Asserts that all bytes of a range are `expected`.
fn shows<A: Transfer>(memory: &A, block: &A::Block, bytes: Range<u64>, expected: u8, what: &str) {
    let shown = read(memory, block, bytes.clone());
    let first = shown.iter().position(|byte| *byte != expected);
    assert!(
        first.is_none(),
        "{what}: of bytes {bytes:?}, byte {} is {}, expected {expected}",
        bytes.start + first.unwrap_or_default() as u64,
        first.map_or(0, |at| shown[at])
    );
}

/// A size that every memory hands out: 4 KiB, or its granule.
fn some<A: Transfer>(memory: &A) -> u64 {
    (4 * KIB).next_multiple_of(memory.granule())
}

fn sizes_are_multiples_of_the_granule<A: Transfer>(memory: &A) {
    let granule = memory.granule();
    assert!(granule > 0, "`granule` is 0, expected at least 1");
    for count in [1, 2, 7] {
        let (block, bytes) = (take(memory, count * granule), count * granule);
        write(memory, &block, 0..bytes, 7);
        shows(memory, &block, 0..bytes, 7, "written bytes");
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
        shows(memory, block, 0..bytes, *byte, "a block after eight were written");
    }
    for (_, block) in blocks {
        give(memory, block);
    }
}

fn a_view_begins_at_its_offset<A: Transfer>(memory: &A) {
    let (bytes, half) = (some(memory), some(memory) / 2);
    let block = take(memory, bytes);
    write(memory, &block, 0..bytes, 4);
    write(memory, &block, half..bytes, 6);
    shows(memory, &block, 0..half, 4, "after a view of the second half was written");
    let whole = read(memory, &block, 0..bytes);
    let at = length(half);
    assert!(
        whole[at - 1] == 4 && whole[at] == 6,
        "of bytes 0..{bytes}, bytes {} and {half} are {} and {}, expected 4 and 6",
        half - 1,
        whole[at - 1],
        whole[at]
    );
    give(memory, block);
}

fn zeroing_stops_where_it_was_told<A: Transfer>(memory: &A) {
    let (bytes, half) = (some(memory), some(memory) / 2);
    let mut block = take(memory, bytes);
    write(memory, &block, 0..bytes, 9);
    let zeroed = memory.zero(&mut block, half, memory.clock().default_stream());
    zeroed.served(format_args!("`zero` of {half} B"));
    shows(memory, &block, 0..half, 0, "zeroed bytes");
    shows(memory, &block, half..bytes, 9, "the bytes behind them");
    give(memory, block);
}

/// Memory that says that it is zeroed when fresh is, also where it serves a second time.
fn fresh_memory_is_as_declared<A: Transfer>(memory: &A) {
    if !A::MEMORY.fresh_is_zeroed {
        return;
    }
    let bytes = some(memory);
    for _ in 0..3 {
        let block = take(memory, bytes);
        shows(memory, &block, 0..bytes, 0, "a fresh block");
        write(memory, &block, 0..bytes, 3);
        give(memory, block);
    }
}

fn alignments_are_kept_or_refused<A: Transfer>(memory: &A) {
    let kind = A::Kind::default();
    for bad in [0, 3, 48, u64::MAX] {
        let why = memory.aligned(kind, bad).map(drop).map_err(|error| error.why);
        let expected = Err(Why::Unsupported);
        assert!(why == expected, "`aligned(kind, {bad})` is {why:?}, expected {expected:?}");
    }
    let own = memory.alignment_of(kind);
    assert!(own.is_power_of_two(), "`alignment_of` is {own}, expected a power of two");
    for alignment in [1, 16, 256, 4 * KIB] {
        match memory.aligned(kind, alignment) {
            Ok(kind) => {
                let kept = memory.alignment_of(kind);
                let is_kept = alignment == 1 || kept >= alignment.min(own) && kept >= 1;
                assert!(is_kept, "`alignment_of` of a kind aligned to {alignment} is {kept}");
            }
            Err(DeviceError { why: Why::Unsupported, .. }) => {}
            Err(error) => panic!("`aligned(kind, {alignment})` is refused by {error}"),
        }
    }
}

/// A refused block takes nothing: the next request works.
fn impossible_blocks_are_refused<A: Transfer>(memory: &A) {
    let bytes = u64::MAX - u64::MAX % memory.granule();
    let request = Request { bytes, kind: A::Kind::default() };
    let got = memory.allocate(request, memory.clock().default_stream());
    assert!(got.is_err(), "`allocate` returned a block of {bytes} B, expected an error");
    let block = take(memory, some(memory));
    give(memory, block);
}

fn a_mark_is_done_once_waited_for<A: Transfer>(memory: &A) {
    let clock = memory.clock();
    let on = clock.default_stream();
    assert!(clock.owns(on), "`owns` is false for the default stream");
    assert!(clock.fault().is_none(), "`fault` of a new device is {:?}", clock.fault());
    assert!(clock.takes_work(on), "`takes_work` is false for the default stream");
    let block = take(memory, some(memory));
    let before = clock.mark(on);
    write(memory, &block, 0..some(memory), 1);
    let mark = clock.mark(on);
    assert!(clock.same_stream(mark, before), "`same_stream` is false for two marks of one");
    assert!(clock.is_later(mark, before), "`is_later` is false for the later mark");
    assert!(clock.is_later(clock.later(mark, before), before), "`later` is not the later mark");
    assert!(clock.is_ordered(on, mark), "`is_ordered` is false for the stream of the mark");
    let order = clock.order(on, &[mark]);
    assert!(matches!(order, Ok(Order::Ordered)), "`order` behind its own mark is {order:?}");
    clock.synchronize(mark).served("`synchronize`");
    let is_done = clock.is_seen_done(mark) || clock.is_done(mark).served("`is_done`");
    assert!(is_done, "a mark is not done after `synchronize`");
    give(memory, block);
}

fn a_part_is_zeroed_alone<A: Sliceable + Transfer>(memory: &A) {
    let bytes = (16 * KIB).next_multiple_of(memory.granule());
    let (from, to) = (bytes / 4, bytes / 2);
    let block = take(memory, bytes);
    write(memory, &block, 0..bytes, 5);
    // SAFETY: the block is the suite's alone.
    let zeroed = unsafe { memory.zero_part(&block, from..to, memory.clock().default_stream()) };
    zeroed.served(format_args!("`zero_part` of bytes {from}..{to}"));
    for (part, byte) in [(0..from, 5), (from..to, 0), (to..bytes, 5)] {
        shows(memory, &block, part, byte, "after bytes of a block were zeroed");
    }
    give(memory, block);
}

/// Committed pages hold bytes, apart from each other, and a page may be committed again.
fn pages_come_and_go<A: Sliceable + Transfer>(memory: &A) {
    let Some(pages) = memory.pages() else { return };
    let page = pages.page_bytes;
    let block = (pages.reserve)(memory, 8 * page).served("`reserve` of eight pages");
    let mark = || memory.clock().mark(memory.clock().default_stream());
    let commit = |bytes: Range<u64>| {
        let committed = (pages.commit)(memory, &block, bytes.clone());
        committed.served(format_args!("`commit` of bytes {bytes:?}"));
    };
    let decommit = |bytes: Range<u64>| {
        let decommitted = (pages.decommit)(memory, &block, bytes.clone(), &[mark()]);
        decommitted.served(format_args!("`decommit` of bytes {bytes:?}"));
    };
    for _ in 0..2 {
        match pages.handles {
            // Each goes back as it was committed.
            Handles::Commit => [page..2 * page, 2 * page..3 * page].map(commit),
            Handles::None | Handles::Page => [commit(page..3 * page), ()],
        };
        commit(4 * page..5 * page);
        write(memory, &block, page..3 * page, 1);
        write(memory, &block, 4 * page..5 * page, 2);
        shows(memory, &block, page..3 * page, 1, "two committed pages");
        shows(memory, &block, 4 * page..5 * page, 2, "a page apart from them");
        decommit(page..2 * page);
        shows(memory, &block, 2 * page..3 * page, 1, "a page whose neighbour was decommitted");
        decommit(2 * page..3 * page);
        decommit(4 * page..5 * page);
    }
    commit(0..page);
    (pages.release)(memory, block, &[mark()]).served("`release`");
}
