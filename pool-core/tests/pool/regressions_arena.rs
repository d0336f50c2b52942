//! Faults of other allocators that split wrongly, miscounted, lost or exposed memory: a test each.
//!
//! Each test is named after the source of the fault, usually a project and its issue number.

use pool_core::port::Limit;
use pool_core::{
    ArenaConfig, BucketPolicy, BucketPool, DeviceAllocator, KIB, MIB, PooledBuffer, StreamClock,
    Why, ZeroPolicy,
};
use pool_sim::{SimCall, SimDevice};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Barrier;
use std::thread;

type Pool = BucketPool<SimDevice>;

/// Returns each way in which an arena takes memory.
fn configs() -> [ArenaConfig; 4] {
    let pages = ArenaConfig::pages(64 * KIB, 0.05);
    [ArenaConfig::segments(MIB), ArenaConfig::torch(), pages, ArenaConfig::grow()]
}

/// Creates a pool with an arena and no other settings.
fn bare(device: &SimDevice, config: ArenaConfig) -> Pool {
    let builder = BucketPool::builder(device.clone()).arena(config);
    builder.policy(BucketPolicy::Exact).build()
}

/// Asserts that the parts add up to the whole: for the pool, for the arena, and for the device.
fn assert_exact(device: &SimDevice, pool: &Pool) {
    let (stats, below) = (pool.stats(), pool.device_stats().unwrap_or_default());
    let parts = stats.allocated_bytes + stats.cached_bytes + stats.lost_bytes;
    assert_eq!((parts, stats.reserved_bytes), (stats.reserved_bytes, device.held_bytes()));
    assert_eq!(below.reserved_bytes.all.current, device.held_bytes());
    assert!(stats.requested_bytes <= stats.allocated_bytes, "{stats}");
}

// A size just below 2^64 was rounded up to 0, so two live blocks had the same address.
#[test]
fn pytorch_182446_the_round_up_cannot_wrap() {
    let ends = [i64::MAX.unsigned_abs() - 511, u64::MAX - (64 << 10) + 1, u64::MAX - 511];
    let sizes = || ends.into_iter().chain(u64::MAX - 510..=u64::MAX);
    for config in configs() {
        let device = SimDevice::with_capacity(64 * MIB);
        let pool = bare(&device, config.clone());
        let live = pool.allocate(100 * KIB).unwrap();
        let before = (device.held_peak_bytes(), pool.device_stats().unwrap().allocated_bytes);
        for bytes in sizes() {
            let error = pool.allocate(bytes).unwrap_err();
            let expected = [Why::TooLarge, Why::OutOfMemory, Why::Limit(Limit::Reserved)];
            assert!(expected.contains(&error.why()), "{bytes} bytes, {config:?}: {error}");
        }
        let after = (device.held_peak_bytes(), pool.device_stats().unwrap().allocated_bytes);
        assert_eq!(before, after);
        drop((live, pool));
        for policy in
            [BucketPolicy::Exact, BucketPolicy::PowerOfTwo, BucketPolicy::Fit { alpha: 2.0 }]
        {
            let pool =
                BucketPool::builder(device.clone()).arena(config.clone()).policy(policy).build();
            let refused = sizes().filter(|bytes| pool.allocate(*bytes).is_err()).count();
            assert_eq!((refused, pool.stats().failures), (514, 514), "{config:?}");
        }
    }
}

// Blocks of several sizes were in one bucket, and a block of 150 MB served a request of 200 MB.
#[test]
fn pytorch_192722_a_range_is_never_smaller_than_its_request() {
    for config in configs() {
        let device = SimDevice::new();
        let pool = bare(&device, config.clone());
        let mut free = Vec::new();
        let mut pins = Vec::new();
        for step in 0..32 {
            free.push(pool.allocate(MIB + step * 512).unwrap()); // sizes next to each other
            pins.push(pool.allocate(512).unwrap());
        }
        drop(free);
        for step in (1..40).rev() {
            let block = pool.allocate(MIB + step * 512).unwrap();
            assert!(block.allocated_size() >= block.size(), "{step}, {config:?}: {block:?}");
            device.kernel(device.clock().default_stream(), &block.on(&device.stream()).unwrap());
            pins.push(block);
        }
    }
}

// The size of a block was read after its free, so the sum of the parts was wrong.
#[test]
fn pytorch_159567_the_parts_make_the_whole_after_each_step() {
    for config in configs() {
        let device = SimDevice::new();
        let pool = bare(&device, config);
        let mut live = VecDeque::new();
        for turn in 0..300_u64 {
            live.push_back(pool.allocate(turn * 7919 * 31 % (3 * MIB)).unwrap());
            assert_exact(&device, &pool);
            if turn % 3 > 0 {
                live.pop_front();
                assert_exact(&device, &pool);
            }
            if turn % 50 == 0 {
                pool.trim(MIB).unwrap();
                assert_exact(&device, &pool);
            }
        }
    }
}

// A page in the middle could not be mapped; the pages before it stayed mapped, and the program
// ended.
#[test]
fn pytorch_188008_a_partial_map_failure_rolls_back() {
    for undo_fails in [false, true] {
        let device = SimDevice::new();
        let pool = bare(&device, ArenaConfig::pages(64 * KIB, 0.0));
        let [a, b, c, d] = [(); 4].map(|()| pool.allocate(MIB).unwrap());
        drop((a, c));
        assert_eq!(pool.trim(2 * MIB).unwrap(), 2 * MIB);
        drop(b); // free, with a hole on each side: two calls commit 3 MiB here
        let (held, before) = (device.held_bytes(), device.calls());
        device.fail(SimCall::Commit, 1, 20);
        device.fail(SimCall::Decommit, 0, undo_fails.into());
        let error = pool.allocate(3 * MIB).unwrap_err();
        assert_eq!(error.why(), Why::OutOfMemory);
        assert!(device.calls().commits > before.commits, "no part was done");
        assert!(device.held_bytes() <= held);
        assert_exact(&device, &pool);
        let served = (0..20).find_map(|_| pool.allocate(3 * MIB).ok());
        assert_eq!(
            (served.map(|block| block.size()), device.held_bytes()),
            (Some(3 * MIB), 4 * MIB)
        );
        drop(d);
        assert_eq!(pool.clear().unwrap(), 4 * MIB);
        assert_exact(&device, &pool);
    }
}

// After one request that did not fit, a server answered no further requests.
#[test]
fn cubecl_1531_a_refusal_leaves_a_pool_that_serves() {
    for config in configs() {
        let device = SimDevice::with_capacity(64 * MIB);
        let pool = bare(&device, config.clone());
        let on = device.clock().default_stream();
        let live = pool.allocate(3 * MIB).unwrap();
        device.fill(on, &live.on(on).unwrap(), 0x42);
        for round in 1..=20 {
            assert_eq!(pool.allocate(62 * MIB).unwrap_err().why(), Why::OutOfMemory, "{config:?}");
            assert_eq!(pool.allocate(30 * MIB).unwrap().size(), 30 * MIB, "{round}, {config:?}");
            assert_exact(&device, &pool);
        }
        assert_eq!(pool.stats().reserved_peak_bytes, device.held_peak_bytes(), "{config:?}");
        assert!(device.read(on, &live.on(on).unwrap()).iter().all(|byte| *byte == 0x42));
    }
}

// The limit was checked before the bytes were counted, so two threads could exceed it together.
#[test]
fn eight_threads_never_pass_the_limit() {
    for config in configs() {
        let device = SimDevice::new();
        let builder =
            BucketPool::builder(device.clone()).arena(config.clone()).policy(BucketPolicy::Exact);
        let pool = builder.reserved_limit(48 * MIB).build();
        let all = Barrier::new(8);
        let crowd = |seed: u64| {
            let (mut live, mut refused) = (VecDeque::new(), 0);
            for turn in 0..400 {
                match pool.allocate((turn * 7919 + seed * 104_729) * 512 % (4 * MIB)) {
                    Ok(buffer) => live.push_back(buffer),
                    Err(_) => refused += 1,
                }
                if live.len() > 5 {
                    live.pop_front();
                }
                if turn == 20 {
                    all.wait(); // no thread ends before the last one starts
                }
            }
            refused
        };
        let refused: u64 = thread::scope(|scope| {
            let crowd = &crowd;
            let threads: Vec<_> = (0..8).map(|seed| scope.spawn(move || crowd(seed))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert!(refused > 0, "the limit was never reached: {config:?}");
        assert!(device.held_peak_bytes() <= 48 * MIB, "{config:?}");
        assert_eq!(pool.stats().failures, refused);
        assert_exact(&device, &pool);
    }
}

// The contents of a buffer were visible to the next user, or to the user of a neighbour.
#[test]
fn cve_2023_4969_the_next_tenant_sees_nothing_of_the_last() {
    for (zero, config) in [ZeroPolicy::OnAllocate, ZeroPolicy::OnReturn]
        .into_iter()
        .flat_map(|zero| configs().map(|config| (zero, config)))
    {
        let device = SimDevice::new();
        let pool = BucketPool::builder(device.clone()).arena(config.clone()).zero(zero).build();
        let on = device.clock().default_stream();
        let shows = |buffer: &PooledBuffer<_>| device.read(on, &buffer.on(on).unwrap());
        let [first, last, beside] = [(); 3].map(|()| pool.allocate(8 * KIB).unwrap());
        for buffer in [&first, &last, &beside] {
            device.fill(on, &buffer.on(on).unwrap(), 0xEE);
        }
        drop((first, last));
        let whole = pool.allocate(16 * KIB).unwrap();
        assert_eq!(shows(&whole), [0; 16 << 10], "{config:?}");
        assert_eq!(shows(&beside), [0xEE; 8 << 10], "{config:?}");
    }
}

// The buffers of an ended thread stayed where no other thread looked for them.
#[test]
fn thread_exit_what_threads_leave_behind_is_everybodys() {
    let device = SimDevice::new();
    let pool = bare(&device, ArenaConfig::segments(MIB));
    for _ in 0..300 {
        let one = |pool: &Pool| (pool.allocate(300 * KIB).unwrap(), pool.allocate(KIB).unwrap());
        let left = thread::scope(|scope| scope.spawn(|| one(&pool).0).join().unwrap());
        assert_eq!(left.size(), 300 * KIB);
    }
    assert_eq!(device.calls().allocations, 1);
    assert_eq!((pool.clear().unwrap(), pool.stats().reserved_bytes), (MIB, 0));
}

// A panic while a buffer was held freed its memory twice, or not at all.
#[test]
fn arrow_10378_a_panic_gives_what_it_held_back_once() {
    for config in configs() {
        let device = SimDevice::new();
        let pool = bare(&device, config);
        let held = catch_unwind(AssertUnwindSafe(|| {
            let _buffers = [pool.allocate(MIB).unwrap(), pool.allocate(KIB).unwrap()];
            resume_unwind(Box::new("a bug in the program"));
        }));
        assert!(held.is_err());
        assert_eq!((pool.stats().deallocations, pool.stats().allocated_bytes), (2, 0));
        assert_exact(&device, &pool);
        assert!(pool.allocate(MIB + KIB).is_ok());
    }
}
