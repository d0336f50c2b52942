//! Blocks that serve are found among many that do not, without an arena.

use pool_core::stream::StealPolicy;
use pool_core::{BucketPolicy, BucketPool, PooledBuffer};
use pool_sim::{MappedSim, SimDevice};

#[test]
fn blocks_that_are_done_are_found_behind_many_that_are_not() {
    for behind in [12, 32] {
        let device = SimDevice::new();
        let pool = BucketPool::new(MappedSim::new(device.clone()));
        let s = device.stream();
        for step in 0..2000 {
            let buffer = pool.allocate_on(&s, 4096).unwrap();
            device.kernel(&s, &buffer.on(&s).unwrap());
            drop(buffer);
            if step >= behind {
                device.advance(&s, 1); // never done with all of them
            }
        }
        let stats = pool.stats();
        assert!(stats.misses < 40 * behind, "{behind} steps behind: {stats}");
    }
}

#[test]
fn a_stream_that_is_ordered_finds_what_came_before_the_order() {
    for steal in [StealPolicy::Never, StealPolicy::Ordered] {
        for policy in [BucketPolicy::Exact, BucketPolicy::PowerOfTwo] {
            let device = SimDevice::new();
            let pool = BucketPool::builder(device.clone()).steal(steal).policy(policy).build();
            let (s, t) = (device.stream(), device.stream());
            let use_and_free = |buffers: Vec<PooledBuffer<SimDevice>>| {
                for buffer in buffers {
                    device.kernel(&s, &buffer.on(&s).unwrap());
                }
            };
            let mut before: Vec<_> =
                (0..120).map(|_| pool.allocate_on(&s, 4096).unwrap()).collect();
            let (after, probe) = (before.split_off(20), pool.allocate_on(&s, 8192).unwrap());
            use_and_free(before);
            device.kernel(&s, &probe.on(&s).unwrap());
            let _ordered = probe.on(&t).unwrap(); // t waits for s
            use_and_free(after);
            let hits = pool.stats().hits;
            let _found: Vec<_> = (0..10).map(|_| pool.allocate_on(&t, 4096).unwrap()).collect();
            assert_eq!(pool.stats().hits - hits, 10, "{steal:?}");
        }
    }
}

#[test]
fn a_stream_finds_blocks_of_the_twentieth_other_one() {
    let device = SimDevice::new();
    let pool = BucketPool::new(device.clone());
    let streams: Vec<_> = (0..21).map(|_| device.stream()).collect();
    for stream in &streams {
        drop(pool.allocate_on(stream, 16 * 1024).unwrap());
    }
    let few: Vec<_> = (0..10).map(|_| pool.allocate_on(&streams[20], 4096).unwrap()).collect();
    drop(few);
    let fresh = device.stream();
    let before = pool.stats().hits;
    let _found: Vec<_> = (0..10).map(|_| pool.allocate_on(&fresh, 4096).unwrap()).collect();
    assert_eq!(pool.stats().hits - before, 10);
}
