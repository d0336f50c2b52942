#![expect(unsafe_code, reason = "an allocator is called through pointers")]
#![expect(
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "each block is freed once, as its model says, and that is what is tested"
)]

use super::super::stats::TcacheStats;
use super::super::thread_caches::FOLLOWED;
use super::*;
use crate::pages::PAGE;
use crate::pages::span::{span_blocks, span_bytes};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

mod bounds;
mod loads;
mod rooms;
mod seldom;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// An inner allocator with a budget in bytes. It counts calls of `alloc` and live bytes.
#[derive(Debug, Default)]
struct Below {
    live: AtomicUsize,
    budget: AtomicUsize,
    calls: AtomicUsize,
}

impl Below {
    fn new(budget: usize) -> Self {
        Self { budget: AtomicUsize::new(budget), ..Self::default() }
    }

    fn inner(&self) -> Inner<'_, Self> {
        Inner(self)
    }

    fn live(&self) -> usize {
        self.live.load(Relaxed)
    }
}

unsafe impl GlobalAlloc for Below {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.calls.fetch_add(1, Relaxed);
        if self.live() + layout.size() > self.budget.load(Relaxed) {
            return std::ptr::null_mut();
        }
        self.live.fetch_add(layout.size(), Relaxed);
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        self.live.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(block, layout) }
    }
}

/// Returns a cache with so many addresses for pages.
fn cache_of(addresses: usize, limit: usize, of_thread: usize) -> Cache {
    let cache = Cache::new();
    cache.pages.reserve_at_most(addresses);
    cache.configure(limit, of_thread, 10_000, 0);
    cache
}

fn cache(limit: usize, of_thread: usize) -> Cache {
    cache_of(8 << 30, limit, of_thread)
}

/// Returns a cache without pages, whose blocks all come from the inner allocator.
fn bare(limit: usize, of_thread: usize) -> Cache {
    cache_of(0, limit, of_thread)
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 8).unwrap()
}

fn class(bytes: usize) -> Class {
    Class::of(layout(bytes)).unwrap()
}

/// Returns the size in bytes of the block that serves a request.
fn held(bytes: usize) -> usize {
    Class::of(layout(bytes)).map_or(bytes.next_multiple_of(PAGE), Class::bytes)
}

/// Allocates like the global allocator: from the thread cache, or else from the cache.
fn allocate(cache: &Cache, local: Option<&ThreadCache>, bytes: usize, below: &Below) -> *mut u8 {
    let (layout, inner) = (layout(bytes), below.inner());
    let Some(class) = Class::of(layout) else {
        return cache.allocate_large(local, layout, false, &inner).block;
    };
    let hit = local.and_then(|local| local.take(class));
    hit.unwrap_or_else(|| cache.allocate(local, class, false, &inner).block)
}

/// Frees like the global allocator: to the thread cache, or else to the cache.
fn free(cache: &Cache, local: Option<&ThreadCache>, bytes: usize, block: *mut u8, below: &Below) {
    let (layout, inner) = (layout(bytes), below.inner());
    let Some(class) = Class::of(layout) else {
        return unsafe { cache.free_large(local, block, layout, &inner) };
    };
    if !local.is_some_and(|local| local.put(class, block)) {
        unsafe { cache.free(local, class, block, &inner) };
    }
}

/// Returns the bytes of all spans that are in no block.
fn between_blocks(cache: &Cache) -> usize {
    let of = |class: Class| {
        let spans = cache.depot.span_bytes(class) / span_bytes(class);
        spans * (span_bytes(class) - span_blocks(class) * class.bytes())
    };
    Class::all().filter(|class| !class.is_paged()).map(of).sum()
}

/// Checks the balances, and returns the statistics:
///
/// - live bytes = `live`
/// - bytes of the inner allocator + used pages + dirty pages = live bytes + cached bytes
/// - the counted rooms of thread caches and of the depot = the sums of their caps
fn check(cache: &Cache, below: &Below, live: usize) -> TcacheStats {
    let (stats, pages) = (cache.stats(), cache.pages.stats());
    assert_eq!(stats.live_bytes, live as u64, "{stats:?}");
    let all = below.live() as u64 + pages.used + pages.dirty;
    let free = stats.cached_bytes() + stats.span_bytes;
    let known = stats.live_bytes + free + between_blocks(cache) as u64;
    assert_eq!(all, known, "{stats:?}");
    let rooms: usize = cache.thread_caches.iter().map(ThreadCache::room_bytes).sum();
    assert_eq!(cache.thread_caches.room_bytes(), rooms, "room of thread caches");
    assert_eq!(cache.depot.room_bytes(), cache.depot.cap_bytes(), "room of the depot");
    stats
}

/// Compares random requests with a list of the live blocks. Three thread caches and a thread
/// without one take part. No two blocks overlap, each block keeps the bytes that were written to
/// it, and the bytes of each place are what the program and the cache have.
#[test]
fn no_block_has_two_owners_and_all_bytes_are_counted_at_each_step() {
    let seed = std::env::var("SEED").map_or(7, |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let below = Below::new(usize::MAX);
    let cache = cache(3 * MIB, 256 * KIB);
    let thread_caches: Vec<_> = (0..3).map(|_| cache.thread_caches.enter().unwrap()).collect();
    let mut live: BTreeMap<usize, (usize, u8)> = BTreeMap::new();
    let mut sum = 0;
    for step in 0..if cfg!(miri) { 600 } else { 60_000 } {
        let local = thread_caches.get(random.random_range(0..4)).copied();
        if live.len() > 200 || (random.random_range(0..2) == 0 && !live.is_empty()) {
            let at = *live.keys().nth(random.random_range(0..live.len())).unwrap();
            let (bytes, mark) = live.remove(&at).unwrap();
            let block = std::ptr::with_exposed_provenance_mut::<u8>(at);
            for byte in [0, bytes / 2, bytes - 1] {
                assert_eq!(unsafe { block.add(byte).read() }, mark, "step {step}");
            }
            free(&cache, local, bytes, block, &below);
            sum -= held(bytes);
        } else {
            let most = [100, 2000, 300 * KIB, 2 * MIB][random.random_range(0..4)];
            let bytes = random.random_range(0..most) + 1;
            let block = allocate(&cache, local, bytes, &below);
            let at = block.expose_provenance();
            let before = live.range(..=at).next_back();
            assert!(before.is_none_or(|(start, (bytes, _))| start + held(*bytes) <= at));
            assert!(live.range(at..).next().is_none_or(|(next, _)| at + held(bytes) <= *next));
            let mark = u8::try_from(random.random_range(0..256)).unwrap();
            unsafe { block.write_bytes(mark, bytes) };
            live.insert(at, (bytes, mark));
            sum += held(bytes);
        }
        if random.random_range(0..500) == 0 {
            cache.look(step / 10, local, &below.inner());
        }
        check(&cache, &below, sum);
    }
    let stats = cache.stats();
    let is_much = stats.hits > 5000 && stats.flushes > 100 && stats.refills > 100;
    assert!(is_much || cfg!(miri), "{stats:?}");
    for (at, (bytes, _)) in live {
        free(&cache, None, bytes, std::ptr::with_exposed_provenance_mut(at), &below);
    }
    for local in thread_caches {
        cache.leave(local);
    }
    assert_eq!(check(&cache, &below, 0).thread_cache_bytes, 0);
    cache.clear(None, &below.inner());
    assert_eq!(check(&cache, &below, 0).cached_bytes(), 0);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no pages of ours")]
fn of_the_blocks_that_all_threads_share_the_newest_serves_first() {
    let below = Below::new(usize::MAX);
    let cache = cache(64 * MIB, MIB);
    let class = class(20 * KIB);
    let count = batch_len(class);
    let blocks: Vec<_> = (0..count).map(|_| allocate(&cache, None, 20 * KIB, &below)).collect();
    let mut batch = Batch::EMPTY;
    for block in &blocks {
        batch.add(*block);
    }
    cache.depot.put(class, &batch, &cache.pages);
    for block in blocks.iter().rev() {
        assert_eq!(allocate(&cache, None, 20 * KIB, &below), *block);
    }
}

/// A class has an array of recent blocks once a whole batch of them came: fewer are in their spans,
/// so that a program with a few blocks of each size does not touch a page for each.
#[test]
#[cfg_attr(miri, ignore = "Miri has no pages of ours")]
fn few_blocks_of_a_class_go_to_their_spans() {
    let below = Below::new(usize::MAX);
    let cache = cache(64 * MIB, MIB);
    let class = class(20 * KIB);
    for (count, recent) in [(batch_len(class) - 1, 0), (batch_len(class), batch_len(class))] {
        let mut batch = Batch::EMPTY;
        (0..count).for_each(|_| batch.add(allocate(&cache, None, 20 * KIB, &below)));
        cache.depot.put(class, &batch, &cache.pages);
        assert_eq!(cache.depot.recent_bytes(class), recent * class.bytes());
    }
}

/// A large block that is freed into a cache full of small blocks is cached, and serves the next
/// request.
#[test]
#[cfg_attr(miri, ignore = "Miri has no pages of ours")]
fn a_freed_large_block_is_cached_beside_many_small_ones() {
    let below = Below::new(usize::MAX);
    let cache = cache(32 * MIB, MIB);
    let local = cache.thread_caches.enter();
    let count = if cfg!(miri) { 100 } else { 400_000 };
    let blocks: Vec<_> = (0..count).map(|_| allocate(&cache, local, 64, &below)).collect();
    let large = allocate(&cache, local, 12 * MIB, &below);
    for block in blocks {
        free(&cache, local, 64, block, &below);
    }
    let before = check(&cache, &below, held(12 * MIB));
    free(&cache, local, 12 * MIB, large, &below);
    let after = check(&cache, &below, 0);
    assert_eq!(after.page_bytes, before.page_bytes + 12 * MIB as u64);
    assert_eq!(allocate(&cache, local, 12 * MIB, &below), large);
}

#[test]
fn out_of_memory_gives_back_cached_memory_and_retries() {
    let below = Below::new(64 * KIB);
    let cache = bare(64 * MIB, MIB);
    let local = cache.thread_caches.enter();
    for bytes in [32 * KIB, 16 * KIB, 64] {
        let block = allocate(&cache, local, bytes, &below);
        free(&cache, local, bytes, block, &below);
    }
    assert_eq!(check(&cache, &below, 0).cached_bytes(), (48 * KIB + 64) as u64);
    let all = allocate(&cache, local, 60 * KIB, &below);
    assert!(!all.is_null());
    assert_eq!(check(&cache, &below, 60 * KIB).cached_bytes(), 0);
    let before = cache.stats();
    assert!(allocate(&cache, local, 5000, &below).is_null());
    let after = check(&cache, &below, 60 * KIB);
    assert_eq!((after.allocations, after.failures), (before.allocations + 1, 1));
    assert_eq!((after.hits, after.frees), (before.hits, before.frees), "neither hit nor free");
    free(&cache, local, 60 * KIB, all, &below);
    assert!(!allocate(&cache, local, 64, &below).is_null(), "the next call works");
}

/// Each step moves half of what no thread needed to its span, which goes back when it is whole.
#[test]
#[cfg_attr(miri, ignore = "Miri has no pages of ours")]
fn blocks_that_no_request_needs_decay_to_none() {
    let below = Below::new(usize::MAX);
    let cache = cache(512 * MIB, MIB);
    let blocks: Vec<_> = (0..256).map(|_| allocate(&cache, None, 1000, &below)).collect();
    for block in blocks {
        free(&cache, None, 1000, block, &below);
    }
    let idle = || cache.stats().depot_bytes + cache.stats().span_bytes;
    let before = idle();
    let look = |now| cache.look(now, None, &below.inner());
    look(999);
    assert_eq!(idle(), before, "not before a tenth of the time");
    (1..=12).for_each(|second| look(1000 * second));
    check(&cache, &below, 0);
    assert_eq!(idle(), 0);
}

/// A span of which one block is in use loses the memory of its free pages.
#[test]
#[cfg_attr(miri, ignore = "Miri has no pages of ours")]
fn a_span_that_nobody_uses_gives_back_its_free_pages() {
    let below = Below::new(usize::MAX);
    let cache = cache(512 * MIB, MIB);
    let blocks: Vec<_> = (0..64).map(|_| allocate(&cache, None, 1000, &below)).collect();
    let kept = blocks[20];
    unsafe { kept.write_bytes(7, 1000) };
    for block in blocks.into_iter().filter(|block| *block != kept) {
        free(&cache, None, 1000, block, &below);
    }
    assert_eq!(cache.pages.stats().returned, 0);
    (1..=30).for_each(|second| cache.look(1000 * second, None, &below.inner()));
    let returned = cache.pages.stats().returned;
    // A block of 1008 bytes is in two pages at most.
    assert!(returned >= (span_bytes(class(1000)) - 2 * PAGE) as u64, "{returned}");
    assert!((0..1000).all(|at| unsafe { kept.add(at).read() } == 7));
    let again: Vec<_> = (0..63).map(|_| allocate(&cache, None, 1000, &below)).collect();
    again.iter().for_each(|block| unsafe { block.write_bytes(1, 1000) });
    assert!((0..1000).all(|at| unsafe { kept.add(at).read() } == 7));
    check(&cache, &below, 64 * held(1000));
}

/// A block that is back in its span, an address inside of a block, the bytes of a span in which no block
/// fits any more, and a block of another class end the program when they are freed. Each case has a process of its own, in which this test frees.
#[test]
#[cfg_attr(miri, ignore = "Miri has no pages of ours, and no processes")]
fn a_free_of_no_block_of_a_span_ends_the_program() {
    let Ok(case) = std::env::var("FREES") else {
        let name = "tcache::cache::tests::a_free_of_no_block_of_a_span_ends_the_program";
        for (case, ends) in [
            ("once", false),
            ("inside", true),
            ("behind the last", true),
            ("other class", true),
            ("twice", true),
        ] {
            let mut command = std::process::Command::new(std::env::current_exe().unwrap());
            let output = command.args(["--exact", name]).env("FREES", case).output().unwrap();
            let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
            assert_eq!(signal, ends.then_some(libc::SIGABRT), "{case}: {output:?}");
            assert_eq!(output.status.success(), !ends, "{case}: {output:?}");
        }
        return;
    };
    let below = Below::new(usize::MAX);
    let cache = cache(64 * MIB, MIB);
    let [block, _kept] = [(); 2].map(|()| allocate(&cache, None, 1000, &below));
    let frees = |bytes: usize, block: *mut u8| {
        let mut batch = Batch::EMPTY;
        batch.add(block);
        cache.depot.put(class(bytes), &batch, &cache.pages);
        cache.depot.clear(&cache.pages);
    };
    match case.as_str() {
        "inside" => frees(1000, block.wrapping_add(16)),
        // The first block of the span; 16 bytes of that are left.
        "behind the last" => frees(1000, block.wrapping_add(65 * class(1000).bytes())),
        "other class" => frees(2000, block),
        "twice" => (0..2).for_each(|_| frees(1000, block)),
        _ => frees(1000, block),
    }
}

/// Blocks that a thread does not request again are taken back from its thread cache, and another
/// thread can reuse them.
#[test]
#[cfg_attr(miri, ignore = "Miri has no pages of ours")]
fn blocks_in_the_cache_of_a_parked_thread_are_taken_back() {
    let below = Below::new(usize::MAX);
    let cache = cache(64 * MIB, MIB);
    let parked = cache.thread_caches.enter();
    let sizes = [64, 5000, 100 * KIB];
    let blocks: Vec<_> = sizes.iter().map(|b| allocate(&cache, parked, *b, &below)).collect();
    for (bytes, block) in sizes.iter().zip(&blocks) {
        free(&cache, parked, *bytes, *block, &below);
    }
    parked.unwrap().looked_at.store(1000, Relaxed);
    let idle = || check(&cache, &below, 0).thread_cache_bytes;
    let before = idle();
    cache.look(2000, None, &below.inner());
    cache.look(3000, None, &below.inner());
    assert_eq!(idle(), before, "it has made a request just before");
    cache.look(4000, None, &below.inner());
    cache.look(5000, None, &below.inner());
    assert_eq!(idle(), 0);
    assert_eq!(allocate(&cache, None, 100 * KIB, &below), blocks[2]);
    let block = allocate(&cache, parked, 64, &below);
    free(&cache, parked, 64, block, &below);
    assert!(idle_of(&cache, &below, 100 * KIB) > 0, "it caches again");
}

fn idle_of(cache: &Cache, below: &Below, live: usize) -> u64 {
    check(cache, below, held(live)).thread_cache_bytes
}

/// A thread at work keeps its blocks, whoever looks.
#[test]
fn no_block_is_taken_from_a_thread_at_work() {
    let below = Below::new(usize::MAX);
    let cache = bare(64 * MIB, MIB);
    let local = cache.thread_caches.enter().unwrap();
    let block = allocate(&cache, Some(local), 64, &below);
    free(&cache, Some(local), 64, block, &below);
    let at_work = local.hold().unwrap();
    assert!(local.stop().is_none());
    cache.clear(None, &below.inner());
    drop(at_work);
    assert_eq!(cache.stats().thread_cache_bytes, 64);
    let stopped = local.stop().unwrap();
    assert!(local.stop().is_none() && local.take(class(64)).is_none());
    let other = allocate(&cache, Some(local), 64, &below);
    free(&cache, Some(local), 64, other, &below);
    drop(stopped);
    assert_eq!(local.take(class(64)), Some(block));
}

/// With 1000 parked threads that each cached blocks, one more thread hits in at least 99 % of its
/// requests.
#[test]
#[cfg_attr(miri, ignore = "Miri has no pages of ours")]
fn a_thread_beside_a_thousand_parked_ones_keeps_its_hit_rate() {
    let below = Below::new(usize::MAX);
    let cache = cache(64 * MIB, MIB);
    let work = |local: Option<&ThreadCache>| {
        for bytes in [16, 64, 1000, 5000, 20_000] {
            let blocks: Vec<_> = (0..30).map(|_| allocate(&cache, local, bytes, &below)).collect();
            for block in blocks {
                free(&cache, local, bytes, block, &below);
            }
        }
    };
    let parked: Vec<_> = (0..1000).map(|_| cache.thread_caches.enter()).collect();
    for (number, local) in parked.iter().enumerate() {
        work(*local);
        cache.look(100 * number as u64, *local, &below.inner());
    }
    let stats = check(&cache, &below, 0);
    assert!(stats.thread_cache_bytes <= stats.cached_limit_bytes / 2, "{stats:?}");
    let last = cache.thread_caches.enter();
    work(last);
    let before = cache.stats();
    (0..100).for_each(|_| work(last));
    let after = check(&cache, &below, 0);
    let (hits, all) = (after.hits - before.hits, after.allocations - before.allocations);
    assert!(100 * hits >= 99 * all, "{hits} of {all}");
}

#[test]
#[cfg_attr(miri, ignore = "a thousand threads")]
fn a_thousand_short_threads_leave_no_block_behind() {
    let below = Below::new(usize::MAX);
    let cache = cache(64 * MIB, MIB);
    let work = |local: &'static ThreadCache| {
        for bytes in [16, 64, 1000, 5000, 100 * KIB, MIB] {
            let blocks: Vec<_> =
                (0..30).map(|_| allocate(&cache, Some(local), bytes, &below)).collect();
            for block in blocks {
                free(&cache, Some(local), bytes, block, &below);
            }
        }
        cache.leave(local);
    };
    for _ in 0..500 {
        std::thread::scope(|scope| {
            scope.spawn(|| work(cache.thread_caches.enter().unwrap()));
            scope.spawn(|| work(cache.thread_caches.enter().unwrap()));
        });
    }
    let stats = check(&cache, &below, 0);
    assert_eq!(stats.thread_cache_bytes, 0, "{stats:?}");
    assert!(stats.thread_caches <= 2, "{stats:?}");
    cache.clear(None, &below.inner());
    assert_eq!(check(&cache, &below, 0).cached_bytes(), 0);
}

/// A thread that reads the clock itself keeps the classes that it uses.
#[test]
fn a_visit_leaves_a_thread_what_it_uses() {
    let below = Below::new(usize::MAX);
    let cache = bare(64 * MIB, MIB);
    let local = cache.thread_caches.enter();
    for second in 1..6 {
        let block = allocate(&cache, local, 64, &below);
        free(&cache, local, 64, block, &below);
        cache.look(1000 * second, local, &below.inner());
        assert_eq!(check(&cache, &below, 0).thread_cache_bytes, 64, "after {second} s");
    }
}

/// A thread that reads the clock gives up what it did not need since it last did.
#[test]
#[cfg_attr(miri, ignore = "Miri has no pages of ours")]
fn what_a_thread_does_not_need_leaves_its_cache() {
    let below = Below::new(usize::MAX);
    let cache = cache(64 * MIB, MIB);
    let local = cache.thread_caches.enter();
    let blocks: Vec<_> = (0..16).map(|_| allocate(&cache, local, 1000, &below)).collect();
    for block in blocks {
        free(&cache, local, 1000, block, &below);
    }
    let blocks = || check(&cache, &below, 0).thread_cache_bytes / held(1000) as u64;
    let before = blocks();
    assert!(before >= 8, "{before}");
    for second in 1..10 {
        let block = allocate(&cache, local, 64, &below);
        free(&cache, local, 64, block, &below);
        cache.look(1000 * second, local, &below.inner());
        if second == 1 {
            assert!(blocks() >= 16, "as many were just needed");
        }
    }
    assert_eq!(blocks(), 0);
}

/// Without decay too, runs that were freed a moment ago are part of the bound.
#[test]
#[cfg_attr(miri, ignore = "Miri has no pages of ours")]
fn large_blocks_beyond_the_limit_do_not_stay_in_slots() {
    let below = Below::new(usize::MAX);
    let cache = cache_of(8 << 30, 4 * MIB, MIB);
    cache.configure(4 * MIB, MIB, 0, 0);
    let local = cache.thread_caches.enter();
    let sizes: Vec<usize> = (0..16).map(|more| 8 * MIB + more * PAGE).collect();
    let blocks: Vec<_> =
        sizes.iter().map(|bytes| allocate(&cache, local, *bytes, &below)).collect();
    for (bytes, block) in sizes.iter().zip(blocks) {
        free(&cache, local, *bytes, block, &below);
    }
    assert_eq!(cache.pages.stats().slots, 0);
}

/// Blocks of the inner allocator, which a thread cannot give back when it ends, serve the next one.
#[test]
fn blocks_that_an_ended_thread_leaves_serve_the_next() {
    let below = Below::new(usize::MAX);
    let cache = bare(64 * MIB, MIB);
    let local = cache.thread_caches.enter().unwrap();
    let block = allocate(&cache, Some(local), 64, &below);
    free(&cache, Some(local), 64, block, &below);
    cache.leave(local);
    assert_eq!(check(&cache, &below, 0).thread_cache_bytes, 64);
    let next = cache.thread_caches.enter().unwrap();
    assert_eq!(allocate(&cache, Some(next), 64, &below), block);
}

/// While another thread forks, the inner allocator serves requests, and blocks that come back wait
/// until the fork is over.
#[test]
#[cfg_attr(miri, ignore = "Miri has no pages of ours")]
fn no_block_is_lost_while_another_thread_forks() {
    let below = Below::new(usize::MAX);
    let cache = cache(64 * MIB, MIB);
    let blocks: Vec<_> = (0..8).map(|_| allocate(&cache, None, 64, &below)).collect();
    let blocks: Vec<_> = blocks.into_iter().map(<*mut u8>::expose_provenance).collect();
    cache.depot.before_fork(&cache.pages);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for block in &blocks {
                free(&cache, None, 64, std::ptr::with_exposed_provenance_mut(*block), &below);
            }
            let other = allocate(&cache, None, 64, &below);
            assert!(!cache.pages.has(other));
            free(&cache, None, 64, other, &below);
        });
    });
    cache.depot.after_fork();
    assert_eq!(below.live(), 0);
    let taken = allocate(&cache, None, 64, &below);
    assert!(blocks.contains(&taken.addr()));
    check(&cache, &below, 64);
}

/// A signal handler that has interrupted its own thread where that has the lock of the pages forks,
/// while another thread waits for that lock with those of the classes.
#[test]
#[cfg_attr(miri, ignore = "Miri has no pages of ours")]
fn a_fork_in_a_handler_does_not_wait_for_a_thread_that_waits_for_the_pages() {
    let (done, ends) = std::sync::mpsc::channel();
    // It is not joined if it never ends.
    std::thread::spawn(move || {
        let (cache, below) = (cache(64 * MIB, MIB), Below::new(usize::MAX));
        let block = allocate(&cache, None, 64, &below);
        let has_classes = AtomicBool::new(false);
        std::thread::scope(|scope| {
            cache.pages.holding(|| {
                scope.spawn(|| {
                    cache.depot.before_fork(&cache.pages);
                    has_classes.store(true, SeqCst);
                    cache.pages.holding(|| ());
                    cache.depot.after_fork();
                });
                while !has_classes.load(SeqCst) {
                    std::thread::yield_now();
                }
                cache.depot.before_fork(&cache.pages);
                cache.depot.after_fork();
            });
        });
        free(&cache, None, 64, block, &below);
        done.send(check(&cache, &below, 0).frees).unwrap();
    });
    let ended = ends.recv_timeout(std::time::Duration::from_secs(20));
    assert!(ended.is_ok(), "the fork waits");
}

/// In a child process, new threads reuse the thread caches of the threads that do not exist there,
/// except for a cache on which a thread worked at the time of the fork.
#[test]
fn a_forked_child_reuses_the_thread_caches_of_absent_threads() {
    let cache = bare(64 * MIB, MIB);
    let [own, other, held] = [(); 3].map(|()| cache.thread_caches.enter().unwrap());
    let _held = held.hold();
    cache.in_child(own);
    assert!(std::ptr::eq(cache.thread_caches.enter().unwrap(), other));
    assert_eq!(cache.thread_caches.iter().count(), 3);
    cache.thread_caches.enter().unwrap();
    assert_eq!(cache.thread_caches.iter().count(), 4, "the held one is nobody's");
}

/// One thread allocates blocks and sends them to a second, which frees them, so that they return
/// through the depot. A third thread trims and lets blocks decay meanwhile.
#[test]
fn blocks_freed_by_another_thread_stay_intact_and_none_is_lost() {
    let below = Below::new(usize::MAX);
    let cache = cache(4 * MIB, 256 * KIB);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (to_other, from_other) = std::sync::mpsc::sync_channel::<(usize, usize)>(64);
        let (cache, below, done) = (&cache, &below, &done);
        scope.spawn(move || {
            let local = cache.thread_caches.enter().unwrap();
            let mut random = StdRng::seed_from_u64(7);
            for _ in 0..if cfg!(miri) { 300 } else { 60_000 } {
                let bytes = [64, 4 * KIB, 64 * KIB, 300 * KIB][random.random_range(0..4)];
                let block = allocate(cache, Some(local), bytes, below);
                unsafe { block.write(1) };
                to_other.send((block.expose_provenance(), bytes)).unwrap();
            }
            cache.leave(local);
        });
        scope.spawn(move || {
            let local = cache.thread_caches.enter().unwrap();
            for (at, bytes) in from_other {
                let block = std::ptr::with_exposed_provenance_mut::<u8>(at);
                assert_eq!(unsafe { block.replace(2) }, 1, "nobody else wrote to it");
                free(cache, Some(local), bytes, block, below);
            }
            cache.leave(local);
            done.store(true, Relaxed);
        });
        scope.spawn(move || {
            let mut now = 0;
            while !done.load(Relaxed) {
                now += 1000;
                cache.look(now, None, &below.inner());
                cache.trim(64 * KIB);
                std::thread::yield_now();
            }
        });
    });
    check(&cache, &below, 0);
    cache.clear(None, &below.inner());
    assert_eq!(check(&cache, &below, 0).cached_bytes(), 0);
}

/// A thread at work takes all steps, and parked threads give their blocks back all the same.
#[test]
fn parked_threads_are_visited_beside_one_at_work() {
    let below = Below::new(usize::MAX);
    let cache = bare(64 * MIB, MIB);
    let [own, parked] = [(); 2].map(|()| cache.thread_caches.enter().unwrap());
    for local in [own, parked] {
        let block = allocate(&cache, Some(local), 5000, &below);
        free(&cache, Some(local), 5000, block, &below);
    }
    assert!(parked.bytes() > 0);
    for second in 1..=5 {
        cache.look(1000 * second, Some(own), &below.inner());
        cache.look(1000 * second, None, &below.inner());
    }
    assert_eq!((parked.bytes(), parked.room_bytes()), (0, 0));
}

/// What parked threads may hold is left to those at work, once it was taken back.
#[test]
fn a_thread_at_work_has_the_part_of_those_that_are_parked() {
    let cache = bare(64 * MIB, 64 * MIB);
    let caches: Vec<_> = (0..100).map(|_| cache.thread_caches.enter().unwrap()).collect();
    let among_all = cache.most_of_thread(caches[0]);
    caches[0].looks(10_000);
    cache.thread_caches.survey(9000);
    let alone = cache.most_of_thread(caches[0]);
    assert!(alone > 10 * among_all && alone <= 16 * MIB, "{alone} after {among_all}");
}

#[test]
fn a_thread_that_begins_or_ends_looks_at_no_other_one() {
    let cache = cache(MIB, 64 * KIB);
    let living: Vec<_> = (0..1000).map(|_| cache.thread_caches.enter().unwrap()).collect();
    cache.leave(living[500]);
    let before = FOLLOWED.get();
    for _ in 0..100 {
        cache.leave(cache.thread_caches.enter().unwrap());
    }
    assert_eq!(FOLLOWED.get() - before, 0, "links from one thread cache to the next");
    assert_eq!(cache.thread_caches.iter().count(), 1000);
}

/// The slots of the others have gone back, and each page of them is a fault.
#[test]
fn threads_that_begin_get_warm_thread_caches_first() {
    let cache = cache(MIB, 64 * KIB);
    let left: Vec<_> = (0..40).map(|_| cache.thread_caches.enter().unwrap()).collect();
    for local in &left {
        cache.leave(local);
    }
    let warm = |local: &ThreadCache| left[..16].iter().any(|other| std::ptr::eq(*other, local));
    for _ in 0..3 {
        let next: Vec<_> = (0..16).map(|_| cache.thread_caches.enter().unwrap()).collect();
        assert!(next.iter().all(|local| warm(local)));
        for local in &next {
            cache.leave(local);
        }
    }
    let all: Vec<_> = (0..40).map(|_| cache.thread_caches.enter().unwrap()).collect();
    assert_eq!((all.len(), cache.thread_caches.iter().count()), (40, 40), "none is lost");
}

#[test]
fn a_look_at_a_thread_cache_finds_all_of_its_blocks_in_the_bins_with_room() {
    let (cache, below) = (cache(64 * MIB, 8 * MIB), Below::default());
    let local = cache.thread_caches.enter().unwrap();
    let used = [16, 1000, 5 * KIB, 40 * KIB].map(|bytes| Class::of(layout(bytes)).unwrap());
    for class in used {
        let block = cache.allocate(Some(local), class, false, &below.inner()).block;
        unsafe { cache.free(Some(local), class, block, &below.inner()) };
    }
    assert_eq!(local.roomy().collect::<Vec<_>>(), used);
    let all: usize = Class::all().map(|class| local.counted(class).blocks * class.bytes()).sum();
    assert_eq!((local.bytes(), all > 0), (all, true));
    cache.leave(local);
    assert_eq!(Class::all().map(|class| local.counted(class).blocks).sum::<usize>(), 0);
}
