//! The configurations by name do what the systems that they come from describe.
#![expect(clippy::unwrap_used, reason = "tests")]

use pool_config::preset::{self, BUCKET_SIZES, SMALL_BLOCKS, TileUse};
use pool_core::port::Limit;
use pool_core::{BucketPool, GIB, KIB, MIB, Why};
use pool_sim::SimDevice;

/// Points of the n-th of a hundred tiles: 1.5 to 2.5 million, another number each time.
fn points(n: u64) -> u64 {
    1_500_000 + n.wrapping_mul(0x9E37_79B9_7F4A_7C15) % 1_000_000
}

/// A tile's four arrays: points, normals, 12 features and 20 neighbours of each point.
fn tile(pool: &BucketPool<SimDevice>, n: u64) {
    let arrays: Vec<_> =
        [12, 12, 48, 80].map(|bytes| pool.allocate(points(n) * bytes).unwrap()).into();
    assert_eq!(arrays.len(), 4);
}

#[test]
fn tiles_of_all_sizes_hit_more_than_the_85_per_cent_that_were_hoped_for() {
    let device = SimDevice::with_capacity(6 * GIB);
    let pool = preset::tile_pipeline(device.clone()).build();
    (0..100).for_each(|n| tile(&pool, n));
    let stats = pool.stats();
    assert_eq!((stats.allocations, stats.returns + stats.evictions), (400, 400));
    assert!(stats.hit_rate() > 0.95, "{stats}");
    assert!(stats.reuses == stats.hits && stats.keys <= 7, "{stats}");
    assert!(stats.cached_bytes <= 4 * GIB && device.held_peak_bytes() <= GIB);
}

#[test]
fn at_most_twenty_arrays_of_a_size_and_four_gibibytes_stay() {
    let pool = preset::tile_pipeline(SimDevice::new()).build();
    let live: Vec<_> = (0..30).map(|_| pool.allocate(MIB).unwrap()).collect();
    drop(live);
    assert_eq!(pool.cached_buffers(), [(MIB, 20)].into());
    assert_eq!(pool.stats().evictions, 10);
    let live: Vec<_> = (0..10).map(|_| pool.allocate(GIB).unwrap()).collect();
    drop(live);
    pool.trim(0).unwrap();
    // Large ones go first, but for each fourth, which is the oldest.
    assert_eq!(pool.cached_buffers(), [(MIB, 18), (GIB, 3)].into());
    let batch = preset::tile_pipeline_for(SimDevice::new(), TileUse::Batch).build();
    let live: Vec<_> = (0..40).map(|_| batch.allocate(MIB).unwrap()).collect();
    drop(live);
    assert_eq!(batch.cached_buffers(), [(MIB, 30)].into());
}

#[test]
fn a_full_gpu_is_flushed_and_the_request_tried_again() {
    let device = SimDevice::with_capacity(GIB);
    let pool = preset::tile_pipeline(device.clone()).build();
    (0..8).for_each(|n| drop(pool.allocate((64 << n) * MIB / 128)));
    assert!(pool.allocate(900 * MIB).is_ok());
    assert_eq!(device.held_peak_bytes(), GIB);
}

#[test]
fn the_seven_buckets_round_up_and_larger_requests_go_past_them() {
    let pool = preset::embedding(SimDevice::new()).build();
    assert_eq!(BUCKET_SIZES.len(), 7);
    for (requested, allocated) in [(1, 4 * KIB), (4 * KIB + 1, 16 * KIB), (5 * MIB, 16 * MIB)] {
        let buffer = pool.allocate(requested).unwrap();
        assert_eq!((buffer.size(), buffer.allocated_size()), (requested, allocated));
    }
    let table = pool.allocate(46_881_792).unwrap(); // the embedding table of bert_embed
    assert_eq!((table.allocated_size(), pool.stats().bypasses), (46_881_792, 1));
    drop(table);
    assert!(!pool.cached_buffers().contains_key(&46_881_792));
}

#[test]
fn the_limit_is_24_gib_and_shrinking_starts_with_the_largest() {
    let pool = preset::embedding(SimDevice::new()).build();
    assert_eq!(pool.available_bytes(), 24 * GIB);
    assert_eq!(pool.allocate(25 * GIB).unwrap_err().why(), Why::Limit(Limit::Reserved));
    pool.warm_up(&[(16 * MIB, 2), (MIB, 4), (4 * KIB, 8)]).unwrap();
    assert_eq!(pool.shrink_to(5 * MIB).unwrap(), 32 * MIB);
    assert_eq!(pool.cached_buffers(), [(4 * KIB, 8), (MIB, 4)].into());
    let (held, other) = (pool.allocate(MIB).unwrap(), pool.allocate(30 * MIB).unwrap());
    pool.clear().unwrap();
    assert_eq!(pool.outstanding_buffers(), [(MIB, 1), (30 * MIB, 1)].into());
    pool.deallocate(held);
    assert_eq!(pool.outstanding_buffers(), [(30 * MIB, 1)].into());
    drop(other);
    assert!(pool.outstanding_buffers().is_empty());
    assert_eq!(pool.available_bytes(), 24 * GIB);
}

#[test]
fn results_of_element_wise_operations_come_back_by_their_exact_size() {
    let pool = preset::ndarray(SimDevice::new()).build();
    let live: Vec<_> = (0..20).map(|_| pool.allocate(4000).unwrap()).collect();
    let large: Vec<_> = (0..5).map(|_| pool.allocate(16 * MIB).unwrap()).collect();
    drop((live, large));
    assert_eq!(pool.cached_buffers(), [(4000, 8), (16 * MIB, 2)].into());
    for (bytes, past) in [(64 * MIB, 0), (64 * MIB + 1, 1)] {
        let before = pool.stats().bypasses;
        drop(pool.allocate(bytes).unwrap());
        assert_eq!(pool.stats().bypasses - before, past, "{bytes}");
    }
    (1..200).for_each(|n| drop(pool.allocate(MIB + n).unwrap()));
    pool.trim(0).unwrap();
    assert!(pool.stats().cached_bytes <= 256 * MIB);
}

#[test]
fn small_tensors_find_blocks_ahead_of_time_and_keep_16_mib() {
    let device = SimDevice::new();
    let pool = preset::small_tensors(device.clone()).build();
    assert_eq!(pool.cached_buffers(), SMALL_BLOCKS.into());
    let ahead = pool.stats().cached_bytes;
    assert_eq!(pool.stats().peak_cached_bytes, ahead);
    for (requested, allocated) in [(1, 64), (65, 128), (1025, 2 * KIB), (16 * KIB, 16 * KIB)] {
        assert_eq!(pool.allocate(requested).unwrap().allocated_size(), allocated);
    }
    let weights = pool.allocate(16 * KIB + 1).unwrap();
    assert_eq!((weights.allocated_size(), pool.stats().bypasses), (16 * KIB + 1, 1));
    let live: Vec<_> = (0..2000).map(|_| pool.allocate(16 * KIB).unwrap()).collect();
    drop(live);
    pool.trim(0).unwrap();
    let stats = pool.stats();
    assert!(stats.cached_bytes <= 16 * MIB, "{stats}");
    assert_eq!(stats.peak_cached_bytes, 16 * MIB, "{stats}");
    pool.reset_stats();
    assert_eq!(pool.stats().peak_cached_bytes, pool.stats().cached_bytes);
}

#[test]
fn a_device_that_has_nothing_ahead_of_time_has_it_later() {
    let device = SimDevice::with_capacity(1024);
    let pool = preset::small_tensors(device).build();
    assert_eq!(pool.stats().cached_bytes, 1024);
    assert!(pool.allocate(512).is_ok());
}
