//! Threads that do the work of the background thread, in a process that has none. The clock is
//! simulated.

use super::*;
use crate::system::{ahead, coarse_milliseconds};

/// Has pages decay within a second, and the program use so many blocks of 1 MiB and free them.
fn use_and_free(blocks: usize, cache: &Cache, below: &Below) -> &'static ThreadCache {
    cache.configure(1 << 30, 64 * MIB, 1000, coarse_milliseconds());
    let local = cache.thread_caches.enter().unwrap();
    let blocks: Vec<_> = (0..blocks).map(|_| allocate(cache, Some(local), MIB, below)).collect();
    for block in blocks {
        free(cache, Some(local), MIB, block, below);
    }
    local
}

/// Allocates and frees a block. Returns whether that took the slow path.
fn pair(cache: &Cache, local: &ThreadCache, below: &Below) -> bool {
    let hit = local.take(class(100));
    let block =
        hit.unwrap_or_else(|| cache.allocate(Some(local), class(100), false, &below.inner()).block);
    free(cache, Some(local), 100, block, below);
    hit.is_none()
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no pages of ours")]
fn ten_small_requests_a_second_give_back_what_no_request_needs() {
    let below = Below::new(usize::MAX);
    let cache = cache(1 << 30, 64 * MIB);
    let local = use_and_free(200, &cache, &below);
    for _ in 0..1000 {
        pair(&cache, local, &below); // the next one of the class that is slow may be far
    }
    let cached = || cache.stats().page_bytes;
    assert!(cached() > 100 * MIB as u64, "{}", cached());
    for _ in 0..120 {
        ahead::pass(100);
        pair(&cache, local, &below);
    }
    assert!(cached() < 8 * MIB as u64, "{}", cached());
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no pages of ours")]
fn two_thousand_small_requests_in_two_seconds_give_back_what_no_request_needs() {
    let below = Below::new(usize::MAX);
    let cache = cache(1 << 30, 64 * MIB);
    let local = use_and_free(100, &cache, &below);
    for _ in 0..4000 {
        ahead::pass(1);
        pair(&cache, local, &below);
    }
    let cached = cache.stats().page_bytes;
    assert!(cached < 8 * MIB as u64, "{cached}");
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no pages of ours")]
fn a_thread_that_asks_often_takes_the_slow_path_seldom() {
    let below = Below::new(usize::MAX);
    for (blocks, every) in [(0, 256), (100, 64)] {
        let cache = cache(1 << 30, 64 * MIB);
        let local = use_and_free(blocks, &cache, &below);
        for _ in 0..1000 {
            pair(&cache, local, &below);
        }
        let slow = (0..6400).filter(|_| pair(&cache, local, &below)).count();
        // A tick of the clock sets the pace anew, which takes seven slow requests.
        assert!((6400 / every..6400 / every + 30).contains(&slow), "{blocks}: {slow}");
        let stats = cache.stats();
        let all = (blocks + 7400) as u64;
        assert_eq!((stats.allocations, stats.frees), (all, all));
    }
}
