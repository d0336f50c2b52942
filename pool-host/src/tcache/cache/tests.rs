#![expect(unsafe_code, reason = "an allocator is called through pointers")]
#![expect(
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "each block is freed once, as its model says, and that is what is tested"
)]

use super::super::aging::MOST;
use super::super::bound::ATTEMPTS;
use super::super::held::AT_ONCE;
use super::super::stats::TcacheStats;
use super::*;
use crate::depot::MAGAZINE;
use crate::pages::PAGE;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

mod loads;

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

fn cache(limit: usize, lease: usize) -> Cache {
    let cache = Cache::new();
    cache.configure(limit, lease, 10_000, 0);
    cache
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

/// Checks the bound and the balances, and returns the statistics:
///
/// - leased bytes <= cached limit / 2
/// - live bytes = `live`
/// - bytes of the inner allocator + used pages + dirty pages = live bytes + cached bytes
fn check(cache: &Cache, below: &Below, live: usize) -> TcacheStats {
    let (stats, pages) = (cache.stats(), cache.pages.stats());
    assert!(stats.leased_bytes <= stats.cached_limit_bytes / 2, "{stats:?}");
    assert_eq!(stats.live_bytes, live as u64, "{stats:?}");
    let all = below.live() as u64 + pages.used + pages.dirty;
    assert_eq!(all, stats.live_bytes + stats.cached_bytes(), "{stats:?}");
    stats
}

/// Compares random requests with a list of the live blocks. Three thread caches and a thread
/// without one take part. No two blocks overlap, each block keeps the bytes that were written to
/// it, and the bound holds at each step.
#[test]
fn no_block_has_two_owners_and_the_bound_holds_at_each_step() {
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
    let is_much = stats.hits > 5000 && stats.evictions > 30 && stats.refills > 100;
    assert!(is_much || cfg!(miri), "{stats:?}");
    for (at, (bytes, _)) in live {
        free(&cache, None, bytes, std::ptr::with_exposed_provenance_mut(at), &below);
    }
    for local in thread_caches {
        cache.leave(local);
    }
    assert_eq!(check(&cache, &below, 0).thread_cache_bytes, 0);
    cache.clear(&below.inner());
    assert_eq!((below.live(), cache.depot.leases.leased()), (0, 0));
}

#[test]
fn the_newest_block_is_reused_first_and_the_oldest_is_evicted_first() {
    let below = Below::new(usize::MAX);
    let cache = cache(160 * KIB, 0);
    let (of_20, of_30) = (20 * KIB, 30 * KIB);
    let blocks: Vec<_> = (0..3).map(|_| allocate(&cache, None, of_20, &below)).collect();
    let other = allocate(&cache, None, of_30, &below);
    for block in &blocks {
        free(&cache, None, of_20, *block, &below);
    }
    let newest = allocate(&cache, None, of_20, &below);
    assert_eq!(newest, blocks[2]);
    free(&cache, None, of_20, newest, &below);
    // The depot may lease 80 KiB and caches 60 KiB. A block of 30 KiB more does not fit, so the
    // oldest block is evicted.
    free(&cache, None, of_30, other, &below);
    let stats = check(&cache, &below, 0);
    assert_eq!((stats.evictions, stats.depot_bytes), (1, 70 * KIB as u64));
    assert_eq!(allocate(&cache, None, of_20, &below), blocks[2]);
    assert_eq!(allocate(&cache, None, of_20, &below), blocks[1]);
    let fresh = below.calls.load(Relaxed);
    allocate(&cache, None, of_20, &below);
    assert_eq!(below.calls.load(Relaxed), fresh + 1, "the first is gone");
}

/// A large block that is freed into a cache full of small blocks is cached, and no small block is
/// evicted for it.
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
    assert_eq!(after.evictions, before.evictions);
    assert_eq!(after.page_bytes, before.page_bytes + 12 * MIB as u64);
    assert_eq!(allocate(&cache, local, 12 * MIB, &below), large);
}

#[test]
fn out_of_memory_gives_back_cached_memory_and_retries() {
    let below = Below::new(64 * KIB);
    let cache = cache(64 * MIB, MIB);
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

#[test]
fn blocks_that_no_request_needs_decay_to_none() {
    let below = Below::new(usize::MAX);
    let cache = cache(512 * MIB, MIB);
    let blocks = || (0..64).map(|_| allocate(&cache, None, 32 * KIB, &below));
    for block in blocks().collect::<Vec<_>>() {
        free(&cache, None, 32 * KIB, block, &below);
    }
    let idle = || cache.stats().depot_bytes / (32 * KIB) as u64;
    let look = |now| cache.look(now, None, &below.inner());
    look(999);
    assert_eq!(idle(), 64, "not before a tenth of the time");
    // All blocks were in use since the previous step. From here on, each step evicts at least half
    // of the cached blocks.
    look(1000);
    let mut before = idle();
    for second in 2..=12 {
        look(1000 * second);
        assert!(idle() <= before.div_ceil(2), "{second} s: {} of {before}", idle());
        before = idle();
    }
    assert_eq!(idle(), 0);
    let block = allocate(&cache, None, 32 * KIB, &below);
    free(&cache, None, 32 * KIB, block, &below);
    look(3_600_000);
    check(&cache, &below, 0);
    assert_eq!(idle(), 0, "an hour went by at once");
}

/// One call evicts at most `MOST` blocks, however many have decayed. Later calls evict the rest.
#[test]
#[cfg_attr(miri, ignore = "thousands of blocks")]
fn one_call_evicts_a_bounded_number_of_decayed_blocks() {
    let below = Below::new(usize::MAX);
    let cache = cache(512 * MIB, MIB);
    let blocks: Vec<_> = (0..200_000).map(|_| allocate(&cache, None, 64, &below)).collect();
    for block in blocks {
        free(&cache, None, 64, block, &below);
    }
    cache.look(1_000_000, None, &below.inner());
    cache.look(2_000_000, None, &below.inner());
    let mut before = cache.stats().decayed;
    assert!((1..=2 * MOST).contains(&before), "{before}");
    let mut calls = 0;
    while cache.stats().depot_bytes > 0 {
        calls += 1;
        cache.look(2_000_000 + 1000 * calls, None, &below.inner());
        let now = cache.stats().decayed;
        assert!(now - before <= MOST && calls < 100, "{} in call {calls}", now - before);
        before = now;
    }
    assert_eq!(below.live(), 0);
}

/// To make room for one batch, the depot evicts at most `ATTEMPTS` other batches.
#[test]
#[cfg_attr(miri, ignore = "thousands of blocks")]
fn a_free_evicts_a_bounded_number_of_blocks() {
    let below = Below::new(usize::MAX);
    let cache = cache(2 * MIB, 0);
    let block = allocate(&cache, None, 60 * KIB, &below);
    let small: Vec<_> = (0..16_384).map(|_| allocate(&cache, None, 64, &below)).collect();
    for block in small {
        free(&cache, None, 64, block, &below);
    }
    let before = cache.stats().evictions;
    free(&cache, None, 60 * KIB, block, &below);
    let evicted = cache.stats().evictions - before;
    assert!(evicted <= (ATTEMPTS * MAGAZINE + 1) as u64, "{evicted} blocks");
    check(&cache, &below, 0);
}

/// Cached blocks that a thread does not request again are taken back from its thread cache, and
/// another thread can reuse them. A class that the thread does request keeps its lease.
#[test]
fn blocks_in_the_cache_of_a_parked_thread_are_taken_back() {
    let below = Below::new(usize::MAX);
    let cache = cache(64 * MIB, MIB);
    let parked = cache.thread_caches.enter();
    let sizes = [64, 5000, 100 * KIB];
    let blocks: Vec<_> = sizes.iter().map(|b| allocate(&cache, parked, *b, &below)).collect();
    for (bytes, block) in sizes.iter().zip(&blocks) {
        free(&cache, parked, *bytes, *block, &below);
    }
    let idle = check(&cache, &below, 0).thread_cache_bytes;
    assert_eq!(idle, sizes.iter().map(|b| held(*b) as u64).sum::<u64>());
    cache.look(1000, None, &below.inner());
    assert_eq!(check(&cache, &below, 0).thread_cache_bytes, idle, "it was just used");
    let block = allocate(&cache, parked, 64, &below);
    assert_eq!(block, blocks[0], "the first look only called it");
    cache.look(2000, None, &below.inner());
    assert_eq!(check(&cache, &below, 64).thread_cache_bytes, 0);
    assert_eq!(cache.leased_locally.load(Relaxed), held(64) * 16, "what it uses stays leased");
    free(&cache, parked, 64, block, &below);
    assert_eq!(allocate(&cache, None, 5000, &below), blocks[1]);
    assert_eq!(allocate(&cache, parked, 64, &below), blocks[0]);
}

/// With 1000 parked threads that each cached blocks, one more thread hits in at least 99 % of its
/// requests.
#[test]
#[cfg_attr(miri, ignore = "a thousand thread caches")]
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
    let half = stats.cached_limit_bytes / 4;
    assert!(cache.leased_locally.load(Relaxed) as u64 <= half, "{stats:?}");
    let last = cache.thread_caches.enter();
    work(last);
    let before = cache.stats();
    (0..100).for_each(|_| work(last));
    let after = check(&cache, &below, 0);
    let (hits, all) = (after.hits - before.hits, after.allocations - before.allocations);
    assert!(100 * hits >= 99 * all, "{hits} of {all}");
}

/// A program that grows by more than its cached bytes does not need the cached blocks.
#[test]
fn growth_of_a_small_program_evicts_the_blocks_it_does_not_need() {
    let below = Below::new(usize::MAX);
    let cache = cache(512 * MIB, MIB);
    let live: Vec<_> = (0..64).map(|_| allocate(&cache, None, 8 * KIB, &below)).collect();
    for block in live {
        free(&cache, None, 8 * KIB, block, &below);
    }
    let idle = || cache.stats().depot_bytes / (8 * KIB) as u64;
    assert_eq!(idle(), 64);
    let grown: Vec<_> =
        (1..200).map(|n| allocate(&cache, None, 9 * KIB + n * 100, &below)).collect();
    assert_eq!(idle(), 0, "{} blocks", grown.len());
}

#[test]
#[cfg_attr(miri, ignore = "a thousand threads")]
fn a_thousand_short_threads_leave_no_block_and_no_lease_behind() {
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
    let unused = stats.leased_bytes - stats.thread_cache_bytes - stats.depot_bytes;
    assert!(unused <= 2 * MIB as u64, "leases do not pile up: {stats:?}");
    assert!(stats.thread_caches <= 2, "{stats:?}");
    // Two threads ran at a time; a thread that finds a free list locked takes new blocks.
    let of_one: usize = [16, 64, 1000, 5000].map(|b| 30 * held(b)).iter().sum();
    assert!(stats.depot_bytes <= 3 * of_one as u64, "{stats:?}");
    cache.clear(&below.inner());
    assert_eq!((below.live(), cache.depot.leases.leased()), (0, 0));
}

/// A thread that reads the clock itself keeps the classes that it uses.
#[test]
fn a_visit_leaves_a_thread_what_it_uses() {
    let below = Below::new(usize::MAX);
    let cache = cache(64 * MIB, MIB);
    let local = cache.thread_caches.enter();
    for second in 1..6 {
        let block = allocate(&cache, local, 64, &below);
        free(&cache, local, 64, block, &below);
        cache.look(1000 * second, local, &below.inner());
        assert_eq!(check(&cache, &below, 0).thread_cache_bytes, 64, "after {second} s");
    }
}

/// While much is cached, hits take the slow path often enough to read the clock.
#[test]
#[cfg_attr(miri, ignore = "Miri has no pages of ours")]
fn hits_read_the_clock_more_often_while_much_is_cached() {
    let below = Below::new(usize::MAX);
    let cache = cache(512 * MIB, MIB);
    let local = cache.thread_caches.enter();
    let slow_turns = |pairs: u32| {
        let before = local.unwrap().turns.load(Relaxed);
        for _ in 0..pairs {
            let block = allocate(&cache, local, 64, &below);
            free(&cache, local, 64, block, &below);
        }
        local.unwrap().turns.load(Relaxed) - before
    };
    slow_turns(2);
    assert_eq!(slow_turns(100), 0);
    let large = allocate(&cache, local, 32 * MIB, &below);
    free(&cache, local, 32 * MIB, large, &below);
    assert!(slow_turns(100) >= 5);
}

/// A thread that took back a class of the forking thread is not there: its lease is given back.
#[test]
fn a_forked_child_has_no_lease_that_a_thread_was_giving_back() {
    let below = Below::new(usize::MAX);
    let cache = cache(64 * MIB, MIB);
    let own = cache.thread_caches.enter().unwrap();
    let block = allocate(&cache, Some(own), 5000, &below);
    free(&cache, Some(own), 5000, block, &below);
    let visitor = own.hold().unwrap();
    let mut closed = [None; AT_ONCE];
    // The first time the class was used, so it is closed the second time.
    assert_eq!(visitor.close_idle(&mut closed) + visitor.close_idle(&mut closed), 1);
    std::mem::forget(visitor);
    cache.in_child(own);
    assert_eq!((own.leased(), cache.depot.leases.leased()), (0, 0));
    let block = allocate(&cache, Some(own), 5000, &below);
    free(&cache, Some(own), 5000, block, &below);
    assert!(own.leased() > 0, "it caches again");
}

/// Without decay too, runs that were freed a moment ago are part of the bound.
#[test]
#[cfg_attr(miri, ignore = "Miri has no pages of ours")]
fn large_blocks_beyond_the_limit_do_not_stay_in_slots() {
    let below = Below::new(usize::MAX);
    let cache = Cache::new();
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

/// A thread frees a block of 64 bytes and ends while the free list is locked, so the block stays
/// in its cache. Returns the block.
fn leave_unflushed(cache: &Cache, below: &Below) -> *mut u8 {
    let local = cache.thread_caches.enter().unwrap();
    let block = allocate(cache, Some(local), 64, below);
    free(cache, Some(local), 64, block, below);
    cache.depot.while_held(class(64), || cache.leave(local));
    assert_eq!(check(cache, below, 0).thread_cache_bytes, 64);
    block
}

#[test]
fn a_thread_cache_that_cannot_flush_passes_its_blocks_to_the_next_thread() {
    let below = Below::new(usize::MAX);
    let cache = cache(64 * MIB, MIB);
    let block = leave_unflushed(&cache, &below);
    let next = cache.thread_caches.enter().unwrap();
    assert_eq!(allocate(&cache, Some(next), 64, &below), block);
}

/// Blocks that stayed in the cache of an ended thread decay though no thread follows it.
#[test]
fn blocks_of_an_ended_thread_that_could_not_flush_decay() {
    let below = Below::new(usize::MAX);
    let cache = cache(64 * MIB, MIB);
    leave_unflushed(&cache, &below);
    for second in 1..=4 {
        cache.look(1000 * second, None, &below.inner());
    }
    let stats = check(&cache, &below, 0);
    assert_eq!((stats.thread_cache_bytes, stats.depot_bytes), (0, 0));
}

/// A free list stays locked in a child that was forked while another thread held its lock. The
/// child must skip that list.
#[test]
fn a_free_list_that_stays_locked_is_skipped() {
    let below = Below::new(usize::MAX);
    let cache = cache(64 * MIB, 0);
    let block = allocate(&cache, None, 64, &below);
    free(&cache, None, 64, block, &below);
    cache.depot.while_held(class(64), || {
        let calls = below.calls.load(Relaxed);
        let other = allocate(&cache, None, 64, &below);
        assert_eq!(below.calls.load(Relaxed), calls + 1);
        free(&cache, None, 64, other, &below);
        cache.clear(&below.inner());
        // Other classes still cache their blocks.
        let other = allocate(&cache, None, 512, &below);
        free(&cache, None, 512, other, &below);
        assert_eq!(allocate(&cache, None, 512, &below), other);
        free(&cache, None, 512, other, &below);
    });
    check(&cache, &below, 0);
}

/// In a child process, new threads reuse the thread caches of the threads that do not exist there,
/// except for a cache that was held at the time of the fork.
#[test]
fn a_forked_child_reuses_the_thread_caches_of_absent_threads() {
    let cache = cache(64 * MIB, MIB);
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
                cache.trim(64 * KIB, &below.inner());
                assert!(cache.depot.leases.leased() <= 2 * MIB + 64 * KIB);
                std::thread::yield_now();
            }
        });
    });
    check(&cache, &below, 0);
    cache.clear(&below.inner());
    assert_eq!((below.live(), cache.depot.leases.leased()), (0, 0));
}
