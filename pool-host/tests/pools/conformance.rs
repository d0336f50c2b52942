//! Conformance suite of `pool-core`, run on host memory and on locked memory.

use pool_core::{ArenaConfig, BucketPool, KIB};
use pool_host::{HostAllocator, PinnedAllocator};
use pool_sim::conformance;

#[test]
fn host_memory_passes_the_conformance_suite() {
    conformance::run(HostAllocator::new);
}

#[test]
fn locked_memory_passes_the_conformance_suite() {
    conformance::run(PinnedAllocator::new);
    let config = ArenaConfig::segments(16 * KIB);
    conformance::run_arena(PinnedAllocator::new, &config);
}

#[test]
fn arenas_over_host_memory_pass_the_conformance_suite() {
    let pages = ArenaConfig::pages(4 * KIB, 0.0);
    for config in [ArenaConfig::grow(), pages, ArenaConfig::segments(16 * KIB)] {
        conformance::run_arena(HostAllocator::new, &config);
    }
}

#[test]
fn reused_blocks_keep_any_requested_alignment() {
    let pool = BucketPool::new(HostAllocator::new());
    for alignment in (0..=21).map(|shift| 1_u64 << shift) {
        for _ in 0..2 {
            let buffer = pool.allocate_aligned(100, alignment).unwrap();
            assert_eq!(buffer.as_ptr().addr() as u64 % alignment.max(64), 0, "{alignment}");
        }
    }
    assert_eq!(pool.stats().hits, 22 + 6, "1 to 64 are one kind of memory");
}

#[test]
fn a_size_that_no_address_space_holds_is_refused() {
    let pool = BucketPool::new(HostAllocator::new());
    let error = pool.allocate(isize::MAX.unsigned_abs() as u64).unwrap_err();
    assert_eq!(error.why(), pool_core::Why::TooLarge, "{error}");
}

#[test]
fn fresh_memory_reads_as_zeroes_and_reused_memory_as_it_was_left() {
    let pool = BucketPool::new(HostAllocator::new());
    let mut first = pool.allocate(5000).unwrap();
    assert!(first.iter().all(|byte| *byte == 0));
    first.fill(9);
    drop(first);
    assert!(pool.allocate(5000).unwrap().iter().all(|byte| *byte == 9));
    assert!(pool.allocate_zeroed(5000).unwrap().iter().all(|byte| *byte == 0));
}

#[test]
fn blocks_of_an_arena_are_aligned_as_requested() {
    for (config, most) in [(ArenaConfig::segments(64 * KIB), 512), (ArenaConfig::grow(), 512)] {
        for granule in [16, 512] {
            let config = config.clone().granule(granule);
            let pool = BucketPool::builder(HostAllocator::new()).arena(config).build();
            let most = most.min(granule.max(64));
            let live: Vec<_> = (0..40)
                .map(|turn| pool.allocate_aligned(1000 + turn * 999, most).unwrap())
                .collect();
            for buffer in &live {
                assert_eq!(buffer.as_ptr().addr() as u64 % most, 0, "granule {granule}");
            }
            assert!(pool.allocate_aligned(1000, 2 * most).is_err());
        }
    }
}

#[test]
fn threads_that_allocate_and_clear_at_once_see_only_their_own_bytes() {
    let pool = BucketPool::builder(HostAllocator::new())
        .arena(ArenaConfig::pages(4096, 0.0))
        .cached_limit(0)
        .build();
    let turn = |thread: u8, turn: u64| {
        let mut buffer = pool.allocate(turn * 97 % 60_000).unwrap();
        buffer.fill(thread);
        if turn.is_multiple_of(7) {
            pool.clear().unwrap();
        }
        assert!(buffer.iter().all(|byte| *byte == thread));
    };
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let turn = &turn;
            scope.spawn(move || (0..1000).for_each(|number| turn(thread, number)));
        }
    });
    pool.clear().unwrap();
    assert_eq!(pool.stats().reserved_bytes, 0);
}
