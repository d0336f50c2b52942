//! How much may be cached, and how much work a call does for it.

use super::*;

/// The parts of the limit hold at each step, whatever threads do: each grows and shrinks blocks of a few
/// sizes for a while, and then of others. What is cached in all is within the limit once the calls
/// have given back what is beyond.
#[test]
#[cfg_attr(miri, ignore = "Miri has no pages of ours")]
fn what_is_cached_keeps_to_the_parts_of_the_limit() {
    let seeds = std::env::var("SEED").map_or(1..=6, |seed| {
        let seed = seed.parse().unwrap();
        seed..=seed
    });
    for seed in seeds {
        println!("SEED={seed}");
        let (below, limit) = (Below::new(usize::MAX), MIB << (seed % 3));
        let decay = if seed % 2 == 0 { 0 } else { 10_000 };
        let cache = cache(limit, limit);
        cache.configure(limit, limit, decay, 0);
        let locals: Vec<_> = (0..4).map(|_| cache.thread_caches.enter().unwrap()).collect();
        let mut random = StdRng::seed_from_u64(seed);
        let mut live: Vec<(usize, *mut u8)> = vec![];
        let (mut sizes, mut grows) = (1..2, true);
        let mut most = [0; 2];
        for step in 0..40_000_u64 {
            if step % 400 == 0 {
                let least = 16 << random.random_range(0..14);
                sizes = least..least + least / 4 + 16;
                grows = random.random_range(0..3) > 0 && live.len() < 2000;
            }
            let local = locals.get(random.random_range(0..5)).copied();
            if random.random_range(0..10) < if grows { 7 } else { 2 } {
                let bytes = random.random_range(sizes.clone());
                live.push((bytes, allocate(&cache, local, bytes, &below)));
            } else if !live.is_empty() {
                let (bytes, block) = live.swap_remove(random.random_range(0..live.len()));
                free(&cache, local, bytes, block, &below);
            }
            if step % 50 == 0 {
                cache.look(step * 5, local, &below.inner());
            }
            if step % 8 == 0 {
                let stats = cache.stats();
                most[0] = most[0].max(stats.thread_cache_bytes);
                most[1] = most[1].max(stats.depot_bytes);
            }
        }
        for (bytes, block) in live {
            free(&cache, locals.first().copied(), bytes, block, &below);
        }
        let (of_threads, of_depot) = (limit as u64 / 2, limit as u64 / 8);
        assert!(most[0] <= of_threads && most[1] <= of_depot, "{most:?} of {limit}");
        assert!(most[0] > of_threads / 4 && most[1] > of_depot / 4, "{most:?} of {limit}");
        // A step tells the pages what they have left. It is later than what slow calls read.
        cache.look(1 << 50, None, &below.inner());
        // Each call gives back 1 MiB at most.
        (0..16).for_each(|_| cache.pages.give_back_slots());
        let stats = check(&cache, &below, 0);
        assert!(stats.cached_bytes() <= limit as u64, "{stats:?}");
    }
}

/// A thread that works with blocks of one size and then of the next caches about what it uses, and not
/// that of each size. The clock stands still.
#[test]
#[cfg_attr(miri, ignore = "Miri has no pages of ours")]
fn blocks_of_sizes_that_a_thread_has_left_do_not_stay() {
    const USED: usize = 4 * MIB;
    let below = Below::new(usize::MAX);
    let cache = cache(1 << 30, 64 * MIB);
    let local = cache.thread_caches.enter();
    let (mut bytes, mut most) = (1100, 0);
    while bytes < 64 * KIB {
        let blocks: Vec<_> =
            (0..USED / bytes).map(|_| allocate(&cache, local, bytes, &below)).collect();
        for block in blocks {
            free(&cache, local, bytes, block, &below);
        }
        let stats = check(&cache, &below, 0);
        most = most.max(stats.thread_cache_bytes + stats.depot_bytes);
        bytes += bytes / 8;
    }
    assert!(most <= 3 * USED as u64, "{most} bytes");
}

/// Pages between blocks in use go back in steps: a call makes 16 system calls at most, and none while the background thread looks.
#[test]
#[cfg_attr(miri, ignore = "Miri has no pages of ours")]
fn a_call_gives_back_a_bounded_number_of_pages_between_blocks() {
    const SPANS: usize = 64;
    let below = Below::new(usize::MAX);
    let cache = cache(1 << 30, MIB);
    let local = cache.thread_caches.enter();
    let sizes: Vec<usize> = (0..8).map(|more| 2 * PAGE + more * 2048).collect();
    let count = |bytes| SPANS * span_blocks(class(bytes)) / 2 * 2;
    // Of each two blocks one stays.
    for bytes in &sizes {
        let blocks: Vec<_> =
            (0..count(*bytes)).map(|_| allocate(&cache, None, *bytes, &below)).collect();
        let freed = blocks.into_iter().step_by(2);
        freed.for_each(|block| free(&cache, None, *bytes, block, &below));
    }
    let returned = |cache: &Cache| usize::try_from(cache.pages.stats().returned).unwrap() / PAGE;
    // The thread moves blocks to spans, and ends before they are old.
    (1..=8).for_each(|second| cache.look(1000 * second, None, &below.inner()));
    let (mut before, mut at, mut calls) = (returned(&cache), 8_100, 0);
    assert_eq!(before, 0, "not old enough");
    cache.look(at, local, &below.inner());
    assert_eq!(returned(&cache), 0, "the thread has looked a moment ago");
    // A stretch is a block, at the end of a span one more: fewer than twelve pages.
    let most = 16 * 12;
    while at < 60_000 {
        at += 50;
        cache.look(at, local, &below.inner());
        let now = returned(&cache);
        assert!(now - before <= most, "{} pages in a call", now - before);
        calls += usize::from(now > before);
        before = now;
    }
    assert!(calls > 20, "in {calls} calls");
    let freed: usize = sizes.iter().map(|bytes| count(*bytes) / 2).sum();
    assert!(before > freed, "{before} pages of {freed} blocks");
    check(&cache, &below, sizes.iter().map(|bytes| count(*bytes) / 2 * held(*bytes)).sum());
}

/// One class has many more stretches than a call gives back. The next calls go on with it, without a step
/// of the decay between them.
#[test]
#[cfg_attr(miri, ignore = "Miri has no pages of ours")]
fn calls_go_on_where_the_last_one_stopped_within_a_class() {
    const CALLS: usize = 32;
    let (below, bytes) = (Below::new(usize::MAX), 2 * PAGE);
    let cache = cache(1 << 30, MIB);
    let local = cache.thread_caches.enter();
    let count = 2 * 16 * CALLS;
    let blocks: Vec<_> = (0..count).map(|_| allocate(&cache, None, bytes, &below)).collect();
    blocks.into_iter().step_by(2).for_each(|block| free(&cache, None, bytes, block, &below));
    (1..=14).for_each(|second| cache.look(1000 * second, local, &below.inner()));
    let returned = || usize::try_from(cache.pages.stats().returned).unwrap() / bytes;
    let before = returned();
    (0..CALLS).for_each(|_| cache.look(14_000, local, &below.inner()));
    assert!(returned() - before > 4 * CALLS, "{before} and {} blocks", returned());
    check(&cache, &below, count / 2 * held(bytes));
}
