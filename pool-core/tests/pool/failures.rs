//! A device that refuses: nothing is lost, and the next call works.

use pool_core::{BucketPolicy, BucketPool, KIB, MIB, Why};
use pool_sim::{SimCall, SimDevice};

/// A program of 60 allocations that keeps the last four; returns how many were refused.
fn program(pool: &BucketPool<SimDevice>) -> u64 {
    let mut live = std::collections::VecDeque::new();
    let mut refused = 0;
    for turn in 0..60_u64 {
        match pool.allocate(turn * 7919 % (64 * KIB)) {
            Ok(buffer) => live.push_back(buffer),
            Err(_) => refused += 1,
        }
        if live.len() > 4 {
            live.pop_front();
        }
    }
    refused
}

#[test]
fn every_single_refused_allocation_is_survived() {
    let calls = {
        let device = SimDevice::new();
        program(&BucketPool::builder(device.clone()).cached_limit(128 * KIB).build());
        device.calls().allocations
    };
    assert!(calls > 10);
    for k in 0..calls {
        let device = SimDevice::new();
        device.fail(SimCall::Allocate, k, 1);
        let pool = BucketPool::builder(device.clone()).cached_limit(128 * KIB).build();
        assert_eq!(program(&pool), 0, "call {k}: one refusal is retried");
        let stats = pool.stats();
        assert_eq!(stats.reserved_bytes, device.held_bytes(), "call {k}");
        assert_eq!(stats.allocated_bytes, 0, "call {k}");
        drop(pool);
        assert_eq!(device.held_bytes(), 0, "call {k}");
    }
}

#[test]
fn a_device_that_refuses_from_then_on_leaves_exact_figures() {
    for k in 0..40 {
        let device = SimDevice::new();
        device.fail(SimCall::Allocate, k, u64::MAX);
        let pool = BucketPool::builder(device.clone()).build();
        let refused = program(&pool);
        let stats = pool.stats();
        assert_eq!((stats.failures, stats.allocations), (refused, 60), "from call {k} on");
        assert_eq!(stats.allocated_bytes + stats.cached_bytes, stats.reserved_bytes);
        assert_eq!(stats.reserved_bytes, device.held_bytes());
        drop(pool);
        assert_eq!(device.held_bytes(), 0);
    }
}

#[test]
fn a_block_that_the_device_will_not_take_back_is_counted_and_stays_reserved() {
    for k in 0..5 {
        let device = SimDevice::new();
        device.fail(SimCall::Free, k, 1);
        let pool = BucketPool::builder(device.clone()).build();
        let live: Vec<_> = (0..5).map(|_| pool.allocate(KIB)).collect();
        drop(live);
        let error = pool.clear().unwrap_err();
        assert_eq!((error.why(), error.figures().given_back_bytes), (Why::Other, 4 * KIB));
        let stats = pool.stats();
        assert_eq!((stats.lost_bytes, stats.reserved_bytes, stats.cached_bytes), (KIB, KIB, 0));
        assert!(pool.allocate(KIB).is_ok());
    }
}

#[test]
fn a_full_device_is_emptied_of_idle_blocks_before_anybody_is_refused() {
    let device = SimDevice::with_capacity(MIB);
    let pool = BucketPool::builder(device.clone()).policy(BucketPolicy::Exact).build();
    let idle: Vec<_> = (1..=15).map(|i| pool.allocate(i * 4 * KIB).unwrap()).collect();
    drop(idle);
    assert!(pool.allocate(MIB).is_ok());
    assert_eq!(device.held_peak_bytes(), MIB);
    let error = pool.allocate(MIB + 1).unwrap_err();
    // No device of this size could serve it.
    assert_eq!((error.why(), error.figures().given_back_bytes), (Why::OutOfMemory, 0));
    let _live = pool.allocate(4 * KIB).unwrap();
    drop(pool.allocate(8 * KIB).unwrap());
    let error = pool.allocate(MIB).unwrap_err();
    assert_eq!((error.why(), error.figures().given_back_bytes), (Why::OutOfMemory, 8 * KIB));
    insta::assert_snapshot!(error);
}

#[test]
fn only_what_is_missing_goes_back_and_the_oldest_first() {
    let pool = BucketPool::builder(SimDevice::new())
        .policy(BucketPolicy::Exact)
        .reserved_limit(10 * KIB)
        .build();
    let live: Vec<_> = [2, 3, 4].map(|kib| pool.allocate(kib * KIB).unwrap()).into();
    live.into_iter().for_each(drop);
    let _three = pool.allocate(3 * KIB - 1).unwrap(); // 2 KiB are missing
    assert_eq!(pool.cached_buffers(), [(3 * KIB, 1), (4 * KIB, 1)].into());
}

#[test]
fn a_limit_says_what_it_limits() {
    let pool = BucketPool::builder(SimDevice::new()).reserved_limit(4 * MIB).build();
    let _live = pool.allocate(3 * MIB).unwrap();
    insta::assert_snapshot!(pool.allocate(MIB + 1).unwrap_err());
    insta::assert_snapshot!(pool.allocate(u64::MAX).unwrap_err());
}

#[test]
fn requests_at_the_ends_of_the_range() {
    for policy in [BucketPolicy::Exact, BucketPolicy::PowerOfTwo, BucketPolicy::tiered(&[KIB])] {
        let device = SimDevice::with_capacity(MIB);
        let pool = BucketPool::builder(device.clone()).policy(policy).build();
        let empty = pool.allocate(0).unwrap();
        assert!(empty.size() == 0 && empty.allocated_size() >= 1);
        for bytes in [i64::MAX.unsigned_abs(), u64::MAX - 1, u64::MAX] {
            let error = pool.allocate(bytes).unwrap_err();
            assert!(
                matches!(error.why(), Why::OutOfMemory | Why::TooLarge | Why::Limit(_)),
                "{error}"
            );
        }
        assert_eq!((pool.stats().failures, device.calls().allocations), (3, 1));
        drop(empty);
        assert!(pool.allocate(100).is_ok());
    }
}

#[test]
fn statistics_are_read_by_people() {
    let builder = BucketPool::builder(SimDevice::new()).cached_limit(4 * MIB);
    let pool = builder.reserved_limit(16 * MIB).build();
    let live = pool.allocate(3000).unwrap();
    for turn in 0..9 {
        drop(pool.allocate(1000 * (1 + turn % 3)));
    }
    drop(pool.allocate(3 * MIB));
    insta::assert_snapshot!(pool.stats());
    drop(live);
}

#[test]
fn statistics_can_be_switched_off_and_the_bounds_still_hold() {
    let pool =
        BucketPool::builder(SimDevice::new()).statistics(false).reserved_limit(8 * KIB).build();
    let live: Vec<_> = (0..9).map(|_| pool.allocate(KIB)).collect();
    assert!(live[7].is_ok() && live[8].is_err());
    let stats = pool.stats();
    assert_eq!((stats.allocations, stats.failures, stats.deallocations), (0, 0, 0));
    assert_eq!((stats.allocated_bytes, stats.reserved_bytes), (8 * KIB, 8 * KIB));
}
