use super::*;
use pool_core::MIB;
use proptest::prelude::*;

#[test]
fn each_text_means_a_policy_and_is_printed_in_its_shortest_form() {
    let blocks = |policy, granule| PolicySpec::Blocks { policy, granule };
    let arena = |growth, granule| PolicySpec::Arena { growth, granule };
    let pages = |bytes, slack| Growth::Pages { bytes, slack };
    let tiered_16 = blocks(BucketPolicy::tiered(&[4 * KIB]), Some(16));
    let cases = [
        ("exact", "exact", blocks(BucketPolicy::Exact, None)),
        ("exact:round=16", "exact:round=16", blocks(BucketPolicy::Exact, Some(16))),
        ("pow2:min=1K", "pow2:min=1K", blocks(BucketPolicy::PowerOfTwo, Some(KIB))),
        (
            "tiered:64K+4096",
            "tiered:4K+64K",
            blocks(BucketPolicy::tiered(&[4 * KIB, 64 * KIB]), None),
        ),
        ("tiered:4K:round=16", "tiered:4K:round=16", tiered_16),
        (
            "fit:1.50:round=1K",
            "fit:1.5:round=1K",
            blocks(BucketPolicy::Fit { alpha: 1.5 }, Some(KIB)),
        ),
        ("arena", "arena", arena(Growth::Grow, 512)),
        ("arena:round=512", "arena", arena(Growth::Grow, 512)),
        ("arena:torch:round=64", "arena:torch:round=64", arena(Growth::Torch, 64)),
        ("arena:pages=64K", "arena:pages=64K:slack=5%", arena(pages(64 * KIB, 0.05), 512)),
        ("arena:pages=2M:slack=0.07", "arena:pages=2M:slack=7%", arena(pages(2 * MIB, 0.07), 512)),
        ("preset:caching", "preset:caching", PolicySpec::Preset(Preset::Caching)),
    ];
    for (text, printed, expected) in cases {
        let read: PolicySpec = text.parse().unwrap();
        assert_eq!(read, expected, "{text}");
        assert_eq!(read.to_string(), printed);
        assert_eq!(printed.parse(), Ok(read));
    }
}

#[test]
fn what_is_wrong_is_named() {
    let bad = [
        "",
        "exakt",
        "exact:16",
        "exact:min=3",
        "pow2:min=0",
        "pow2:min=x",
        "tiered",
        "tiered:a",
        "tiered:0",
        "tiered:1K:min=3",
        "pow2:min=512:min=1K",
        "arena:pages=64K:pages=2M",
        "arena:torch:torch",
        "fit",
        "fit:0.5",
        "fit:nan",
        "fit:2:3",
        "arena:best",
        "arena:torch:pages=64K",
        "arena:pages=1",
        "arena:pages=96K",
        "arena:pages=64K:slack=-1%",
        "arena:pages=64K:slack=25",
        "arena:slack=5%",
        "arena:segments=2M",
        "arena:round=48",
        "preset",
        "preset:tiles",
    ];
    let errors = bad.map(|text| {
        let error = text.parse::<PolicySpec>().unwrap_err();
        format!("{text}: {}", error.why())
    });
    insta::assert_snapshot!(errors.join("\n"));
}

fn any_spec() -> impl Strategy<Value = PolicySpec> {
    let granule = prop::option::of(1..=GIB);
    let policy = prop_oneof![
        Just(BucketPolicy::Exact),
        Just(BucketPolicy::PowerOfTwo),
        (1.0..1e9).prop_map(|alpha| BucketPolicy::Fit { alpha }),
    ];
    let tiers = prop::collection::vec(1..=GIB, 1..9);
    let tiers = tiers.prop_map(|tiers| PolicySpec::Blocks {
        policy: BucketPolicy::tiered(&tiers),
        granule: None,
    });
    let pages = (12..=30_u32, 0.0..ArenaConfig::MAX_SLACK);
    let growth = prop_oneof![
        Just(Growth::Grow),
        Just(Growth::Torch),
        pages.prop_map(|(bits, slack)| Growth::Pages { bytes: 1 << bits, slack }),
    ];
    prop_oneof![
        (policy, granule).prop_map(|(policy, granule)| PolicySpec::Blocks { policy, granule }),
        tiers,
        (growth, 0..=12_u32)
            .prop_map(|(growth, bits)| PolicySpec::Arena { growth, granule: 1_u64 << bits }),
    ]
}

proptest! {
    #[test]
    fn what_is_printed_is_read_as_the_same_policy(spec in any_spec()) {
        let read: PolicySpec = spec.to_string().parse().unwrap();
        prop_assert_eq!(spec, read);
    }
}
