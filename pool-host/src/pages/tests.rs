//! Tests of blocks on pages: they keep their contents, no two overlap, and pages return to the
//! system.
#![expect(unsafe_code, reason = "blocks are written through their addresses")]
#![expect(clippy::multiple_unsafe_ops_per_block, reason = "the owner of a block says it once")]
#![expect(clippy::expect_used, reason = "tests")]

use super::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Barrier, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread;

const MIB: usize = 1 << 20;

/// A block with a known byte in each of its pages.
struct Block {
    start: *mut u8,
    bytes: usize,
    byte: u8,
}

// SAFETY: a `Block` owns its memory, and only its owner uses `start`.
unsafe impl Send for Block {}

impl Block {
    fn places(&self) -> impl Iterator<Item = usize> {
        (0..self.bytes).step_by(PAGE)
    }

    fn fill(&self) {
        for at in self.places() {
            // SAFETY: `at` is inside the block, which this thread owns.
            unsafe { self.start.wrapping_add(at).write(self.byte) };
        }
    }

    fn check(&self, seed: u64) {
        for at in self.places() {
            // SAFETY: as above; `fill` wrote this byte.
            let found = unsafe { self.start.wrapping_add(at).read() };
            assert_eq!(found, self.byte, "another's byte at {at} of {}, seed {seed}", self.bytes);
        }
    }
}

/// The state of one thread of the random test.
struct Worker<'p> {
    pages: &'p Pages,
    seed: u64,
    random: StdRng,
    live: VecDeque<Block>,
}

impl Worker<'_> {
    fn choose(&mut self, end: usize) -> usize {
        self.random.random_range(0..end)
    }

    fn take(&mut self) {
        let most = [16 * PAGE, 64 * PAGE, 4 * MIB][self.choose(3)];
        let (bytes, align) = (1 + self.choose(most), 1 << self.choose(22));
        let byte = u8::try_from(self.choose(255)).expect("a byte") + 1;
        let (taken, room) = match self.choose(4) {
            0 => (self.pages.take_to_grow(bytes, align), bytes / 8),
            _ => (self.pages.take(bytes, align), 0),
        };
        let Taken { block, zeroed } = taken.expect("there is memory");
        assert_eq!((block.addr() % align, self.pages.has(block)), (0, true));
        assert_eq!(self.pages.bytes_of(block), (bytes + room).next_multiple_of(PAGE));
        let block = Block { start: block, bytes, byte };
        if zeroed {
            // SAFETY: `at` is inside the block, which this thread owns.
            let is_zero = |at: usize| unsafe { block.start.wrapping_add(at).read() } == 0;
            assert!(block.places().all(is_zero), "not zero, seed {}", self.seed);
        }
        block.fill();
        self.live.push_back(block);
    }

    fn resize(&mut self) {
        let Some(mut block) = self.live.pop_front() else { return };
        block.check(self.seed);
        let bytes = 1 + self.choose(2 * block.bytes);
        // SAFETY: this thread owns the block, and nothing uses the bytes behind the new end.
        if unsafe { self.pages.resize(block.start, bytes) } {
            block.bytes = block.bytes.min(bytes);
            block.check(self.seed);
            block.bytes = bytes;
            block.fill();
        }
        self.live.push_back(block);
    }

    fn free(&mut self) {
        let Some(block) = self.live.pop_front() else { return };
        block.check(self.seed);
        // SAFETY: this thread owns the block and does not use it again.
        unsafe { self.pages.give(block.start) };
    }

    fn work(&mut self, left: &Mutex<Vec<Block>>) {
        for _ in 0..3000 {
            match self.choose(20) {
                0..=8 if self.live.len() < 40 => self.take(),
                9..=11 => self.resize(),
                12 => left.lock().expect("no panic").extend(self.live.drain(..)),
                13 => self.live.append(&mut left.lock().expect("no panic").drain(..).collect()),
                14 => {
                    let bytes = self.choose(8 * MIB);
                    self.pages.trim(bytes);
                }
                _ => self.free(),
            }
        }
        while !self.live.is_empty() {
            self.free();
        }
    }
}

#[test]
fn random_blocks_of_threads_keep_what_is_in_them() {
    for seed in 1..5 {
        println!("seed {seed}");
        let (pages, left) = (Pages::new(), Mutex::new(Vec::new()));
        thread::scope(|scope| {
            for thread in 1..4_u64 {
                let (pages, left) = (&pages, &left);
                scope.spawn(move || {
                    let random = StdRng::seed_from_u64(seed << 8 | thread);
                    Worker { pages, seed, random, live: VecDeque::new() }.work(left);
                });
            }
        });
        let live = left.into_inner().expect("no panic").into();
        let mut last = Worker { pages: &pages, seed, random: StdRng::seed_from_u64(seed), live };
        while !last.live.is_empty() {
            last.free();
        }
        pages.trim(usize::MAX);
        assert!(matches!(pages.stats(), PagesStats { used: 0, dirty: 0, .. }));
    }
}

/// Returns how many pages of a block are resident.
fn resident(block: *mut u8, bytes: usize) -> usize {
    let mut pages = vec![0_u8; bytes / PAGE];
    // SAFETY: `mincore` writes one byte for each page of the block, and `pages` has that many. The
    // block begins at a page and is mapped.
    let done = unsafe { libc::mincore(block.cast(), bytes, pages.as_mut_ptr()) };
    assert_eq!(done, 0);
    pages.into_iter().filter(|page| page & 1 == 1).count()
}

#[test]
fn a_block_is_taken_again_warm_and_trimmed_cold() {
    let pages = Pages::new();
    for bytes in [PAGE, MIB, 40 * MIB] {
        let first = pages.take(bytes, 1).expect("there is memory");
        assert!(first.zeroed);
        // SAFETY: the test owns the block, which has that many bytes.
        unsafe { first.block.write_bytes(1, bytes) };
        // SAFETY: the test owns the block and does not use it again.
        unsafe { pages.give(first.block) };
        let again = pages.take(bytes, 1).expect("there is memory");
        assert_eq!(again, Taken { zeroed: false, ..first });
        assert_eq!(resident(again.block, bytes), bytes / PAGE);
        // SAFETY: as above.
        unsafe { pages.give(again.block) };
        assert_eq!(pages.trim(usize::MAX), bytes);
        assert_eq!(resident(first.block, bytes), 0);
        let cold = pages.take(bytes, 1).expect("there is memory");
        assert!(cold.zeroed);
        // SAFETY: as above.
        unsafe { pages.give(cold.block) };
        pages.trim(usize::MAX);
    }
}

#[test]
fn what_was_just_freed_serves_another_length_before_clean_pages_do() {
    let pages = Pages::new();
    let take = |bytes| pages.take(bytes, 1).expect("there is memory");
    let (first, second) = (take(MIB), take(MIB));
    // SAFETY: the test owns the blocks and does not use them again.
    unsafe {
        pages.give(first.block);
        pages.give(second.block);
    }
    let both = take(2 * MIB);
    assert_eq!(both, Taken { block: first.block.min(second.block), zeroed: false });
    // SAFETY: as above.
    unsafe { pages.give(both.block) };
    assert!(!take(MIB / 2).zeroed);
}

#[test]
fn free_pages_beyond_the_limit_go_back_without_decay() {
    let pages = Pages::new();
    pages.configure(8 * MIB, 0);
    let blocks: Vec<_> = (0..16).map(|_| pages.take(4 * MIB, 1).expect("memory").block).collect();
    for block in blocks {
        // SAFETY: the test owns the block, which has that many bytes, and does not use it after
        // `give`.
        unsafe {
            block.write_bytes(1, 4 * MIB);
            pages.give(block);
        }
    }
    let mut steps = 0;
    while pages.idle_bytes() > 8 * MIB {
        pages.give_back_slots();
        steps += 1;
        assert!(steps < 1000, "{:?}", pages.stats());
    }
    assert_eq!(pages.stats().slots, 0);
    assert!(pages.stats().dirty <= 8 * MIB as u64);
}

#[test]
fn what_was_not_needed_lately_goes_back_in_bounded_steps() {
    let pages = Pages::new();
    // Windows of 30 s, so that none ends while the test writes.
    pages.configure(usize::MAX, 60_000);
    let blocks: Vec<_> = (0..64).map(|_| pages.take(4 * MIB, 1).expect("memory").block).collect();
    for block in blocks {
        // SAFETY: the test owns the block, which has that many bytes, and does not use it after
        // `give`.
        unsafe {
            block.write_bytes(1, 4 * MIB);
            pages.give(block);
        }
    }
    let PagesStats { used, dirty, .. } = pages.stats();
    assert_eq!(used + dirty, 256 * MIB as u64, "just used");
    let mut before = dirty;
    let (mut now, mut steps) = (system::coarse_milliseconds(), 0);
    // The test supplies the time: each step is 31 s later.
    while before > 4 * MIB as u64 {
        now += 31_000;
        let budget = pages.enter(|inside| pages.turn(inside, now, 0)).unwrap_or(0);
        pages.give_back(budget);
        let dirty = pages.stats().dirty;
        // `dirty` can rise, because the runs in slots become dirty runs.
        let went = before.saturating_sub(dirty);
        assert!(went <= 32 * MIB as u64, "{went} bytes in a step");
        (before, steps) = (dirty, steps + 1);
        assert!(steps < 30, "{dirty} bytes stay");
    }
    assert!(steps >= 8, "{steps}");
}

/// A program that frees 256 MiB at once, with a limit of 64 MiB: what stays free between two looks of the thread
/// goes, and what is used again does not.
#[test]
fn what_stays_beyond_the_limit_goes_at_once() {
    let pages = Pages::new();
    // Windows of 30 s, so that time alone returns nothing.
    pages.configure(64 * MIB, 60_000);
    let take = || pages.take(4 * MIB, 1).expect("memory").block;
    let give_all = |blocks: Vec<*mut u8>| {
        for block in blocks {
            // SAFETY: the test owns the block, and does not use it after `give`.
            unsafe { pages.give(block) };
        }
        pages.enter(|inside| pages.sweep(inside));
    };
    let dirty = || usize::try_from(pages.stats().dirty).expect("of this machine");
    let blocks: Vec<_> = (0..64).map(|_| take()).collect();
    for block in &blocks {
        // SAFETY: the test owns the block, which has that many bytes.
        unsafe { block.write_bytes(1, 4 * MIB) };
    }
    give_all(blocks);
    let freed = dirty();
    assert!(freed > 192 * MIB, "{freed}: the frees alone gave back at most 1 MiB each");
    pages.keep_to_limit();
    assert_eq!(dirty(), freed, "the program may take it again");
    let again: Vec<_> = (0..32).map(|_| take()).collect();
    pages.keep_to_limit();
    let between = dirty();
    assert!((64 * MIB..freed - 32 * 4 * MIB + MIB).contains(&between), "{between}");
    give_all(again);
    pages.keep_to_limit();
    pages.keep_to_limit();
    assert!(dirty() <= 64 * MIB, "{}", dirty());
}

#[test]
fn a_program_that_pauses_keeps_less() {
    let pages = Pages::new();
    pages.configure(usize::MAX, 60_000);
    let blocks: Vec<_> = (0..64).map(|_| pages.take(4 * MIB, 1).expect("memory").block).collect();
    for block in &blocks[..16] {
        // SAFETY: the test owns the block and does not use it after `give`.
        unsafe { pages.give(*block) };
    }
    // The test supplies the time: each window is 31 s long.
    let after_windows = |windows: u64| {
        let now = system::coarse_milliseconds();
        for window in 1..=windows {
            for _ in 0..20 {
                let at = now + 31_000 * window;
                let budget = pages.enter(|inside| pages.turn(inside, at, u32::MAX)).unwrap_or(0);
                pages.give_back(budget);
            }
        }
        pages.stats().dirty / (1 << 20)
    };
    assert_eq!(after_windows(3), 192 / 4 + 1);
    assert_eq!(after_windows(8), 192 / 16 + 1);
}

#[test]
fn a_block_grows_where_it_is_into_what_is_free_behind_it() {
    let pages = Pages::new();
    let take = |bytes| pages.take(bytes, 1).expect("there is memory").block;
    let (first, second, third) = (take(MIB), take(MIB), take(MIB));
    // SAFETY: the test owns the blocks, writes inside them, and uses none after its `give`. No code
    // uses the bytes behind the end of a resized block.
    unsafe {
        assert!(!pages.resize(first, 2 * MIB), "the second is in the way");
        pages.give(second);
        assert!(pages.resize(first, 2 * MIB));
        assert_eq!(pages.bytes_of(first), 2 * MIB);
        assert!(!pages.resize(first, 3 * MIB), "the third is in the way");
        assert!(pages.resize(third, 900 * MIB), "to the end of what is usable, and beyond");
        third.add(900 * MIB - 1).write(1);
        assert!(pages.resize(first, PAGE));
        assert_eq!(pages.bytes_of(first), PAGE);
        pages.give(third);
        pages.give(first);
    }
    pages.trim(usize::MAX);
    assert!(matches!(pages.stats(), PagesStats { used: 0, dirty: 0, .. }));
}

#[test]
fn what_cannot_be_is_refused() {
    let pages = Pages::new();
    assert_eq!(pages.take(LARGEST + 1, 1), None);
    assert_eq!(pages.take(MIB, 2 * MOST_ALIGN), None);
    assert!(!pages.has(ptr::null_mut()));
    let block = pages.take(MIB, MOST_ALIGN).expect("there is memory").block;
    assert_eq!(block.addr() % MOST_ALIGN, 0);
    // SAFETY: the test owns the block, and both calls leave it unchanged.
    assert!(unsafe { !pages.resize(block, 0) && !pages.resize(block, usize::MAX) });
    assert!(pages.has(block) && !pages.has(block.wrapping_sub(1 << 41)));
}

/// Returns the first and the last address of a line of `/proc/PID/maps`.
fn mapped(line: &str) -> Option<(usize, usize)> {
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    let hex = |text| usize::from_str_radix(text, 16).ok();
    Some((hex(start)?, hex(end)?))
}

/// Returns how many bytes of these pages may be written, which is what counts under `RLIMIT_DATA`,
/// and as promised where the system promises no more than it has.
fn writable(pages: &Pages) -> usize {
    let text = std::fs::read_to_string("/proc/self/maps").expect("a process");
    let lines = text.lines().filter(|line| line.contains(" rw-p ")).filter_map(mapped);
    let base = pages.range.base.load(Relaxed).addr();
    let (first, last) = (base, base + pages.range.bytes.load(Relaxed));
    lines.map(|(start, end)| end.clamp(first, last) - start.clamp(first, last)).sum()
}

/// Returns a line of each mapping of these pages, as `/proc/PID/smaps` has it.
fn lines_of(pages: &Pages, name: &str) -> Vec<String> {
    let base = pages.range.base.load(Relaxed).addr();
    lines_of_range(base..base + pages.range.bytes.load(Relaxed), name)
}

/// Returns a line of each mapping that overlaps a range.
fn lines_of_range(range: Range<usize>, name: &str) -> Vec<String> {
    let text = std::fs::read_to_string("/proc/self/smaps").expect("a process");
    let (mut is_here, mut found) = (false, Vec::new());
    for line in text.lines() {
        if let Some((start, end)) = mapped(line) {
            is_here = start < range.end && range.start < end;
        }
        if let Some(line) = line.strip_prefix(name).filter(|_| is_here) {
            found.push(line.trim().to_owned());
        }
    }
    found
}

/// Returns the flags of the mapping of an address.
fn flags(address: *mut u8) -> String {
    lines_of_range(address.addr()..address.addr() + 1, "VmFlags:").concat()
}

#[test]
fn what_a_program_did_to_its_pages_ends_when_they_go_back() {
    let pages = Pages::new();
    let take = |bytes| pages.take(bytes, 1).expect("there is memory").block;
    let plain = flags(take(MIB));
    assert!(plain.contains("rd wr"), "{plain}");
    let advices =
        [libc::MADV_DONTFORK, libc::MADV_WIPEONFORK, libc::MADV_DONTDUMP, libc::MADV_HUGEPAGE];
    for what in 0..7 {
        let bytes = (what + 2) * MIB;
        let block = take(bytes);
        // SAFETY: the test owns the block, writes inside it, and does not use it after `give`.
        let done = unsafe {
            block.write_bytes(1, bytes);
            let done = match what {
                0 => libc::mlock(block.cast(), bytes),
                1 => libc::mprotect(block.cast(), bytes, libc::PROT_NONE),
                2 => libc::mprotect(block.cast(), bytes, 7),
                _ => libc::madvise(block.cast(), bytes, advices[what - 3]),
            };
            pages.give(block);
            done
        };
        assert_eq!((done, pages.trim(usize::MAX)), (0, bytes), "{what}");
        let again = pages.take(bytes, 1).expect("there is memory");
        assert_eq!(again, Taken { block, zeroed: true }, "{what}");
        assert_eq!(flags(block), plain, "{what}");
    }
}

#[test]
fn what_went_back_counts_no_more() {
    let pages = Pages::new();
    let blocks: Vec<_> = (0..128).map(|_| pages.take(4 * MIB, 1).expect("memory").block).collect();
    assert_eq!(writable(&pages) / (4 * MIB), 128);
    for (number, block) in blocks.into_iter().enumerate() {
        if number % 32 != 5 {
            // SAFETY: the test owns the block, writes inside it, and does not use it after `give`.
            unsafe {
                block.write(1);
                pages.give(block);
            }
        }
    }
    pages.trim(usize::MAX);
    // The two ends of each of four blocks may lie inside of chunks of 2 MiB.
    let after = writable(&pages);
    assert!((16 * MIB..=4 * 8 * MIB).contains(&after), "{after}");
}

/// A container of 400 MiB, in which 360 MiB of blocks were freed, and 360 MiB of other memory are
/// wanted at once: 50 MiB may be cached, and from 100 MiB on the system may take what is.
#[test]
fn the_system_may_take_what_a_container_has_cached() {
    // The system takes no page that a child shares.
    let _quiet = without_forks();
    let pages = Pages::new();
    pages.configure(50 * MIB, 1000);
    pages.lend_from(100 << 20);
    let take = || pages.take(2 * MIB, 1).expect("memory").block;
    for round in 0..2 {
        let blocks: Vec<_> = (0..180).map(|_| take()).collect();
        for block in &blocks {
            // SAFETY: the test owns the block, which has that many bytes.
            unsafe { block.write_bytes(1, 2 * MIB) };
        }
        for block in blocks {
            // SAFETY: the test owns the block and does not use it again.
            unsafe { pages.give(block) };
        }
        let sum = |name| {
            let lines = lines_of(&pages, name).into_iter();
            lines.filter_map(|line| line.strip_suffix(" kB")?.parse::<usize>().ok()).sum::<usize>()
        };
        let (resident, lent) = (sum("Rss:"), sum("LazyFree:"));
        assert!(resident - lent < 30 << 10, "{resident} KiB, {lent} of them lent, {round}");
    }
}

#[test]
fn a_block_above_the_limit_serves_the_next_one_of_its_length() {
    let pages = Pages::new();
    pages.configure(8 * MIB, 1000);
    let mut ends = Vec::new();
    for _ in 0..6 {
        let block = pages.take(100 * MIB, 1).expect("there is memory").block;
        // SAFETY: the test owns the block, writes inside it, and does not use it after `give`.
        unsafe {
            block.write_bytes(1, 100 * MIB);
            pages.give(block);
        }
        for _ in 0..200 {
            pages.give_back_beyond_limit(MIB);
        }
        assert!(pages.idle_bytes() <= 8 * MIB);
        ends.push(pages.enter(|inside| inside.runs.end()));
    }
    assert!(ends.iter().all(|end| *end == ends[0]), "the range grows: {ends:?}");
}

#[test]
fn a_block_that_must_move_takes_its_memory_along() {
    let pages = Pages::new();
    let take = |bytes| pages.take(bytes, 1).expect("there is memory").block;
    let mut block = take(8 * MIB);
    let wall = |block: *mut u8| {
        let end = block.wrapping_add(pages.bytes_of(block));
        while take(MIB) != end {}
    };
    wall(block);
    // SAFETY: the test owns the block; it writes inside of it.
    unsafe { block.add(5 * MIB).write(7) };
    for mib in [32, 128, 512] {
        // SAFETY: the test owns the block, and uses the result from now on.
        let moved = unsafe { pages.resize_or_move(block, mib / 4 * MIB, mib * MIB, 1) };
        let moved = moved.expect("there are addresses");
        assert_ne!(moved, block, "the wall is in the way");
        if mib == 32 {
            assert_eq!(resident(block, 8 * MIB), 0, "it was in one mapping");
        }
        block = moved;
        // SAFETY: the block has that byte.
        assert_eq!(unsafe { block.add(5 * MIB).read() }, 7);
        let few = resident(block, mib * MIB);
        assert!(few <= 2, "{few} pages of a block of which one was written");
        if mib < 512 {
            wall(block);
        }
    }
    assert_eq!(pages.bytes_of(block), 576 * MIB, "with room of an eighth");
    // SAFETY: the test owns the block. Nothing uses the bytes behind its end.
    let in_place =
        unsafe { [575 * MIB, 576 * MIB, 576 * MIB - PAGE].map(|bytes| pages.resize(block, bytes)) };
    assert_eq!((in_place, pages.bytes_of(block)), ([true; 3], 576 * MIB));
    // SAFETY: as above.
    assert!(unsafe { pages.resize(block, 100 * MIB) });
    assert_eq!(pages.bytes_of(block), 100 * MIB, "the room goes too");
}

#[test]
fn a_short_block_is_copied_to_pages_that_have_memory() {
    for (mib, left) in [(2, 2 * MIB / PAGE), (4, 0)] {
        let pages = Pages::new();
        let filled = |bytes: usize| {
            let block = pages.take(bytes, 1).expect("there is memory").block;
            // SAFETY: the test owns the block.
            unsafe { block.write_bytes(7, bytes) };
            block
        };
        let (block, _wall) = (filled(mib * MIB), filled(PAGE));
        let (to, _wall) = (filled(2 * mib * MIB), filled(PAGE));
        // SAFETY: the test owns both blocks, and uses the result in place of the one that grows.
        let moved = unsafe {
            pages.give(to);
            pages.give_back_slots();
            pages.resize_or_move(block, mib * MIB, mib * MIB + MIB, 1)
        };
        assert_eq!(moved, Some(to), "{mib} MiB");
        assert_eq!(resident(block, mib * MIB), left, "pages that {mib} MiB have left");
        // SAFETY: the block has that byte.
        assert_eq!(unsafe { to.add(mib * MIB - 1).read() }, 7);
    }
}

#[test]
fn arrays_that_grow_in_turns_copy_little() {
    let pages = Pages::new();
    let take = || pages.take(64 << 10, 1).expect("there is memory").block;
    let mut blocks: Vec<_> = (0..20).map(|_| take()).collect();
    let mut moves = 0;
    for bytes in (2..=64).map(|step| step * (64 << 10)) {
        for block in &mut blocks {
            // SAFETY: the test owns the block, and uses the result from now on.
            let grown = unsafe { pages.resize_or_move(*block, bytes - (64 << 10), bytes, 1) };
            let grown = grown.expect("there is memory");
            // SAFETY: the block has these bytes.
            unsafe { grown.add(bytes - 1).write(1) };
            moves += usize::from(grown != *block);
            *block = grown;
        }
    }
    assert!(moves < 20 * 63 / 2, "{moves} of {} calls have moved a block", 20 * 63);
}

#[test]
fn a_run_that_was_not_looked_at_serves_before_a_request_is_refused() {
    let pages = Pages::new();
    let take = |count: usize| pages.take(count * PAGE, 1).map(|taken| taken.block);
    let short: Vec<_> = (0..8).map(|_| (take(1025), take(1)).0.expect("memory")).collect();
    let rest = pages.enter(|inside| inside.runs.clean_at_end()).flatten().expect("the end is free");
    assert!(take(rest.pages as usize - 1080).is_some());
    for block in short {
        // SAFETY: the test owns the blocks and does not use them again.
        unsafe { pages.give(block) };
    }
    pages.trim(usize::MAX);
    assert!(take(1070).is_some());
}

/// Tests of started heaps, which are refused memory while a test forks, and those that fork.
static FORKS: RwLock<()> = RwLock::new(());

/// No test forks until the drop.
pub(crate) fn without_forks() -> RwLockReadGuard<'static, ()> {
    FORKS.read().unwrap_or_else(PoisonError::into_inner)
}

/// No test of a started heap runs until the drop.
pub(crate) fn with_forks() -> RwLockWriteGuard<'static, ()> {
    FORKS.write().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_child_goes_on_and_the_thread_that_forks_is_let_in() {
    let _alone = with_forks();
    let pages = Pages::new();
    let kept = pages.take(MIB, 1).expect("there is memory").block;
    pages.before_fork();
    // SAFETY: the child uses only `pages`, whose lock this thread holds, and system calls, and ends
    // with `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: `alarm` has no preconditions. Its signal ends a child that waits without bound.
        unsafe { libc::alarm(20) };
        // An allocation by another fork handler that runs before that of the pages.
        let early = pages.take(MIB, 1).is_some();
        pages.in_child();
        let late = pages.take(3 * MIB, 1).is_some() && pages.has(kept);
        // SAFETY: `_exit` has no preconditions; it ends the child without running exit handlers.
        unsafe { libc::_exit(i32::from(!(early && late))) };
    }
    pages.after_fork();
    let mut status = 1;
    // SAFETY: `child` is this process's child, and `status` is valid for the write.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

/// Runs `work` on another thread while this thread holds the lock for a fork. The other thread must
/// not wait for that.
fn while_this_thread_forks<R: Send>(pages: &Pages, work: impl FnOnce() -> R + Send) -> R {
    pages.before_fork();
    let result = thread::scope(|scope| scope.spawn(work).join()).expect("no panic");
    pages.after_fork();
    result
}

/// Where the memory of the end goes back at once, it does not before the end is no part of the block.
#[test]
fn a_block_that_cannot_shrink_during_a_fork_keeps_its_contents() {
    let pages = Pages::new();
    pages.unmap_freed_blocks();
    let block = pages.take(8 * MIB, 1).expect("there is memory").block;
    let last = block.wrapping_add(8 * MIB - 1);
    // SAFETY: the test owns the block.
    unsafe { last.write(7) };
    let address = block.expose_provenance();
    while_this_thread_forks(&pages, || {
        let block = ptr::with_exposed_provenance_mut(address);
        // SAFETY: as above; no code uses what is behind the new end.
        assert!(unsafe { pages.resize(block, MIB) });
    });
    assert_eq!(pages.bytes_of(block), 8 * MIB);
    // SAFETY: as above.
    assert_eq!(unsafe { last.read() }, 7);
    // SAFETY: as above.
    assert!(unsafe { pages.resize(block, MIB) });
    assert_eq!((pages.bytes_of(block), pages.stats().used), (MIB, MIB as u64));
}

/// A limit that is set while another thread forks is heeded when the fork is over.
#[test]
fn addresses_go_back_after_a_fork_that_was_in_the_way() {
    let pages = Pages::new();
    pages.take(MIB, 1).expect("there is memory");
    while_this_thread_forks(&pages, || pages.expect_address_limit(64 << 20));
    assert_eq!(pages.range.bytes.load(Relaxed), 4 << 20);
}

#[test]
fn handlers_of_a_fork_may_allocate_and_free() {
    let pages = Pages::new();
    pages.before_fork();
    let own = pages.take(MIB, 1).expect("the thread that forks is let in");
    // SAFETY: the test owns the block and does not use it again.
    unsafe { pages.give(own.block) };
    pages.after_fork();
    assert_eq!(pages.trim(usize::MAX), MIB);
}

#[test]
fn a_fork_handler_may_fork() {
    let pages = Pages::new();
    pages.before_fork();
    pages.before_fork();
    pages.after_fork();
    let refused = thread::scope(|scope| scope.spawn(|| pages.take(MIB, 1).is_none()).join());
    assert!(refused.expect("no panic"), "the outer fork goes on");
    pages.before_fork();
    pages.in_child();
    pages.after_fork();
    let served = thread::scope(|scope| scope.spawn(|| pages.take(MIB, 1).is_some()).join());
    assert!(served.expect("no panic"), "both have ended");
}

#[test]
fn no_thread_waits_for_another_that_forks() {
    let pages = Pages::new();
    assert!(while_this_thread_forks(&pages, || pages.take(MIB, 1).is_none()), "no range yet");
    let block = pages.take(MIB, 1).expect("the refusal was not for good").block.addr();
    let at = |address: usize| pages.range.base.load(Relaxed).with_addr(address);
    while_this_thread_forks(&pages, || {
        assert!(pages.take(2 * MIB, 1).is_none() && pages.take_to_grow(MIB, 1).is_none());
        // SAFETY: the test owns the block; it uses no byte of it.
        let resize = |bytes| unsafe { pages.resize_or_move(at(block), 0, bytes, 1) };
        assert_eq!(resize(2 * MIB), None, "it cannot grow");
        assert_eq!(resize(PAGE), Some(at(block)), "it keeps its pages");
        assert_eq!((pages.bytes_of(at(block)), pages.trim(usize::MAX)), (MIB, 0));
        assert_eq!(pages.stats().used, MIB as u64);
        pages.give_back_slots();
        pages.give_back_beyond_limit(usize::MAX);
        pages.look();
    });
    // SAFETY: the test owns the block and does not use it again.
    unsafe { pages.give(at(block)) };
    assert_eq!(pages.trim(usize::MAX), MIB);
}

#[test]
fn what_is_set_during_a_fork_holds_after_it() {
    let pages = Pages::new();
    let block = pages.take(4 * MIB, 1).expect("there is memory").block;
    // SAFETY: the test owns the block and does not use it again.
    unsafe { pages.give(block) };
    pages.configure(usize::MAX, 0);
    while_this_thread_forks(&pages, || {
        pages.configure(0, 0);
        pages.reset_peak();
    });
    assert_eq!(pages.stats().used_peak, 4 << 20, "the block was in a slot");
    pages.give_back_beyond_limit(usize::MAX);
    assert_eq!((pages.stats().dirty, pages.stats().used), (0, 0), "nothing may be cached now");
    while_this_thread_forks(&pages, || pages.reset_peak());
    assert_eq!(pages.stats().used_peak, 0);
}

#[test]
fn blocks_that_are_freed_during_a_fork_are_free_in_parent_and_child() {
    const COUNT: usize = 100;
    let _alone = with_forks();
    let pages = Pages::new();
    let blocks: Vec<_> = (0..COUNT)
        .map(|_| Block { start: pages.take(MIB, 1).expect("memory").block, bytes: MIB, byte: 7 })
        .collect();
    pages.before_fork();
    let give = || {
        for block in blocks {
            block.fill();
            // SAFETY: this thread owns the block and does not use it again.
            unsafe { pages.give(block.start) };
        }
    };
    thread::scope(|scope| scope.spawn(give).join()).expect("no panic");
    // SAFETY: the child uses only `pages`, whose lock this thread holds, and system calls, and ends
    // with `_exit`.
    let child = unsafe { libc::fork() };
    // Whether all blocks are free, once: as one run, from the start of the range on.
    let all_are_free = || {
        pages.trim(usize::MAX);
        let stats = pages.stats();
        let run = pages.take(COUNT * MIB, 1).map(|taken| taken.block);
        (stats.used, stats.dirty) == (0, 0) && run == Some(pages.address(1))
    };
    if child == 0 {
        // SAFETY: `alarm` has no preconditions. Its signal ends a child that waits without bound.
        unsafe { libc::alarm(20) };
        pages.in_child();
        // SAFETY: `_exit` has no preconditions; it ends the child without running exit handlers.
        unsafe { libc::_exit(i32::from(!all_are_free())) };
    }
    pages.after_fork();
    assert!(all_are_free(), "{:?}", pages.stats());
    let mut status = 1;
    // SAFETY: `child` is this process's child, and `status` is valid for the write.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

#[test]
fn threads_go_on_while_another_forks_again_and_again() {
    const STEPS: usize = 5000;
    const REFUSED: u64 = 100;
    let (pages, left, is_done) = (Pages::new(), Mutex::new(Vec::new()), AtomicBool::new(false));
    let (served, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    let take = |bytes| {
        loop {
            match pages.take(bytes, 1) {
                Some(taken) => return taken.block,
                None => refused.fetch_add(1, Relaxed),
            };
            thread::yield_now();
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            // A request is refused in each fork, and one is served between two of them.
            let wait = |count: &AtomicU64| {
                let before = count.load(Relaxed);
                while count.load(Relaxed) == before && !is_done.load(Relaxed) {
                    thread::yield_now();
                }
            };
            while !is_done.load(Relaxed) {
                pages.before_fork();
                wait(&refused);
                pages.after_fork();
                wait(&served);
            }
        });
        let work = |seed: u8| {
            let mut live = VecDeque::new();
            let goes_on = |step: &usize| *step < STEPS || refused.load(Relaxed) < REFUSED;
            for (step, byte) in (0..).take_while(goes_on).zip((1..=200).cycle()) {
                let bytes = 1 + (usize::from(seed) + step * 7919) % (2 * MIB);
                let start = take(bytes);
                let block = Block { start, bytes, byte };
                block.fill();
                live.push_back(block);
                served.fetch_add(1, Relaxed);
                if live.len() > 20
                    && let Some(block) = live.pop_front()
                {
                    block.check(seed.into());
                    // SAFETY: this thread owns the block and does not use it again.
                    unsafe { pages.give(block.start) };
                }
            }
            left.lock().expect("no panic").extend(live);
        };
        let workers = [1, 2].map(|seed| scope.spawn(move || work(seed)));
        let ended = workers.map(thread::ScopedJoinHandle::join);
        is_done.store(true, Relaxed);
        assert!(ended.iter().all(Result::is_ok), "a worker has panicked");
    });
    for block in left.into_inner().expect("no panic") {
        block.check(0);
        // SAFETY: no thread uses the block again.
        unsafe { pages.give(block.start) };
    }
    pages.trim(usize::MAX);
    let stats = pages.stats();
    assert_eq!((stats.used, stats.dirty), (0, 0), "each block was freed once");
}

#[test]
fn a_child_whose_parent_lost_the_lock_waits_for_nobody() {
    let _alone = with_forks();
    let pages = Pages::new();
    let block = pages.take(MIB, 1).expect("there is memory").block;
    let (holds, ends) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            pages.enter(|_| {
                holds.wait();
                ends.wait();
            })
        });
        holds.wait();
        // As if the handlers had been registered during the fork.
        // SAFETY: the child uses only `pages` and system calls, and ends with `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: `alarm` has no preconditions. Its signal ends a child that waits.
            unsafe { libc::alarm(20) };
            pages.in_child();
            let refused = pages.take(2 * MIB, 1).is_none();
            // SAFETY: the child owns its copy of the block and does not use it again.
            unsafe { pages.give(block) };
            pages.before_fork();
            pages.after_fork();
            // SAFETY: `_exit` has no preconditions.
            unsafe { libc::_exit(i32::from(!refused)) };
        }
        ends.wait();
        let mut status = 1;
        // SAFETY: `child` is this process's child, and `status` is valid for the write.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    });
}

/// Takes blocks of so many bytes with a live one behind each, frees them, and returns how many bytes a
/// child gives back when it begins.
fn given_back_in_child(blocks: usize, bytes: usize) -> usize {
    let pages = Pages::new();
    let take = |bytes| pages.take(bytes, 1).expect("there is memory").block;
    let all: Vec<_> = (0..blocks).map(|_| (take(bytes), take(PAGE))).collect();
    for (block, _) in all {
        // SAFETY: the test owns the block and does not use it again.
        unsafe { pages.give(block) };
    }
    let cached = pages.idle_bytes();
    assert_eq!(cached, blocks * bytes, "nothing has gone back before");
    // As the handlers of a fork do, in the child's copy.
    pages.before_fork();
    pages.in_child();
    let returned = usize::try_from(pages.stats().returned).expect("bytes of this test");
    assert_eq!(pages.idle_bytes(), cached - returned, "the rest is still cached");
    returned
}

#[test]
fn a_child_gives_back_long_runs_in_a_bounded_number_of_calls() {
    assert_eq!(given_back_in_child(4, 8 * MIB), 32 * MIB, "all of a few long ones");
    assert_eq!(given_back_in_child(100, MIB), 64 * MIB, "64 of many");
    assert_eq!(given_back_in_child(500, 96 << 10), 0, "none that are short");
    assert_eq!(given_back_in_child(3, 256 << 10), 0, "nor below 1 MiB in all");
}
