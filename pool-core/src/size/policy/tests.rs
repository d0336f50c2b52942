use super::*;
use crate::size::units::{KIB, MIB};
use proptest::prelude::*;

fn classes(policy: BucketPolicy) -> SizeClasses {
    SizeClasses::new(policy, None, 1, LARGEST)
}

#[test]
fn each_policy_rounds_as_it_says() {
    let tiers = classes(BucketPolicy::tiered(&[4 * KIB, 64 * KIB]));
    assert_eq!(classes(BucketPolicy::Exact).of(1001).unwrap().bytes, 1001);
    assert_eq!(classes(BucketPolicy::PowerOfTwo).of(1).unwrap().bytes, 512);
    assert_eq!(classes(BucketPolicy::PowerOfTwo).of(3 * MIB).unwrap().bytes, 4 * MIB);
    assert_eq!(tiers.of(4 * KIB).unwrap().bytes, 4 * KIB);
    assert_eq!(tiers.of(4 * KIB + 1).unwrap().bytes, 64 * KIB);
    assert_eq!(tiers.of(64 * KIB + 1).unwrap(), Class { bytes: 65537, max_block_bytes: 0 });
    let fit = classes(BucketPolicy::Fit { alpha: 2.0 }).of(1001).unwrap();
    assert_eq!((fit.bytes, fit.max_block_bytes), (1024, 2048));
}

#[test]
fn tiers_are_in_order_once_each_and_none_is_of_0_bytes() {
    let tiered = BucketPolicy::tiered(&[64 * KIB, 0, 4 * KIB, 64 * KIB]);
    assert_eq!(tiered, BucketPolicy::Tiered(vec![4 * KIB, 64 * KIB]));
}

#[test]
fn the_granule_is_the_users_choice_and_the_devices() {
    let exact = SizeClasses::new(BucketPolicy::Exact, Some(16), 1, LARGEST);
    assert_eq!(exact.of(17).unwrap().bytes, 32);
    let pow2 = SizeClasses::new(BucketPolicy::PowerOfTwo, Some(16), 1, LARGEST);
    assert_eq!(pow2.of(1).unwrap().bytes, 16);
    let coarse_device = SizeClasses::new(BucketPolicy::Exact, None, 4096, LARGEST);
    assert_eq!(coarse_device.of(1).unwrap().bytes, 4096);
    let none = SizeClasses::new(BucketPolicy::Exact, Some(0), 0, LARGEST);
    assert_eq!(none.of(7).unwrap().bytes, 7);
}

#[test]
fn nonsense_factors_count_as_one_and_huge_ones_saturate() {
    for alpha in [f64::NAN, -3.0, 0.0, 0.5] {
        let class = classes(BucketPolicy::Fit { alpha }).of(512).unwrap();
        assert_eq!(class.max_block_bytes, 512, "alpha {alpha}");
    }
    let class = classes(BucketPolicy::Fit { alpha: f64::INFINITY }).of(512).unwrap();
    assert_eq!(class.max_block_bytes, u64::MAX);
}

#[test]
fn a_class_that_the_device_does_not_have_gives_way_to_the_request() {
    let classes = SizeClasses::new(BucketPolicy::PowerOfTwo, None, 4, 1000);
    assert_eq!(classes.of(500).unwrap(), Class { bytes: 512, max_block_bytes: 512 });
    assert_eq!(classes.of(601).unwrap(), Class { bytes: 604, max_block_bytes: 0 });
    assert!(classes.of(1001).unwrap().is_cached(), "refused by the device, in its own words");
}

#[test]
fn nothing_wraps_near_the_end() {
    for policy in [BucketPolicy::PowerOfTwo, BucketPolicy::Fit { alpha: 2.0 }] {
        for requested in [u64::MAX, u64::MAX - 1, u64::MAX - 510] {
            assert_eq!(classes(policy.clone()).of(requested), None, "{policy:?} {requested}");
        }
    }
    assert_eq!(classes(BucketPolicy::Exact).of(LARGEST).unwrap().bytes, LARGEST);
    assert_eq!(classes(BucketPolicy::Exact).of(LARGEST + 1), None);
}

#[test]
fn a_request_below_the_window_goes_past_the_pool() {
    for policy in [BucketPolicy::Exact, BucketPolicy::PowerOfTwo] {
        let classes = SizeClasses::new(policy, None, 1, LARGEST).within(1000..=2000);
        let pooled = [999, 1000, 2000, 2001].map(|bytes| classes.of(bytes).map(Class::is_cached));
        assert_eq!(pooled, [Some(false), Some(true), Some(true), Some(false)]);
    }
}

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![0..100_000u64, any::<u64>()]
}

fn granule() -> impl Strategy<Value = u64> {
    prop_oneof![(0_u32..14).prop_map(|bits| 1 << bits), 1_u64..5000]
}

fn any_policy() -> impl Strategy<Value = BucketPolicy> {
    prop_oneof![
        Just(BucketPolicy::Exact),
        Just(BucketPolicy::PowerOfTwo),
        prop::collection::vec(size(), 0..8).prop_map(BucketPolicy::Tiered),
        (0.0..8.0).prop_map(|alpha| BucketPolicy::Fit { alpha }),
    ]
}

proptest! {
    /// The quick way and the long way are one function.
    #[test]
    fn the_quick_way_leads_to_the_same_class(
        policy in prop_oneof![
            Just(BucketPolicy::Exact),
            Just(BucketPolicy::PowerOfTwo),
            prop::collection::vec(0_u64..100_000, 0..100).prop_map(BucketPolicy::Tiered),
            prop::collection::vec(size(), 0..8).prop_map(BucketPolicy::Tiered),
        ],
        granule in granule(),
        device_granule in granule(),
        largest in prop_oneof![Just(LARGEST), 0_u64..100_000],
        requested in prop_oneof![0_u64..100_000, LARGEST - 20_000..LARGEST + 20_000],
        (first, last) in (0_u64..3, prop_oneof![Just(u64::MAX), 0_u64..100_000]),
    ) {
        let classes = SizeClasses::new(policy, Some(granule), device_granule, largest);
        let classes = classes.within(first..=last);
        prop_assert_eq!(classes.of(requested), classes.slow(requested));
        let quick = classes.fast(requested).or_else(|| classes.slow_cached(requested));
        prop_assert_eq!(quick, classes.of_any(requested));
    }
}

proptest! {
    #[test]
    fn a_class_holds_its_request_and_grows_with_it(
        policy in any_policy(), granule in 1u64..5000, device in 1u64..5000,
        a in size(), b in size(),
    ) {
        let classes = SizeClasses::new(policy, Some(granule), device, LARGEST);
        let (small, large) = (a.min(b), a.max(b));
        if let (Some(s), Some(l)) = (classes.of(small), classes.of(large)) {
            prop_assert!(s.bytes >= small && s.bytes % device == 0);
            prop_assert!(!s.is_cached() || s.max_block_bytes >= s.bytes);
            // A request that bypasses the pool keeps its own size, even if a larger class exists.
            prop_assert!(!l.is_cached() || s.bytes <= l.bytes);
        }
        prop_assert!(classes.of(large).is_none() || classes.of(small).is_some());
    }
}
