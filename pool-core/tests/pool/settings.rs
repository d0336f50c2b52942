//! Settings that cannot be: `build` replaces them, `try_build` names them.
#![expect(clippy::unwrap_used, reason = "tests")]

use pool_config::preset::Preset;
use pool_config::{PolicySpec, PoolConfig};
use pool_core::limits::CachedLimit;
use pool_core::{ArenaConfig, BucketPolicy, BucketPool, KIB, MIB, PoolBuilder};
use pool_sim::SimDevice;

type Builder = PoolBuilder<SimDevice>;

fn refused(set: impl FnOnce(Builder) -> Builder) -> String {
    let builder = set(BucketPool::builder(SimDevice::new()));
    let error = builder.clone().try_build().unwrap_err().to_string();
    // `build` makes a pool all the same.
    assert_eq!(builder.build().allocate(100).unwrap().size(), 100, "{error}");
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
    ];
    insta::assert_snapshot!(errors.join("\n"));
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
    let corrected = corrected.gc_threshold(80.0).gc_threshold(0.8);
    assert!(builder.clone().arena(corrected).try_build().is_ok(), "the last value counts");
    let edges = builder.memory_fraction(1.0).window(1..=1).cached_limit(CachedLimit::OfPeak(0.0));
    assert!(edges.try_build().is_ok());
}

#[test]
fn a_file_over_a_wrong_builder_is_refused() {
    let config: PoolConfig = toml::from_str("policy = 'arena'").unwrap();
    let builder = BucketPool::builder(SimDevice::new()).bucket_limit(8);
    let error = config.set(builder).unwrap_err().to_string();
    assert!(error.starts_with("`bucket_limit`"), "{error}");
}
