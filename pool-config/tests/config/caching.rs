//! The configuration `caching`: the constants, the figures and the settings.

use pool_config::preset::{self, Caching};
use pool_core::{KIB, MIB};
use pool_sim::SimDevice;

#[test]
fn segments_and_splits_are_those_of_pytorch() {
    let pool = preset::caching(SimDevice::new()).build();
    let segments = |bytes: u64| {
        let before = pool.device_stats().unwrap().reserved_bytes.all.current;
        let buffer = pool.allocate(bytes).unwrap();
        let after = pool.device_stats().unwrap().reserved_bytes.all.current;
        let held = buffer.allocated_size();
        drop(buffer);
        pool.clear().unwrap();
        (after - before, held)
    };
    assert_eq!(segments(1), (2 * MIB, 512));
    assert_eq!(segments(MIB), (2 * MIB, MIB));
    assert_eq!(segments(MIB + 1), (20 * MIB, MIB + 512));
    assert_eq!(segments(10 * MIB - 512), (20 * MIB, 10 * MIB - 512));
    assert_eq!(segments(10 * MIB), (10 * MIB, 10 * MIB));
    assert_eq!(segments(11 * MIB), (12 * MIB, 12 * MIB), "1 MiB is not split off");
    assert_eq!(segments(10 * MIB + 512), (12 * MIB, 10 * MIB + 512), "more than 1 MiB is");
}

#[test]
fn small_and_large_keep_apart() {
    let pool = preset::caching(SimDevice::new()).build();
    drop(pool.allocate(4 * MIB).unwrap());
    let _small = pool.allocate(512).unwrap();
    let stats = pool.device_stats().unwrap();
    assert_eq!((stats.segment.small.current, stats.segment.large.current), (1, 1));
}

#[test]
fn the_figures_of_a_short_life() {
    let pool = preset::caching(SimDevice::new()).build();
    let (a, b) = (pool.allocate(1000).unwrap(), pool.allocate(3 * MIB).unwrap());
    drop(a);
    insta::assert_snapshot!(serde_json::to_string_pretty(&pool.device_stats().unwrap()).unwrap());
    pool.reset_stats();
    let allocation = pool.device_stats().unwrap().allocation.all;
    assert_eq!((allocation.current, allocation.peak, allocation.allocated), (1, 1, 0));
    let stats = pool.device_stats().unwrap();
    assert_eq!(stats.num_device_alloc, 0);
    drop(b);
}

#[test]
fn a_wide_range_is_kept_whole_for_wide_requests() {
    let settings: Caching = "max_split_size_mb:32".parse().unwrap();
    let pool = settings.over(SimDevice::new()).build();
    drop(pool.allocate(64 * MIB).unwrap());
    let _small = pool.allocate(12 * MIB).unwrap(); // not out of the wide one
    assert_eq!(pool.device_stats().unwrap().segment.all.current, 2);
    let _wide = pool.allocate(50 * MIB).unwrap(); // less than 20 MiB over
    assert_eq!(pool.device_stats().unwrap().segment.all.current, 2);
    assert_eq!(pool.device_stats().unwrap().num_device_alloc, 2);
}

#[test]
fn garbage_is_collected_near_the_limit() {
    let settings: Caching = "garbage_collection_threshold:0.5".parse().unwrap();
    let device = SimDevice::new();
    let pool = settings.over(device.clone()).reserved_limit(100 * MIB).build();
    drop(pool.allocate(30 * MIB).unwrap());
    let _other = pool.allocate(40 * MIB).unwrap();
    assert_eq!(device.held_bytes(), 40 * MIB, "70 would be above half of the limit");
    assert_eq!(pool.stats().served_by.trimmed, 0, "and nobody was refused");
}

#[test]
fn without_a_limit_garbage_is_collected_near_the_memory_of_the_device() {
    let settings: Caching = "garbage_collection_threshold:0.5".parse().unwrap();
    let device = SimDevice::with_capacity(100 * MIB);
    let pool = settings.over(device.clone()).build();
    drop(pool.allocate(30 * MIB).unwrap());
    let _other = pool.allocate(40 * MIB).unwrap();
    assert_eq!(device.held_bytes(), 40 * MIB, "70 would be above half of the device");
    assert_eq!(pool.stats().served_by.trimmed, 0, "and nobody was refused");
}

#[test]
fn a_fraction_of_the_device_is_the_limit() {
    let settings: Caching = "per_process_memory_fraction:0.25".parse().unwrap();
    let pool = settings.over(SimDevice::with_capacity(128 * MIB)).build();
    assert_eq!(pool.available_bytes(), 32 * MIB);
    assert!(pool.allocate(30 * MIB).is_ok());
    assert!(pool.allocate(34 * MIB).is_err());
}

#[test]
fn uncached_each_request_is_a_call() {
    let settings: Caching = "caching_allocator:False".parse().unwrap();
    let device = SimDevice::new();
    let pool = settings.over(device.clone()).build();
    for _ in 0..5 {
        drop(pool.allocate(3 * MIB).unwrap());
    }
    pool.clear().unwrap();
    let calls = device.calls();
    assert_eq!((calls.allocations, calls.frees, device.held_peak_bytes()), (5, 5, 3 * MIB));
}

#[test]
fn what_is_wrong_with_a_setting_is_named() {
    let bad = [
        "max_split_size_mb:19",
        "max_split_size_mb",
        "max_split_size_mb:[64,128]",
        "max_split_size_mb:1e3",
        "garbage_collection_threshold:1",
        "garbage_collection_threshold:-0.1",
        "garbage_collection_threshold:nan",
        "per_process_memory_fraction:1.5",
        "caching_allocator:Maybe",
    ];
    let errors = bad.map(|text| text.parse::<Caching>().unwrap_err().to_string());
    insta::assert_snapshot!(errors.join("\n"));
    let spaced = " max_split_size_mb: 64 ,, caching_allocator : true ".parse::<Caching>().unwrap();
    assert_eq!((spaced.max_split_mib, spaced.caching), (Some(64), true));
    assert_eq!(32 * KIB, "".parse::<Caching>().map(|_| 32 * KIB).unwrap(), "nothing set is fine");
}

#[test]
fn the_least_split_size_is_20_mib() {
    for (text, mib) in [("max_split_size_mb:20", 20), ("max_split_size_mb:21", 21)] {
        let settings = text.parse::<Caching>().map(|settings| settings.max_split_mib);
        assert_eq!(settings, Ok(Some(mib)), "{text}");
    }
}

/// `PyTorch` has lists in brackets, whose commas separate no settings.
#[test]
fn a_list_in_brackets_is_one_value() {
    let list = "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]";
    let text = format!("max_split_size_mb:64, {list} ,garbage_collection_threshold:0.8");
    let settings: Caching = text.parse().unwrap();
    assert_eq!((settings.max_split_mib, settings.gc_threshold), (Some(64), Some(0.8)));
    assert_eq!(settings.warnings(), [format!("{list} has no effect")]);
    let known = "other:[a,[b],max_split_size_mb:64,caching_allocator:False]";
    let settings: Caching = known.parse().unwrap();
    assert_eq!((settings.max_split_mib, settings.caching), (Some(512), true));
    assert_eq!(settings.warnings(), [format!("{known} has no effect")]);
    let open: Caching = "other:[a,max_split_size_mb:64".parse().unwrap();
    assert_eq!((open.max_split_mib, open.warnings().len()), (Some(512), 1));
    let closed: Caching = "other:a],max_split_size_mb:64".parse().unwrap();
    assert_eq!((closed.max_split_mib, closed.warnings().len()), (Some(64), 1));
}

#[test]
fn settings_without_effect_are_kept_as_warnings() {
    let text = "max_split_size:256,expandable_segments:True,trace_malloc_mode:1,verbose";
    let settings: Caching = text.parse().unwrap();
    assert_eq!(settings.max_split_mib, Some(512), "the default");
    let warnings = settings.warnings();
    let expected =
        ["max_split_size:256", "expandable_segments:True", "trace_malloc_mode:1", "verbose"];
    assert_eq!(warnings, expected.map(|setting| format!("{setting} has no effect")));
    let both = "garbage_collection_threshold:0.8,per_process_memory_fraction:0.5";
    let both: Caching = both.parse().unwrap();
    assert_eq!(both.warnings(), Vec::<String>::new());
    assert_eq!(both.warnings_over(&SimDevice::with_capacity(MIB)), Vec::<String>::new());
    assert_eq!(both.warnings_over(&SimDevice::new()).len(), 2, "it tells no capacity");
}

#[test]
fn settings_are_read_from_an_environment_variable() {
    // `PATH` is set everywhere and holds no setting, `BUCKETPOOL_NO_SUCH_VARIABLE` nowhere.
    assert_eq!(Caching::from_env("BUCKETPOOL_NO_SUCH_VARIABLE"), Ok(Caching::default()));
    let path = Caching::from_env("PATH").unwrap();
    assert!(!path.unknown.is_empty() && path.caching);
}
