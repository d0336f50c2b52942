use crate::sim::SimDevice;
use crate::{BucketPolicy, BucketPool, DeviceAllocator, KIB, StreamClock};

/// Each policy, granule and window hits in the thread's own cache, without the lock of the book.
#[test]
fn a_freed_block_is_in_the_threads_own_cache_for_its_class() {
    let builder = || BucketPool::builder(SimDevice::new());
    let pools = [
        builder().build(),
        builder().policy(BucketPolicy::tiered(&[4 * KIB, 64 * KIB])).build(),
        builder().policy(BucketPolicy::Fit { alpha: 2.0 }).granule(48).build(),
        builder().policy(BucketPolicy::Exact).granule(48).build(),
        builder().window(2..=u64::MAX).build(),
    ];
    for pool in pools {
        let bytes = pool.allocate(3000).unwrap().allocated_size();
        let hit = |requested| {
            let stream = pool.default_stream();
            let record = pool.store().hit(stream, requested, (), 0)?;
            let found = record.bytes;
            drop(crate::pool::buffer::PooledBuffer::new(&pool.owner, record));
            Some(found)
        };
        assert_eq!(hit(3000), Some(bytes), "{pool:?}");
        assert_eq!(hit(bytes + 1), None, "{pool:?}");
    }
    let windowed = builder().window(1000..=2000).build();
    drop(windowed.allocate(1000).unwrap());
    let bypass = windowed.store().hit(windowed.default_stream(), 999, (), 0);
    assert!(bypass.is_none(), "a bypass hits nothing");
}

/// As if a graph were launched on many streams of one launch each.
#[test]
fn a_private_pool_keeps_few_marks_of_streams_that_ended() {
    let device = SimDevice::new();
    let pool = BucketPool::new(device.clone());
    let (clock, privates) = (device.clock(), &pool.store().privates);
    let id = privates.open();
    for _ in 0..1000 {
        let once = device.stream();
        privates.put_behind(id, clock, clock.mark(&once));
        clock.retire(&once).unwrap();
        device.run();
    }
    let marks = privates.behind(id).len();
    assert!(marks <= 3, "{marks} marks of 1000 streams");
}
