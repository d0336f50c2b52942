//! Promises of a pool that programs rely on, over any memory.
#![expect(clippy::unwrap_used, reason = "a suite of tests: a panic is how it reports")]

use crate::{
    BucketPolicy, BucketPool, CachedLimit, KIB, MIB, PoolBuilder, PooledBuffer, Transfer, Why,
    ZeroPolicy,
};
use std::thread;

/// Fills all bytes that were requested.
fn fill<A: Transfer>(buffer: &mut PooledBuffer<A>, byte: u8) {
    let bytes = vec![byte; usize::try_from(buffer.size()).unwrap()];
    buffer.write_at(0, &bytes).unwrap();
}

/// The part of the suite that holds for pools of whole blocks: there a free may be a call of the
/// device.
pub(super) fn run<A: Transfer>(make: &impl Fn() -> A) {
    blocks_are_reused(make());
    cached_bytes_are_bounded(make());
    cached_blocks_go_back(make());
    detached_blocks_leave(make());
}

/// The part that holds for every pool.
pub(super) fn run_on<A: Transfer>(make: &impl Fn() -> PoolBuilder<A>) {
    sizes(make());
    contents_belong_to_their_owner(&make().build());
    zeroed_memory_reads_as_zeroes(make);
    limits_hold(make);
    impossible_sizes_are_refused(make());
    alignments(&make().build());
    any_order_of_drops(make);
    threads_share_a_pool(make);
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
        let mut buffer = pool.allocate(bytes).unwrap();
        assert_eq!(buffer.size(), bytes);
        assert!(buffer.allocated_size() >= bytes.max(1));
        assert!(buffer.allocated_size().is_multiple_of(granule));
        fill(&mut buffer, 0x5A);
        assert_eq!(buffer.contents().unwrap(), vec![0x5A; usize::try_from(bytes).unwrap()]);
        check(&pool);
    }
}

fn contents_belong_to_their_owner<A: Transfer>(pool: &BucketPool<A>) {
    let mut live = Vec::new();
    for turn in 0..100_u8 {
        let mut buffer = pool.allocate(u64::from(turn) * 97).unwrap();
        fill(&mut buffer, turn);
        live.push((turn, buffer));
        if turn % 3 == 0 {
            live.remove(usize::from(turn) / 4);
        }
    }
    for (turn, buffer) in &live {
        assert!(buffer.contents().unwrap().iter().all(|byte| byte == turn), "buffer {turn}");
    }
    check(pool);
}

fn blocks_are_reused<A: Transfer>(allocator: A) {
    let pool = BucketPool::new(allocator);
    for _ in 0..10 {
        drop(pool.allocate(3000).unwrap());
    }
    let stats = pool.stats();
    assert_eq!((stats.hits, stats.misses, stats.reuses), (9, 1, 9));
    assert_eq!((stats.deallocations, stats.returns, stats.keys), (10, 10, 1));
}

fn zeroed_memory_reads_as_zeroes<A: Transfer>(make: &impl Fn() -> PoolBuilder<A>) {
    for zero in [ZeroPolicy::Never, ZeroPolicy::OnAllocate, ZeroPolicy::OnReturn] {
        let pool = make().zero(zero).build();
        pool.warm_up(&[(700, 1), (5000, 1)]).unwrap();
        for bytes in [1, 700, 1000, 1024, 5000] {
            for _fresh_then_used in 0..2 {
                let mut buffer = match zero {
                    ZeroPolicy::Never => pool.allocate_zeroed(bytes).unwrap(),
                    _ => pool.allocate(bytes).unwrap(),
                };
                let dirty = buffer.contents().unwrap().iter().filter(|byte| **byte != 0).count();
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
    for policy in super::policies() {
        let policy = match policy {
            BucketPolicy::Tiered(_) => BucketPolicy::tiered(&[KIB, 16 * KIB, 64 * KIB]),
            other => other,
        };
        let pool = make().policy(policy).reserved_limit(64 * unit).build();
        let live: Vec<_> = std::iter::from_fn(|| pool.allocate(10 * unit).ok()).collect();
        assert!((4..=6).contains(&live.len()), "{} buffers under the limit", live.len());
        let error = pool.allocate(10 * unit).unwrap_err();
        assert_eq!((error.why(), error.figures().requested_bytes), (Why::Limit, 10 * unit));
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
        let error = pool.allocate(bytes).unwrap_err();
        assert_eq!(error.figures().requested_bytes, bytes, "{error}");
    }
    assert_eq!((pool.stats().failures, pool.stats().reserved_bytes), (3, 0));
    assert!(pool.allocate(1).is_ok());
}

fn alignments<A: Transfer>(pool: &BucketPool<A>) {
    for bad in [0, 3, 48, u64::MAX] {
        let error = pool.allocate_aligned(100, bad).unwrap_err();
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
        pool.trim(0).unwrap(); // the deferred frees
        assert!(pool.stats().cached_bytes <= 64 * KIB);
        assert!(pool.cached_buffers().values().all(|count| *count <= 3));
        check(&pool);
    }
    drop(pool.allocate(33 * KIB).unwrap());
    pool.trim(0).unwrap();
    assert!(!pool.cached_buffers().contains_key(&(33 * KIB)), "more than half the bound is kept");
}

/// A small block: 1 KiB, or what the memory hands out at least.
fn unit<A: Transfer>(pool: &BucketPool<A>) -> u64 {
    KIB.next_multiple_of(pool.granule())
}

fn cached_blocks_go_back<A: Transfer>(allocator: A) {
    let pool = BucketPool::builder(allocator).cached_limit(CachedLimit::Unlimited).build();
    let unit = unit(&pool);
    pool.warm_up(&[(unit, 8), (64 * unit, 2)]).unwrap();
    assert_eq!(pool.cached_buffers(), [(unit, 8), (64 * unit, 2)].into());
    assert_eq!(pool.shrink_to(70 * unit).unwrap(), 128 * unit);
    assert_eq!(pool.cached_buffers(), [(unit, 8)].into());
    assert_eq!(pool.trim(unit + 1).unwrap(), 2 * unit);
    let live = pool.allocate(unit).unwrap();
    assert_eq!(pool.clear().unwrap(), 5 * unit);
    assert_eq!((pool.stats().reserved_bytes, pool.allocated_bytes()), (unit, unit));
    drop(live);
    check(&pool);
}

fn detached_blocks_leave<A: Transfer>(allocator: A) {
    let pool = BucketPool::new(allocator);
    let mut block = pool.allocate(1000).unwrap().detach();
    fill(&mut block, 3);
    assert_eq!((block.size(), block.allocated_size()), (1000, unit(&pool)));
    assert_eq!(pool.stats().reserved_bytes, unit(&pool));
    block.free().unwrap();
    assert_eq!((pool.stats().reserved_bytes, pool.cached_buffers().len()), (0, 0));
    let block = pool.allocate(1000).unwrap().detach();
    drop(pool);
    assert!(block.contents().unwrap().len() == 1000);
}

fn any_order_of_drops<A: Transfer>(make: &impl Fn() -> PoolBuilder<A>) {
    let (pool, other) = (make().build(), make().build());
    let (kept, moved, late) = (pool.allocate(1), pool.allocate(2), other.allocate(3));
    drop(pool.allocate(100));
    drop(pool.clone());
    drop(pool);
    thread::spawn(move || drop(moved)).join().unwrap();
    drop(kept.unwrap());
    drop(late);
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
                    let mut buffer = pool.allocate(turn * 37 % 9000).unwrap();
                    fill(&mut buffer, thread);
                    assert!(buffer.contents().unwrap().iter().all(|byte| *byte == thread));
                }
            });
        }
    });
    assert!(pool.stats().reserved_peak_bytes <= limit);
    assert_eq!(pool.stats().requested_bytes, 0);
    check(&pool);
}
