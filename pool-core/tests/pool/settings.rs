//! Settings that cannot be: `build` replaces them, `try_build` names them.
#![expect(clippy::unwrap_used, reason = "tests")]

use pool_config::preset::Preset;
use pool_config::{PolicySpec, PoolConfig};
use pool_core::limits::{CachedLimit, FullBucket, FullPool};
use pool_core::{ArenaConfig, BucketPolicy, BucketPool, KIB, MIB, PoolBuilder};
use pool_sim::SimDevice;

type Builder = PoolBuilder<SimDevice>;

fn refused(set: impl FnOnce(Builder) -> Builder) -> String {
    let builder = set(BucketPool::builder(SimDevice::new()));
    let error = builder.clone().try_build().map(|_| "accepted").unwrap_err().to_string();
    // `build` makes a pool all the same.
    let buffer = builder.build().allocate(100);
    assert!(buffer.is_ok_and(|buffer| buffer.size() == 100), "{error}");
    error
}

/// As [`refused`], for settings whose pool cannot serve a small request either.
fn refused_and_useless(set: impl FnOnce(Builder) -> Builder) -> String {
    let builder = set(BucketPool::builder(SimDevice::new()));
    let error = builder.clone().try_build().map(|_| "accepted").unwrap_err().to_string();
    assert!(builder.build().allocate(100).is_err(), "{error}");
    error
}

#[test]
fn each_setting_that_cannot_be_is_named_with_what_was_expected() {
    let errors = [
        refused(|builder| builder.policy(BucketPolicy::Fit { alpha: 0.5 })),
        refused(|builder| builder.policy(BucketPolicy::Fit { alpha: f64::NAN })),
        refused(|builder| builder.policy(BucketPolicy::tiered(&[]))),
        refused(|builder| builder.policy(BucketPolicy::Tiered(vec![0]))),
        refused(|builder| builder.granule(0)),
        refused(|builder| builder.memory_fraction(7.0)),
        refused(|builder| builder.memory_fraction(f64::NAN)),
        refused(|builder| builder.cached_limit(CachedLimit::OfPeak(25.0))),
        refused(|builder| builder.cached_limit(CachedLimit::OfPeak(-0.1))),
        #[expect(clippy::reversed_empty_ranges, reason = "the mistake")]
        refused(|builder| builder.window(4096..=1)),
        refused(|builder| builder.arena(ArenaConfig::pages(3000, 0.05))),
        refused(|builder| builder.arena(ArenaConfig::pages(0, 0.05))),
        refused(|builder| builder.arena(ArenaConfig::pages(64 * KIB, -1.0))),
        refused(|builder| builder.arena(ArenaConfig::pages(64 * KIB, 5000.0))),
        refused(|builder| builder.arena(ArenaConfig::pages(64 * KIB, f64::NAN))),
        refused(|builder| builder.arena(ArenaConfig::segments(100))),
        refused(|builder| builder.arena(ArenaConfig::grow().granule(48))),
        refused(|builder| builder.arena(ArenaConfig::torch().gc_threshold(80.0))),
        refused(|builder| builder.arena(ArenaConfig::grow()).bucket_limit(8)),
        refused(|builder| builder.large_bucket_limit(MIB, 8).arena(ArenaConfig::grow())),
        refused(|builder| builder.shards(0)),
        refused(|builder| builder.shards(1000)),
    ];
    insta::assert_snapshot!(errors.join("\n"));
}

/// Settings that are in their ranges, but of which one makes another one void.
#[test]
fn a_setting_that_has_no_effect_beside_another_is_refused() {
    let errors = [
        refused(|builder| builder.bucket_limit(0)),
        refused(|builder| builder.bucket_limit(0).full_bucket(FullBucket::RefuseNewest)),
        refused(|builder| builder.bucket_limit(0).large_bucket_limit(MIB, 0)),
        refused(|builder| builder.large_bucket_limit(0, 0)),
        refused(|builder| builder.bucket_limit(0).large_bucket_limit(MIB, 1).window(1..=64)),
        refused(|builder| {
            let tiers = builder.policy(BucketPolicy::tiered(&[4 * KIB, 64 * KIB]));
            tiers.bucket_limit(0).large_bucket_limit(MIB, 4)
        }),
        refused(|builder| builder.full_pool(FullPool::RefuseNewest)),
        refused(|builder| builder.full_pool(FullPool::RefuseNewest).cached_limit(0)),
        refused(|builder| {
            let unlimited = builder.cached_limit(CachedLimit::Unlimited);
            unlimited.full_pool(FullPool::RefuseNewest)
        }),
        refused(|builder| {
            let full = builder.full_pool(FullPool::RefuseNewest).cached_limit(MIB);
            full.arena(ArenaConfig::grow())
        }),
        refused(|builder| {
            let full = builder.full_pool(FullPool::RefuseNewest).cached_limit(4 * KIB);
            full.ahead(&[(8 * KIB, 1)])
        }),
        refused(|builder| builder.full_bucket(FullBucket::RefuseNewest)),
        refused(|builder| builder.full_bucket(FullBucket::RefuseNewest).arena(ArenaConfig::grow())),
        refused(|builder| builder.shards(8).arena(ArenaConfig::torch())),
        refused(|builder| builder.shards(8).arena(ArenaConfig::grow().uncached())),
        refused(|builder| builder.shards(8).bucket_limit(8)),
        refused(|builder| builder.window(0..=0)),
        refused(|builder| builder.policy(BucketPolicy::tiered(&[4096])).window(4097..=MIB)),
        refused(|builder| builder.granule(u64::MAX)),
        refused(|builder| builder.policy(BucketPolicy::tiered(&[64 * KIB])).cached_limit(64 * KIB)),
        refused(|builder| builder.cached_limit(1000)),
        refused(|builder| builder.memory_fraction(0.5)),
        refused(|builder| builder.arena(ArenaConfig::torch().gc_threshold(0.8))),
        refused(|builder| {
            let pages = ArenaConfig::pages(64 * KIB, 0.05).gc_threshold(0.8);
            builder.arena(pages).reserved_limit(MIB)
        }),
    ];
    insta::assert_snapshot!(errors.join("\n"));
}

#[test]
fn blocks_ahead_that_other_settings_leave_no_room_for_are_refused() {
    let tiers = || BucketPolicy::tiered(&[4 * KIB, 64 * KIB]);
    let small = |builder| Preset::SmallTensors.set(builder);
    let errors = [
        refused(|builder| builder.reserved_limit(2 * MIB).ahead(&[(MIB, 4)])),
        refused(|builder| builder.reserved_limit(2 * MIB).ahead(&[(MIB, 1), (MIB + 1, 1)])),
        refused(|builder| builder.reserved_limit(2 * MIB).ahead(&[(MIB, usize::MAX)])),
        refused(|builder| builder.bucket_limit(2).ahead(&[(MIB, 2), (MIB - 1, 2)])),
        refused(|builder| builder.large_bucket_limit(MIB, 2).ahead(&[(4 * KIB, 9), (MIB, 4)])),
        refused(|builder| builder.cached_limit(MIB).ahead(&[(MIB, 1)])),
        refused(|builder| builder.cached_limit(MIB).ahead(&[(MIB / 2, 3)])),
        refused(|builder| builder.cached_limit(0).ahead(&[(1, 1)])),
        refused(|builder| builder.cached_limit(CachedLimit::OfPeak(0.25)).ahead(&[(1, 1)])),
        refused(|builder| builder.policy(tiers()).ahead(&[(64 * KIB, 1), (64 * KIB + 1, 1)])),
        refused(|builder| builder.window(1..=MIB).ahead(&[(MIB + 1, 1)])),
        refused(|builder| builder.ahead(&[(u64::MAX, 1)])),
        refused(|builder| small(builder).cached_limit(128 * KIB)),
        refused(|builder| small(builder).ahead(&[(20_000, 2)])),
        refused(|builder| builder.arena(ArenaConfig::grow()).cached_limit(MIB).ahead(&[(MIB, 2)])),
        refused(|builder| {
            let torch = ArenaConfig::torch();
            builder.arena(torch).reserved_limit(4 * MIB).cached_limit(MIB).ahead(&[(1, 1)])
        }),
        refused(|builder| {
            builder.arena(ArenaConfig::torch()).reserved_limit(MIB).ahead(&[(MIB, 2)])
        }),
        refused_and_useless(|builder| {
            let pages = ArenaConfig::pages(64 * KIB, 0.05).reserved_limit(32 * KIB);
            builder.arena(pages).ahead(&[(1, 1)])
        }),
        refused(|builder| builder.arena(ArenaConfig::torch().uncached()).ahead(&[(1, 1)])),
    ];
    insta::assert_snapshot!(errors.join("\n"));
}

/// For blocks ahead of many sizes beside many limits: what `try_build` accepts, the pool has when it is
/// made (with an arena, unless it takes more than they need), and what it refuses, no `warm_up` has.
#[test]
fn blocks_ahead_are_refused_if_no_warm_up_has_them_and_only_then() {
    let policies = ["pow2", "exact", "fit:2", "tiered:4K+64K", "arena", "arena:torch"];
    let policies = policies.map(|text| text.parse::<PolicySpec>().unwrap());
    let limits: [fn(Builder) -> Builder; 7] = [
        |builder| builder,
        |builder| builder.reserved_limit(128 * KIB),
        |builder| builder.cached_limit(128 * KIB),
        |builder| builder.window(4096..=100_000),
        |builder| builder.reserved_limit(MIB).cached_limit(192 * KIB),
        |builder| builder.reserved_limit(2 * MIB).cached_limit(4 * MIB),
        |builder| builder.cached_limit(CachedLimit::OfPeak(0.5)),
    ];
    let sizes = [1, 4096, 60_000, 64 * KIB, 100_000, MIB + 1];
    let blocks = || sizes.iter().flat_map(|bytes| (1..5).map(|count| [(*bytes, count), (4000, 1)]));
    let (mut accepted, mut refused) = (0, 0);
    for (policy, (at, limit)) in
        policies.iter().flat_map(|p| limits.iter().enumerate().map(move |l| (p, l)))
    {
        let most = if policy.has_arena() { &[None][..] } else { &[None, Some(3)] };
        for (max_blocks, blocks) in most.iter().flat_map(|most| blocks().map(move |b| (most, b))) {
            let builder = limit(policy.set(BucketPool::builder(SimDevice::new())));
            let builder = max_blocks.iter().copied().fold(builder, Builder::bucket_limit);
            let warm = builder.clone().build().warm_up(&blocks);
            let ahead = builder.ahead(&blocks).try_build().map(|pool| pool.cached_buffers());
            // An arena may take more than the blocks need.
            let agrees = (policy.has_arena() && ahead.is_ok()) || ahead.is_ok() == warm.is_ok();
            let row = format!("{policy}, limit {at}, {max_blocks:?}, {blocks:?}");
            assert!(agrees, "{row}: {ahead:?}, {warm:?}");
            *(if ahead.is_ok() { &mut accepted } else { &mut refused }) += 1;
        }
    }
    assert!(accepted > 300 && refused > 300, "{accepted} accepted, {refused} refused");
}

#[test]
fn settings_that_can_be_are_accepted() {
    let builder = BucketPool::builder(SimDevice::with_capacity(64 * MIB));
    let policies = [
        "exact",
        "pow2:min=64",
        "tiered:4K+64K",
        "fit:1",
        "arena",
        "arena:torch",
        "arena:pages=4K:slack=0%",
        "arena:pages=1G:slack=1000%:round=4K",
    ];
    for text in policies {
        let spec: PolicySpec = text.parse().unwrap();
        assert!(spec.set(builder.clone()).try_build().is_ok(), "{text}");
    }
    for preset in Preset::ALL {
        assert!(preset.set(builder.clone()).try_build().is_ok(), "{preset}");
    }
    let corrected = ArenaConfig::pages(4096, 0.0).granule(48).granule(64);
    assert!(builder.clone().arena(corrected).try_build().is_ok(), "the last value counts");
    let corrected = ArenaConfig::torch().gc_threshold(80.0).gc_threshold(0.8);
    assert!(builder.clone().arena(corrected).try_build().is_ok(), "the last value counts");
    let edges = builder.memory_fraction(1.0).window(1..=1).cached_limit(CachedLimit::OfPeak(0.0));
    assert!(edges.try_build().is_ok());
    let builder = || BucketPool::builder(SimDevice::with_capacity(64 * MIB));
    let accepted = [
        builder().shards(64).cached_limit(0),
        builder().shards(1).bucket_limit(1).full_bucket(FullBucket::RefuseNewest),
        builder().bucket_limit(0).large_bucket_limit(MIB, 1),
        builder().large_bucket_limit(MIB, 0).ahead(&[(MIB - 1, 0), (1000, 9)]),
        builder().cached_limit(1024).granule(512).ahead(&[(512, 2)]),
        builder().reserved_limit(0).memory_fraction(0.0),
        builder().arena(ArenaConfig::torch().gc_threshold(0.8)).shards(1).cached_limit(1),
        builder().arena(ArenaConfig::grow()).reserved_limit(MIB).ahead(&[(MIB / 2, 2)]),
    ];
    for builder in accepted {
        assert!(builder.try_build().is_ok());
    }
    let unknown = BucketPool::builder(SimDevice::new()).memory_fraction(0.5);
    assert!(unknown.reserved_limit(MIB).try_build().is_ok(), "the reserved limit holds");
}

#[test]
fn a_file_over_a_wrong_builder_is_refused() {
    let config: PoolConfig = toml::from_str("policy = 'arena'").unwrap();
    let builder = BucketPool::builder(SimDevice::new()).bucket_limit(8);
    let error = config.set(builder).unwrap_err().to_string();
    assert!(error.starts_with("`bucket_limit`"), "{error}");
}
