//! Buffers that are allocated beside another one, without a handle: from the same pool while it is
//! open, and from the device once its last handle is gone.
#![expect(clippy::unwrap_used, reason = "tests")]

use pool_core::check::TestThreads;
use pool_core::observe::PoolEvent;
use pool_core::{
    ArenaConfig, BucketPool, DeviceAllocator, HandleSettings, KIB, Limit, MIB, PoolBuilder,
    PooledBuffer, StreamClock, Why,
};
use pool_sim::SimDevice;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use crate::shards::{Plain, build};

fn builders() -> Vec<PoolBuilder<SimDevice>> {
    let arenas = [
        ArenaConfig::grow(),
        ArenaConfig::torch(),
        ArenaConfig::pages(64 * KIB, 0.0),
        ArenaConfig::segments(MIB),
    ];
    let arenas = arenas.map(|config| BucketPool::builder(SimDevice::new()).arena(config));
    let mut all = vec![BucketPool::builder(SimDevice::new())];
    all.extend(arenas);
    all
}

#[test]
fn results_hit_what_the_pool_has_cached() {
    for builder in builders() {
        let pool = builder.build();
        let operand = pool.allocate(4 * KIB).unwrap();
        drop(pool.allocate(4 * KIB).unwrap());
        let (before, beside) = (pool.stats(), operand.pool(HandleSettings::default()));
        let result = beside.allocate_for(pool.default_stream(), 4 * KIB, 4, false).unwrap();
        let after = pool.stats();
        assert_eq!((after.hits - before.hits, after.misses), (1, before.misses));
        drop(result);
        let too_large = beside.allocate_for(pool.default_stream(), u64::MAX / 2, 4, false);
        assert_eq!(too_large.unwrap_err().why(), Why::TooLarge);
        assert_eq!(pool.stats().failures, 1);
        pool.check();
    }
}

#[test]
fn once_the_last_handle_is_gone_results_come_from_the_device_and_go_back() {
    for builder in builders() {
        let pool = builder.build();
        let device = pool.allocator().clone();
        let stream = device.clock().default_stream();
        let operand = pool.allocate(4 * KIB).unwrap();
        drop((pool.allocate(64 * KIB).unwrap(), pool.allocate(4 * KIB).unwrap()));
        drop(pool);
        let (held, beside) = (device.held_bytes(), operand.pool(HandleSettings::default()));
        assert!(beside.handle().is_none());
        for round in 0..3_u8 {
            for bytes in [4 * KIB, 3 * MIB] {
                let mut result = beside.allocate_for(stream, bytes, 4, true).unwrap();
                assert!(result.contents().unwrap().iter().all(|byte| *byte == 0));
                result.write_at(0, &[round + 1; 8]).unwrap();
                drop(result);
                assert_eq!(device.held_bytes(), held, "nothing is cached");
            }
        }
        let result = beside.allocate_for(stream, 4 * KIB, 4, false).unwrap();
        drop(operand);
        let of_result = result.pool(HandleSettings::default());
        let last = of_result.allocate_for(stream, MIB, 4, false).unwrap();
        drop(result);
        drop(last);
        assert_eq!(device.held_bytes(), 0, "the pool is gone with its last buffer");
    }
}

#[test]
fn a_handle_by_a_buffer_keeps_the_pool_open() {
    let pool = BucketPool::new(SimDevice::new()).tagged("results");
    let operand = pool.allocate(4 * KIB).unwrap();
    let again = operand.pool(pool.by_ref().settings()).handle().unwrap();
    drop(pool);
    drop(again.allocate(64 * KIB).unwrap());
    assert_eq!(again.stats().cached_bytes, 64 * KIB);
    assert_eq!(again.by_ref().settings(), operand.pool(again.by_ref().settings()).settings());
    drop(again);
    assert!(operand.pool(HandleSettings::default()).handle().is_none());
}

#[test]
fn results_have_the_tag_and_the_timeout_of_a_handle() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let tags = seen.clone();
    let observer = move |event: &PoolEvent<'_>| tags.lock().unwrap().push(event.tag);
    let builder = BucketPool::builder(SimDevice::new()).observer(Arc::new(observer));
    let pool = builder.reserved_limit(4 * KIB).build();
    let operand = pool.allocate(1).unwrap();
    seen.lock().unwrap().clear();
    for timeout in [Duration::ZERO, Duration::new(0, 999_999_999), Duration::MAX] {
        let settings = pool.with_timeout(timeout).tagged("sums").by_ref().settings();
        let said = format!("{settings:?}");
        assert!(said.contains("sums") && said.contains(&format!("{timeout:?}")), "{said}");
    }
    let settings = pool.with_timeout(Duration::ZERO).tagged("sums").by_ref().settings();
    let plain = HandleSettings::default();
    for (settings, why) in [(settings, Why::TimedOut), (plain, Why::Limit(Limit::Reserved))] {
        let beside = operand.pool(settings);
        let refused = beside.allocate_for(pool.default_stream(), 4 * KIB, 4, false);
        assert_eq!(refused.unwrap_err().why(), why);
    }
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    assert!(seen.contains(&"sums") && seen.last() == Some(&""), "{seen:?}");
    // So it is when nobody has a handle any more.
    drop(pool);
    let beside = operand.pool(settings);
    let refused =
        beside.allocate_for(beside.allocator().clock().default_stream(), 4 * KIB, 4, false);
    assert_eq!(refused.unwrap_err().why(), Why::TimedOut);
}

/// Takes buffers beside others and frees them, the first one included.
fn churn(operand: PooledBuffer<Plain>, seed: u64) {
    let (mut random, mut live) = (StdRng::seed_from_u64(seed), vec![operand]);
    for _ in 0..40 {
        let at = random.random_range(0..live.len());
        if live.len() > 1 && random.random_range(0..3) == 0 {
            drop(live.swap_remove(at));
        } else {
            let bytes = 512 << random.random_range(0..5);
            let beside = live[at].pool(HandleSettings::default());
            let result = beside.allocate_for(&(), bytes, 1, false).unwrap();
            live.push(result);
        }
    }
}

/// Threads allocate beside their buffers while the last handle is dropped. All memory goes back.
#[test]
fn threads_allocate_beside_buffers_of_a_pool_that_is_closed() {
    for round in 0..if cfg!(miri) { 3 } else { 200 } {
        let (plain, pool) = build(3, |builder| builder.cached_limit(64 * KIB));
        let start = Arc::new(Barrier::new(4));
        let threads = [0, 1, 2].map(|thread| {
            let (operand, start) = (pool.allocate(4 * KIB).unwrap(), start.clone());
            thread::spawn(move || {
                start.wait();
                churn(operand, 3 * round + thread);
            })
        });
        start.wait();
        drop(pool);
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(plain.held(), 0, "round {round}");
    }
}

/// The same with ranges, one step after the other: what is free in a closed pool goes back with the
/// last buffer of its segment.
#[test]
fn random_results_of_a_closed_pool_all_go_back() {
    for seed in 0..if cfg!(miri) { 2 } else { 40 } {
        for builder in builders() {
            let pool = builder.build();
            let device = pool.allocator().clone();
            let (stream, mut threads) = (device.clock().default_stream(), TestThreads::new(2));
            let mut random = StdRng::seed_from_u64(seed);
            let mut live = vec![pool.allocate(4 * KIB).unwrap()];
            let mut pool = Some(pool);
            for step in 0..200 {
                if step == 100 {
                    pool = None;
                }
                let (at, thread) = (random.random_range(0..live.len()), step % 2);
                if live.len() > 1 && random.random_range(0..2) == 0 {
                    let buffer = live.swap_remove(at);
                    threads.as_thread(thread, || drop(buffer));
                    continue;
                }
                let bytes = random.random_range(1..512 * KIB);
                let beside = live[at].pool(HandleSettings::default());
                let result =
                    threads.as_thread(thread, || beside.allocate_for(stream, bytes, 4, false));
                live.push(result.unwrap());
            }
            if let Some(pool) = pool {
                pool.check();
            }
            drop(live);
            assert_eq!(device.held_bytes(), 0, "seed {seed}");
        }
    }
}
