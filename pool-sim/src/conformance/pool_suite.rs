//! Promises of a pool that programs rely on, over any memory.
#![expect(clippy::panic, reason = "a suite of tests: a panic is how it reports")]

use super::promise::{Served, allocate, contents, promise};
use pool_core::limits::CachedLimit;
use pool_core::port::Limit;
use pool_core::{
    AllocError, BucketPolicy, BucketPool, KIB, MIB, PoolBuilder, PooledBuffer, Transfer, Why,
    ZeroPolicy,
};
use std::{fmt, thread};

/// Fills all bytes that were requested.
fn fill<A: Transfer>(buffer: &mut PooledBuffer<A>, byte: u8) {
    let bytes = vec![byte; usize::try_from(buffer.size()).unwrap_or(usize::MAX)];
    buffer.write_at(0, &bytes).served(format_args!("a write of {} bytes", bytes.len()));
}

/// The part of the suite that holds for pools of whole blocks: there a free may be a call of the
/// device.
pub(super) fn run<A: Transfer>(make: &impl Fn() -> A) {
    promise("a pool serves a request from the block that was freed before", || {
        blocks_are_reused(make());
    });
    promise("a pool keeps no more cached bytes and blocks than its limits", || {
        cached_bytes_are_bounded(make());
    });
    promise("`shrink_to`, `trim` and `clear` give cached blocks back", || {
        cached_blocks_go_back(make());
    });
    promise("a detached block leaves the pool, and outlives it", || detached_blocks_leave(make()));
}

/// The part that holds for every pool.
pub(super) fn run_on<A: Transfer>(make: &impl Fn() -> PoolBuilder<A>) {
    promise("a buffer of any size holds its bytes", || sizes(make()));
    promise("a buffer keeps its bytes while others come and go", || {
        contents_belong_to_their_owner(&make().build());
    });
    promise("zeroed memory reads as zeroes, fresh or used", || zeroed_memory_reads_as_zeroes(make));
    promise("a pool stays below its reserved limit, and reuses cached memory there", || {
        limits_hold(make);
    });
    promise("impossible sizes are refused and take nothing", || {
        impossible_sizes_are_refused(make());
    });
    promise("an alignment is kept, or refused with `Why::Unsupported`", || {
        alignments(&make().build());
    });
    promise("pools and buffers may be dropped in any order", || any_order_of_drops(make));
    promise("threads share a pool below its limit", || threads_share_a_pool(make));
}

/// Returns the error of a request that must be refused.
fn refused<A: Transfer>(
    result: Result<PooledBuffer<A>, AllocError>,
    request: impl fmt::Display,
) -> AllocError {
    result.err().unwrap_or_else(|| panic!("{request} was served, expected an error"))
}

/// The figures of a pool add up.
fn check<A: Transfer>(pool: &BucketPool<A>) {
    let s = pool.stats();
    assert_eq!(s.allocations, s.hits + s.misses + s.bypasses + s.failures, "{s:#?}");
    assert!(s.requested_bytes <= s.allocated_bytes, "{s:#?}");
    assert!(s.allocated_bytes <= s.active_bytes, "{s:#?}");
    assert!(s.active_bytes <= s.reserved_bytes, "{s:#?}");
    assert_eq!(s.allocated_bytes + s.cached_bytes + s.lost_bytes, s.reserved_bytes, "{s:#?}");
    assert_eq!(s.allocated_bytes, pool.allocated_bytes(), "{s:#?}");
}

fn sizes<A: Transfer>(builder: PoolBuilder<A>) {
    let pool = builder.policy(BucketPolicy::Exact).build();
    let granule = pool.granule();
    for bytes in [0, 1, granule - 1, granule, granule + 1, 4095, 4096, 4097, MIB - 1, MIB] {
        let mut buffer = allocate(&pool, bytes);
        assert_eq!(buffer.size(), bytes);
        assert!(buffer.allocated_size() >= bytes.max(1));
        assert!(buffer.allocated_size().is_multiple_of(granule));
        fill(&mut buffer, 0x5A);
        assert_eq!(contents(&buffer), vec![0x5A; usize::try_from(bytes).unwrap_or(usize::MAX)]);
        check(&pool);
    }
}

fn contents_belong_to_their_owner<A: Transfer>(pool: &BucketPool<A>) {
    let mut live = Vec::new();
    for turn in 0..100_u8 {
        let mut buffer = allocate(pool, u64::from(turn) * 97);
        fill(&mut buffer, turn);
        live.push((turn, buffer));
        if turn % 3 == 0 {
            live.remove(usize::from(turn) / 4);
        }
    }
    for (turn, buffer) in &live {
        assert!(contents(buffer).iter().all(|byte| byte == turn), "buffer {turn}");
    }
    check(pool);
}

fn blocks_are_reused<A: Transfer>(allocator: A) {
    let pool = BucketPool::new(allocator);
    for _ in 0..10 {
        drop(allocate(&pool, 3000));
    }
    let stats = pool.stats();
    assert_eq!((stats.hits, stats.misses, stats.reuses), (9, 1, 9));
    assert_eq!((stats.deallocations, stats.returns, stats.keys), (10, 10, 1));
}

fn zeroed_memory_reads_as_zeroes<A: Transfer>(make: &impl Fn() -> PoolBuilder<A>) {
    for zero in [ZeroPolicy::Never, ZeroPolicy::OnAllocate, ZeroPolicy::OnReturn] {
        let pool = make().zero(zero).build();
        pool.warm_up(&[(700, 1), (5000, 1)]).served("`warm_up` of two blocks");
        for bytes in [1, 700, 1000, 1024, 5000] {
            for _fresh_then_used in 0..2 {
                let mut buffer = match zero {
                    ZeroPolicy::Never => pool.allocate_zeroed(bytes).served("`allocate_zeroed`"),
                    _ => allocate(&pool, bytes),
                };
                let dirty = contents(&buffer).iter().filter(|byte| **byte != 0).count();
                assert_eq!(dirty, 0, "{zero:?}, {bytes} bytes");
                fill(&mut buffer, 0xEE);
            }
        }
    }
}

/// The unit that limits are tried in: 1 KiB, or 2 MiB where memory comes in pages of that size and
/// nothing fits under 64 KiB.
fn limit_unit<A: Transfer>(make: &impl Fn() -> PoolBuilder<A>) -> u64 {
    let small = make().reserved_limit(64 * KIB).build();
    if small.allocate(1).is_ok() { KIB } else { 2 * MIB }
}

fn limits_hold<A: Transfer>(make: &impl Fn() -> PoolBuilder<A>) {
    let unit = limit_unit(make);
    for policy in BucketPolicy::examples() {
        let policy = match policy {
            BucketPolicy::Tiered(_) => BucketPolicy::tiered(&[KIB, 16 * KIB, 64 * KIB]),
            other => other,
        };
        let pool = make().policy(policy).reserved_limit(64 * unit).build();
        let live: Vec<_> = std::iter::from_fn(|| pool.allocate(10 * unit).ok()).collect();
        assert!((4..=6).contains(&live.len()), "{} buffers under the limit", live.len());
        let error = refused(pool.allocate(10 * unit), "a request above the limit");
        assert_eq!(
            (error.why(), error.figures().requested_bytes),
            (Why::Limit(Limit::Reserved), 10 * unit)
        );
        drop(live);
        // All of it is cached and of other sizes; it goes back for the one that needs it.
        assert!(pool.allocate(60 * unit).is_ok(), "{:?}", pool.allocate(60 * unit));
        assert!(pool.stats().reserved_peak_bytes <= 64 * unit);
        check(&pool);
    }
}

fn impossible_sizes_are_refused<A: Transfer>(builder: PoolBuilder<A>) {
    let pool = builder.policy(BucketPolicy::Exact).build();
    for bytes in [u64::MAX, u64::MAX - 511, i64::MAX.unsigned_abs() + 1] {
        let error = refused(pool.allocate(bytes), format_args!("a request of {bytes} B"));
        assert_eq!(error.figures().requested_bytes, bytes, "{error}");
    }
    assert_eq!((pool.stats().failures, pool.stats().reserved_bytes), (3, 0));
    assert!(pool.allocate(1).is_ok());
}

fn alignments<A: Transfer>(pool: &BucketPool<A>) {
    for bad in [0, 3, 48, u64::MAX] {
        let buffer = pool.allocate_aligned(100, bad);
        let error = refused(buffer, format_args!("an alignment of {bad} B"));
        assert_eq!(error.why(), Why::Unsupported, "alignment {bad}");
    }
    assert!(pool.allocate_aligned(100, 1).is_ok());
    for alignment in [64, 256, 4096, MIB] {
        match pool.allocate_aligned(100, alignment) {
            Ok(mut buffer) => fill(&mut buffer, 1),
            Err(error) => assert_eq!(error.why(), Why::Unsupported, "alignment {alignment}"),
        }
    }
}

fn cached_bytes_are_bounded<A: Transfer>(allocator: A) {
    let pool = BucketPool::builder(allocator)
        .policy(BucketPolicy::Exact)
        .cached_limit(64 * KIB)
        .bucket_limit(3)
        .build();
    for turn in 1..=40 {
        let live: Vec<_> = (0..8).map(|i| pool.allocate(turn * 100 + i % 2 * KIB)).collect();
        drop(live);
        pool.trim(0).served("`trim`"); // the deferred frees
        assert!(pool.stats().cached_bytes <= 64 * KIB);
        assert!(pool.cached_buffers().values().all(|count| *count <= 3));
        check(&pool);
    }
    drop(allocate(&pool, 33 * KIB));
    pool.trim(0).served("`trim`");
    assert!(!pool.cached_buffers().contains_key(&(33 * KIB)), "more than half the bound is kept");
}

/// A small block: 1 KiB, or what the memory hands out at least.
fn unit<A: Transfer>(pool: &BucketPool<A>) -> u64 {
    KIB.next_multiple_of(pool.granule())
}

fn cached_blocks_go_back<A: Transfer>(allocator: A) {
    let pool = BucketPool::builder(allocator).cached_limit(CachedLimit::Unlimited).build();
    let unit = unit(&pool);
    pool.warm_up(&[(unit, 8), (64 * unit, 2)]).served("`warm_up` of ten blocks");
    assert_eq!(pool.cached_buffers(), [(unit, 8), (64 * unit, 2)].into());
    assert_eq!(pool.shrink_to(70 * unit).served("`shrink_to`"), 128 * unit);
    assert_eq!(pool.cached_buffers(), [(unit, 8)].into());
    assert_eq!(pool.trim(unit + 1).served("`trim`"), 2 * unit);
    let live = allocate(&pool, unit);
    assert_eq!(pool.clear().served("`clear`"), 5 * unit);
    assert_eq!((pool.stats().reserved_bytes, pool.allocated_bytes()), (unit, unit));
    drop(live);
    check(&pool);
}

fn detached_blocks_leave<A: Transfer>(allocator: A) {
    let pool = BucketPool::new(allocator);
    let mut block = allocate(&pool, 1000).detach();
    fill(&mut block, 3);
    assert_eq!((block.size(), block.allocated_size()), (1000, unit(&pool)));
    assert_eq!(pool.stats().reserved_bytes, unit(&pool));
    block.free().served("`free` of a detached block");
    assert_eq!((pool.stats().reserved_bytes, pool.cached_buffers().len()), (0, 0));
    let block = allocate(&pool, 1000).detach();
    drop(pool);
    assert_eq!(block.contents().served("a read of a detached block").len(), 1000);
}

fn any_order_of_drops<A: Transfer>(make: &impl Fn() -> PoolBuilder<A>) {
    let (pool, other) = (make().build(), make().build());
    let (kept, moved, late) = (pool.allocate(1), pool.allocate(2), other.allocate(3));
    drop(pool.allocate(100));
    drop(pool.clone());
    drop(pool);
    let joined = thread::spawn(move || drop(moved)).join();
    assert!(joined.is_ok(), "the drop of a buffer on another thread panicked");
    drop(kept.served("a request of 1 byte"));
    drop(late.served("a request of 3 bytes"));
    drop(other);
}

fn threads_share_a_pool<A: Transfer>(make: &impl Fn() -> PoolBuilder<A>) {
    let (limit, cached) = (1024 * limit_unit(make), 256 * KIB);
    let pool = make().reserved_limit(limit).cached_limit(cached).build();
    thread::scope(|scope| {
        for thread in 0..4_u8 {
            let pool = &pool;
            scope.spawn(move || {
                for turn in 0..200_u64 {
                    let mut buffer = allocate(pool, turn * 37 % 9000);
                    fill(&mut buffer, thread);
                    assert!(contents(&buffer).iter().all(|byte| *byte == thread));
                }
            });
        }
    });
    assert!(pool.stats().reserved_peak_bytes <= limit);
    assert_eq!(pool.stats().requested_bytes, 0);
    check(&pool);
}
