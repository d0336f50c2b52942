//! Resident memory of pools. The figures are those of the whole process, so one test runs at a
//! time.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "tests")]

use pool_core::{ArenaConfig, BucketPolicy, BucketPool, KIB, MIB, PoolBuilder};
use pool_host::HostAllocator;
use std::sync::Mutex;

static ALONE: Mutex<()> = Mutex::new(());

/// Returns the resident bytes of this process.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// How much more is resident than before. The end of another test's thread may have made it less.
fn grown(before: u64) -> u64 {
    resident().saturating_sub(before)
}

/// Returns how many pages that begin in these bytes have memory behind them.
fn resident_pages(bytes: &[u8]) -> usize {
    let start = bytes.as_ptr().addr().next_multiple_of(4096);
    let length = (bytes.as_ptr().addr() + bytes.len()).saturating_sub(start);
    let mut pages = vec![0_u8; length.div_ceil(4096)];
    let at = std::ptr::with_exposed_provenance_mut(start);
    #[expect(unsafe_code, reason = "the system is called through C")]
    // SAFETY: `mincore` writes one byte for each page of the range, and `pages` has that many. It
    // reads no byte of the range, which is mapped, since the caller borrows it.
    let done = unsafe { libc::mincore(at, length, pages.as_mut_ptr()) };
    assert_eq!(done, 0);
    pages.iter().filter(|page| **page & 1 == 1).count()
}

/// A pool of each policy and of an arena.
fn builders() -> [(&'static str, PoolBuilder<HostAllocator>); 5] {
    let of = |policy| BucketPool::builder(HostAllocator::new()).policy(policy);
    [
        ("exact", of(BucketPolicy::Exact)),
        ("pow2", of(BucketPolicy::PowerOfTwo)),
        ("tiered", of(BucketPolicy::tiered(&[16 * KIB, 64 * KIB, MIB, 16 * MIB]))),
        ("fit:2", of(BucketPolicy::Fit { alpha: 2.0 })),
        ("arena", BucketPool::builder(HostAllocator::new()).arena(ArenaConfig::grow())),
    ]
}

/// glibc clears memory of its heap, from which it serves blocks of up to 32 MiB once a block of that
/// size was freed.
#[test]
fn misses_touch_no_page_of_a_block() {
    let _alone = ALONE.lock();
    drop(std::hint::black_box(vec![1_u8; 20 << 20]));
    give_back_freed_blocks();
    for (name, builder) in builders().into_iter().chain(builders()) {
        let pool = builder.build();
        for (bytes, count) in [(8 * MIB, 50), (64 * KIB, 1000), (16 * KIB, 1000)] {
            let blocks: Vec<_> = (0..count).map(|_| pool.allocate(bytes).unwrap()).collect();
            let pages: usize = blocks.iter().map(|block| resident_pages(block)).sum();
            assert!(pages <= count / 8, "{name}: {pages} pages of {count} blocks of {bytes} bytes");
        }
        pool.clear().unwrap();
        give_back_freed_blocks();
    }
}

/// What is cached below the pools is cleared where it serves again.
fn give_back_freed_blocks() {
    let pool = BucketPool::new(HostAllocator::new());
    drop(pool.allocate(2 * MIB).unwrap());
    pool.clear().unwrap();
}

#[cfg(feature = "allocator-api2")]
#[test]
fn unused_capacity_of_collections_stays_untouched() {
    use pool_host::InPool;
    use pool_host::allocator_api2::vec::Vec as InPoolVec;

    let _alone = ALONE.lock();
    drop(std::hint::black_box(vec![1_u8; 20 << 20]));
    for (name, builder) in builders().into_iter().chain(builders()) {
        let pool = builder.build();
        let vectors: Vec<InPoolVec<u8, _>> =
            (0..50).map(|_| InPoolVec::with_capacity_in(8 << 20, InPool::new(&pool))).collect();
        let pages = |vector: &InPoolVec<u8, _>| {
            #[expect(unsafe_code, reason = "the capacity is not initialised to the collection")]
            // SAFETY: the pool gave out these bytes initialised, and the vector owns them.
            resident_pages(unsafe { std::slice::from_raw_parts(vector.as_ptr(), 8 << 20) })
        };
        let pages: usize = vectors.iter().map(pages).sum();
        assert!(pages <= 100, "{name}: {pages} pages of 50 vectors");
    }
}

/// Blocks whose memory comes from the system's pages, or was written and freed before.
#[test]
fn fresh_memory_is_zero_whoever_had_it() {
    let _alone = ALONE.lock();
    let sizes = [100, 16 << 10, 20_000, 70_001, 1 << 20, (1 << 20) + 1, 3 << 20];
    for align in [64, 4096, 64 << 10, 4 << 20] {
        for step in 0..60 {
            let pool =
                BucketPool::builder(HostAllocator::new()).policy(BucketPolicy::Exact).build();
            let mut blocks: Vec<_> = (0..sizes.len())
                .map(|at| pool.allocate_aligned(sizes[(at * 3 + step) % 7], align).unwrap())
                .collect();
            for block in &mut blocks {
                assert!(block.as_ptr().addr().is_multiple_of(usize::try_from(align).unwrap()));
                assert!(block.iter().all(|byte| *byte == 0), "{} of {align}", block.len());
                block.fill(7);
            }
        }
    }
}

/// Linux permits a process 65 530 mappings.
#[test]
fn live_blocks_may_be_more_than_the_system_has_mappings() {
    let _alone = ALONE.lock();
    let pool = BucketPool::builder(HostAllocator::new()).policy(BucketPolicy::Exact).build();
    let mut blocks: Vec<_> = (0..50_000).map(|_| pool.allocate(4 * MIB).unwrap()).collect();
    let mut at = 0;
    blocks.retain(|_| {
        at += 1;
        at % 2 == 0
    });
    assert_eq!(pool.clear().unwrap(), 25_000 << 22);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    assert!(maps < 60_000, "{maps} mappings");
    drop(blocks);
    assert_eq!(pool.clear().unwrap(), 25_000 << 22);
}

#[test]
fn clear_leaves_no_memory_of_many_small_blocks() {
    let _alone = ALONE.lock();
    let pool = BucketPool::builder(HostAllocator::new()).policy(BucketPolicy::Exact).build();
    let before = resident();
    let mut blocks: Vec<_> = (0..4000).map(|i| pool.allocate(8 + i * 16).unwrap()).collect();
    for block in &mut blocks {
        block.fill(7);
    }
    assert!(grown(before) >= 120 << 20);
    drop(blocks);
    pool.clear().unwrap();
    assert!(grown(before) < 16 << 20, "{} bytes stay resident", grown(before));
}

/// The map of the pages has 20 bytes for each, 6 MiB here.
#[test]
fn clear_leaves_no_map_of_what_was_used() {
    let _alone = ALONE.lock();
    let pool = BucketPool::builder(HostAllocator::new()).policy(BucketPolicy::Exact).build();
    drop(pool.allocate(64 * KIB).unwrap());
    let before = resident();
    let blocks: Vec<_> = (0..20_000).map(|_| pool.allocate(64 * KIB).unwrap()).collect();
    drop(blocks);
    assert_eq!(pool.clear().unwrap(), 20_001 * 64 * KIB - 64 * KIB);
    assert!(grown(before) < 3 << 20, "{} bytes stay resident", grown(before));
}

#[test]
fn allocating_a_large_block_touches_none_of_its_pages() {
    let _alone = ALONE.lock();
    let pool = BucketPool::new(HostAllocator::new());
    let before = resident();
    let buffer = pool.allocate(512 << 20).unwrap();
    assert!(grown(before) < 64 << 20, "{} bytes became resident", grown(before));
    assert_eq!((buffer[0], buffer[(512 << 20) - 1]), (0, 0));
}

#[test]
fn clear_returns_the_pages_of_an_arena_to_the_system() {
    let _alone = ALONE.lock();
    let pool = BucketPool::builder(HostAllocator::new()).arena(ArenaConfig::grow()).build();
    let before = resident();
    let mut buffer = pool.allocate(256 << 20).unwrap();
    buffer.fill(7);
    assert!(grown(before) >= 250 << 20);
    drop(buffer);
    assert!(pool.clear().unwrap() >= 256 << 20);
    assert!(grown(before) < 64 << 20, "{} bytes stay resident", grown(before));
    assert!(pool.allocate(256 << 20).unwrap().iter().step_by(4096).all(|byte| *byte == 0));
}

/// glibc raises its mmap threshold when a large block is freed, and then keeps what it gets back.
#[cfg(target_env = "gnu")]
#[test]
fn clear_returns_blocks_that_the_c_library_would_keep() {
    let _alone = ALONE.lock();
    if std::env::var_os("MALLOC_ARENA_MAX").is_none() {
        // In the heap of the main thread, as in most programs.
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "clear_returns_blocks_that_the_c_library_would_keep"]);
        let output = again.env("MALLOC_ARENA_MAX", "1").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let pool = BucketPool::new(HostAllocator::new());
    for bytes in [1 << 20, 4 << 20, 30 << 20] {
        drop(pool.allocate(bytes).unwrap());
        pool.clear().unwrap();
    }
    let before = resident();
    let mut live = Vec::new();
    for _ in 0..400 {
        let mut buffer = pool.allocate(512 << 10).unwrap();
        buffer.fill(7);
        // A block above it in the heap, whose end cannot move then.
        live.push((buffer, vec![1_u8; 1 << 10]));
    }
    assert!(grown(before) >= 180 << 20);
    let small: Vec<_> = live.into_iter().map(|(_, small)| small).collect();
    assert!(pool.clear().unwrap() >= 200 << 20);
    let stays = grown(before);
    assert!(stays < 20 << 20, "{stays} bytes stay beside {} small blocks", small.len());
}

#[cfg(feature = "allocator-api2")]
#[test]
fn dropping_an_unfilled_collection_touches_none_of_its_pages() {
    use pool_host::InPool;
    use pool_host::allocator_api2::vec::Vec;

    let _alone = ALONE.lock();
    let pool = BucketPool::new(HostAllocator::new());
    let before = resident();
    let empty: Vec<u8, _> = Vec::with_capacity_in(512 << 20, InPool::new(&pool));
    drop(empty);
    assert!(grown(before) < 64 << 20, "{} bytes became resident", grown(before));
}
