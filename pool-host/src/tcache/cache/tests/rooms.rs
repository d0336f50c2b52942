//! What some threads and classes may hold leaves the others their part.

use super::*;
use crate::depot::BATCH;

/// Returns how many of the requests of a thread for 16 blocks of each of four sizes are hits, in the last of
/// eight rounds.
fn hits(cache: &Cache, local: &ThreadCache, first: usize, below: &Below) -> usize {
    let mut hits = 0;
    for _ in 0..8 {
        hits = 0;
        for bytes in (0..4).map(|more| first + 16 * more) {
            let blocks: Vec<_> = (0..16)
                .map(|_| {
                    let hit = local.take(class(bytes));
                    hits += usize::from(hit.is_some());
                    hit.unwrap_or_else(|| allocate(cache, Some(local), bytes, below))
                })
                .collect();
            for block in blocks {
                free(cache, Some(local), bytes, block, below);
            }
        }
    }
    hits
}

/// Lets a thread hold blocks of 4 to 64 KiB.
fn fill(cache: &Cache, local: &ThreadCache, below: &Below) {
    for _ in 0..3 {
        for bytes in (1..16).map(|times| times * 4 * KIB) {
            let blocks: Vec<_> =
                (0..40).map(|_| allocate(cache, Some(local), bytes, below)).collect();
            for block in blocks {
                free(cache, Some(local), bytes, block, below);
            }
        }
    }
}

/// The clock stands still, so no step takes anything back.
#[test]
#[cfg_attr(miri, ignore = "Miri has no pages of ours")]
fn threads_that_ended_leave_the_others_their_room() {
    let below = Below::new(usize::MAX);
    let cache = cache(16 * MIB, 64 * MIB);
    let own = cache.thread_caches.enter().unwrap();
    let others: Vec<_> = (0..30).map(|_| cache.thread_caches.enter().unwrap()).collect();
    for local in &others {
        fill(&cache, local, &below);
    }
    for local in others {
        cache.leave(local);
    }
    assert_eq!(cache.thread_caches.room_bytes(), own.room_bytes(), "those that ended have none");
    assert!(hits(&cache, own, 100, &below) >= 60);
    check(&cache, &below, 0);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no pages of ours")]
fn threads_at_rest_leave_each_other_one_its_equal_part() {
    let below = Below::new(usize::MAX);
    let cache = cache(1 << 30, 64 * MIB);
    let big: Vec<_> = (0..256).map(|_| allocate(&cache, None, MIB, &below)).collect();
    let own = cache.thread_caches.enter().unwrap();
    let others: Vec<_> = (0..4).map(|_| cache.thread_caches.enter().unwrap()).collect();
    for local in &others {
        fill(&cache, local, &below);
    }
    for block in big {
        free(&cache, None, MIB, block, &below);
    }
    assert!(hits(&cache, own, 100, &below) >= 60);
    check(&cache, &below, 0);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no pages of ours")]
fn a_child_counts_the_room_of_whole_thread_caches_by_their_blocks() {
    let below = Below::new(usize::MAX);
    let cache = cache(16 * MIB, 64 * MIB);
    let own = cache.thread_caches.enter().unwrap();
    let others: Vec<_> = (0..8).map(|_| cache.thread_caches.enter().unwrap()).collect();
    for local in &others {
        fill(&cache, local, &below);
    }
    let torn = others[3];
    std::mem::forget(torn.hold());
    cache.thread_caches.keep_alone(own);
    let whole = || cache.thread_caches.iter().filter(|local| !local.is_torn());
    let rooms: usize = whole().map(ThreadCache::room_bytes).sum();
    assert_eq!(cache.thread_caches.room_bytes(), rooms, "without the torn one");
    let blocks: usize = whole().map(ThreadCache::bytes).sum();
    assert_eq!(rooms, blocks + own.room_bytes() - own.bytes(), "no more than they have");
    assert!(hits(&cache, own, 100, &below) >= 60);
}

/// A batch of 256 KiB comes where the classes may have 128 KiB.
#[test]
#[cfg_attr(miri, ignore = "Miri has no pages of ours")]
fn a_batch_that_does_not_fit_keeps_what_fits() {
    let below = Below::new(usize::MAX);
    let cache = cache(MIB, MIB);
    let class = class(32 * KIB);
    let mut batch = Batch::EMPTY;
    (0..8).for_each(|_| batch.add(allocate(&cache, None, 32 * KIB, &below)));
    for _ in batch.as_slice() {
        cache.count_free(None, class);
    }
    cache.depot.put(class, &batch, &cache.pages);
    assert_eq!(cache.depot.room_bytes(), 128 * KIB);
    assert!(cache.depot.recent_bytes(class) > 64 * KIB);
    check(&cache, &below, 0);
}

/// Classes that nobody uses are full, and one more needs room.
#[test]
#[cfg_attr(miri, ignore = "Miri has no pages of ours")]
fn a_free_that_finds_no_room_moves_few_blocks_of_others() {
    let below = Below::new(usize::MAX);
    let cache = cache(1 << 30, MIB);
    let allocated = |bytes: usize| -> Vec<_> {
        (0..512).map(|_| allocate(&cache, None, bytes, &below)).collect()
    };
    // In whole batches, as thread caches do.
    let free_batch = |bytes: usize, blocks: &[*mut u8]| {
        let mut batch = Batch::EMPTY;
        for block in blocks {
            batch.add(*block);
            cache.count_free(None, class(bytes));
        }
        cache.depot.put(class(bytes), &batch, &cache.pages);
    };
    let full: Vec<usize> = (1..=22).map(|times| 16 * times).collect();
    for bytes in &full {
        allocated(*bytes).chunks(BATCH).for_each(|blocks| free_batch(*bytes, blocks));
    }
    // From here on they have needed none.
    cache.depot.begin_round();
    cache.depot.age(usize::MAX, &cache.pages);
    let recent = || -> usize {
        full.iter()
            .map(|bytes| cache.depot.recent_bytes(class(*bytes)) / class(*bytes).bytes())
            .sum()
    };
    let (mut before, mut most) = (recent(), 0);
    for blocks in allocated(2 * KIB).chunks(BATCH) {
        free_batch(2 * KIB, blocks);
        let now = recent();
        most = most.max(before - now);
        before = now;
    }
    assert!(most > 0 && most <= 256, "{most} blocks in a call");
    check(&cache, &below, 0);
}
