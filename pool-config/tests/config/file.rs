//! Configuration files: what they say is what the builder's methods say.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use pool_config::PoolConfig;
use pool_config::preset::{self, TileUse};
use pool_core::limits::{FullBucket, FullPool, Retention};
use pool_core::stream::StealPolicy;
use pool_core::{ArenaConfig, BucketPool, GIB, KIB, MIB, PoolBuilder, ZeroPolicy};
use pool_sim::SimDevice;
use std::time::Duration;

type Builder = PoolBuilder<SimDevice>;
/// A policy, the line of a key, and what the method of the builder does.
type Row = (&'static str, &'static str, fn(Builder) -> Builder);

fn read(text: &str) -> PoolConfig {
    toml::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// What a program can see of the settings of a pool. The pool is used and dropped.
fn seen(builder: Builder) -> String {
    let pool = builder.build();
    let limits = format!("{:?}", pool.stats());
    let small: Vec<_> = (0..4).map(|_| pool.allocate(5000).unwrap()).collect();
    let large: Vec<_> = (0..4).map(|_| pool.allocate(MIB).unwrap()).collect();
    let first: Vec<_> = small.iter().map(|buffer| buffer.contents().unwrap()[0]).collect();
    drop(large);
    drop(small);
    pool.trim(0).unwrap();
    let cached = pool.cached_buffers();
    let wide = pool.allocate(40 * MIB).map(|buffer| buffer.allocated_size());
    let wide = wide.map_err(|error| error.to_string());
    let rest = pool.allocate(12 * MIB).map(drop).map_err(|error| error.to_string());
    let after = format!("{:?} {:?}", pool.stats(), pool.allocator().calls());
    let mut gone = Vec::new();
    for second in 0..3 {
        gone.push(pool.tick(Duration::from_secs(second)).unwrap());
    }
    let name = pool.name();
    format!("{name} {pool:?} {limits} {first:?} {cached:?} {wide:?} {rest:?} {after} {gone:?}")
}

/// What each key sets is what the method of the builder sets, and it is seen.
#[test]
fn each_key_is_a_method_of_the_builder() {
    let rows: [Row; 23] = [
        ("pow2", "name = 'frames'", |builder| builder.name("frames")),
        ("pow2", "reserved_limit = '32M'", |builder| builder.reserved_limit(32 * MIB)),
        ("pow2", "memory_fraction = '25%'", |builder| builder.memory_fraction(0.25)),
        ("pow2", "cached_limit = '1M'", |builder| builder.cached_limit(MIB)),
        ("pow2", "cached_limit = 0", |builder| builder.cached_limit(0)),
        ("pow2", "bucket_limit = 2", |builder| builder.bucket_limit(2)),
        ("pow2", "large_bucket_limit = ['1M', 1]", |builder| builder.large_bucket_limit(MIB, 1)),
        ("pow2", "bucket_limit = 1\nfull_bucket = 'refuse_newest'", |builder| {
            builder.bucket_limit(1).full_bucket(FullBucket::RefuseNewest)
        }),
        ("pow2", "cached_limit = '1M'\nfull_pool = 'refuse_newest'", |builder| {
            builder.cached_limit(MIB).full_pool(FullPool::RefuseNewest)
        }),
        ("pow2", "window = [1, '64K']", |builder| builder.window(1..=64 * KIB)),
        ("pow2", "retention = 2", |builder| {
            builder.retention(Retention { allocations: Some(2), time: None })
        }),
        ("pow2", "retention = '1500ms'", |builder| {
            let time = Some(Duration::from_millis(1500));
            builder.retention(Retention { allocations: None, time })
        }),
        ("pow2", "retention = { allocations = 7, time = '1s' }", |builder| {
            let time = Some(Duration::from_secs(1));
            builder.retention(Retention { allocations: Some(7), time })
        }),
        ("pow2", "ahead = [['8K', 2], [512, 1]]", |builder| builder.ahead(&[(8192, 2), (512, 1)])),
        ("pow2", "zero = 'on_allocate'", |builder| builder.zero(ZeroPolicy::OnAllocate)),
        ("pow2", "zero = 'on_return'", |builder| builder.zero(ZeroPolicy::OnReturn)),
        ("pow2", "statistics = false", |builder| builder.statistics(false)),
        ("arena:torch", "max_split_size_mb = 20", |builder| {
            builder.arena(ArenaConfig::torch().max_split(20 * MIB))
        }),
        ("arena:torch", "garbage_collection_threshold = '10%'", |builder| {
            builder.arena(ArenaConfig::torch().gc_threshold(0.1))
        }),
        ("arena:torch", "caching_allocator = false", |builder| {
            builder.arena(ArenaConfig::torch().uncached())
        }),
        ("preset:tile_pipeline", "tile_use = 'high_vram'", |_| {
            preset::tile_pipeline_for(SimDevice::with_capacity(128 * MIB), TileUse::HighVram)
        }),
        ("preset:tile_pipeline", "tile_use = 'high_vram'\nbucket_limit = 3", |_| {
            let device = SimDevice::with_capacity(128 * MIB);
            preset::tile_pipeline_for(device, TileUse::HighVram).bucket_limit(3)
        }),
        ("preset:caching", "max_split_size_mb = 20", |_| {
            let settings: preset::Caching = "max_split_size_mb:20".parse().unwrap();
            settings.over(SimDevice::with_capacity(128 * MIB))
        }),
    ];
    let device = || BucketPool::builder(SimDevice::with_capacity(128 * MIB));
    for (policy, line, by_method) in rows {
        // Each on a device of its own, whose calls are compared.
        let plain = || read(&format!("policy = '{policy}'")).set(device()).unwrap();
        let by_file = read(&format!("policy = '{policy}'\n{line}")).set(device()).unwrap();
        let by_file = seen(by_file);
        assert_eq!(by_file, seen(by_method(plain())), "{policy}, {line}");
        assert_ne!(by_file, seen(plain()), "{policy}, {line}: it has no effect that is seen");
    }
}

/// Of these a pool of one thread on one stream shows nothing.
#[test]
fn shards_and_what_streams_steal_are_set() {
    let set = |line: &str| read(&format!("policy = 'pow2'\n{line}")).pool(SimDevice::new());
    let wrong = set("shards = 1000").map(|_| ()).unwrap_err();
    assert_eq!(wrong.to_string(), "`shards` of 1000; expected 1 to 64");
    for (word, steal, hits) in [
        ("never", StealPolicy::Never, 0),
        ("ordered", StealPolicy::Ordered, 0),
        ("wait", StealPolicy::Wait, 1),
    ] {
        let config = read(&format!("policy = 'pow2'\nsteal = '{word}'"));
        let device = SimDevice::new();
        let by_method = BucketPool::builder(device.clone()).steal(steal).build();
        for pool in [config.pool(device).unwrap(), by_method] {
            let [first, second] = [(), ()].map(|()| pool.allocator().stream());
            let mut buffer = pool.allocate_on(&first, 4096).unwrap();
            buffer.write_at(0, b"work").unwrap();
            drop(buffer);
            drop(pool.allocate_on(&second, 4096).unwrap());
            assert_eq!(pool.stats().hits, hits, "{word}");
        }
    }
}

/// What a file refuses, a line each.
#[test]
fn a_wrong_value_is_named_with_what_was_expected() {
    let lines = [
        "cached_limit = '25%'",
        "reserved_limit = '50%'",
        "cached_share = '64M'",
        "memory_fraction = '8G'",
        "cached_share = 'much'",
        "cached_limit = 'much%'",
        "window = ['25%', 1]",
        "window = ['64M', 1]",
        "window = [1]",
        "large_bucket_limit = 4",
        "large_bucket_limit = ['1M', -1]",
        "full_bucket = 'refuse'",
        "full_bucket = 'refuse_newest'",
        "full_pool = 'refuse_newest'",
        "zero = true",
        "zero = 'always'",
        "steal = 'Never'",
        "statistics = 'no'",
        "shards = 0",
        "retention = -1",
        "retention = '30'",
        "retention = '1.5s'",
        "retention = true",
        "retention = { age = 30 }",
        "retention = { time = 30 }",
        "tile_use = 'huge'",
        "tile_use = 'batch'",
        "max_split_size_mb = 256",
        "garbage_collection_threshold = 0.5",
        "caching_allocator = false",
        "name = 7",
        "memory_fraction = '150%'",
        "memory_fraction = '50%'",
        "ahead = [['64K', 2]]\nbucket_limit = 1",
        "policy = 'preset:caching'\nmax_split_size_mb = 19",
        "policy = 'arena'\nmax_split_size_mb = 64",
        "policy = 'arena:torch'\ngarbage_collection_threshold = 80",
        "policy = 'arena'\ngarbage_collection_threshold = '80%'\nreserved_limit = '1G'",
        "policy = 'preset:small_tensors'\ncached_limit = '128K'",
    ];
    let told = lines.map(|line| {
        let text = match line.starts_with("policy") {
            true => line.to_owned(),
            false => format!("policy = 'pow2'\n{line}"),
        };
        let error = match toml::from_str::<PoolConfig>(&text) {
            Err(error) => error.message().to_owned(),
            Ok(config) => match config.pool(SimDevice::new()) {
                Err(error) => error.to_string(),
                Ok(_) => "accepted".to_owned(),
            },
        };
        assert_eq!(error.lines().count(), 1, "{error}");
        format!("{}\n  {error}", line.replace('\n', "; "))
    });
    insta::assert_snapshot!(told.join("\n"));
}

/// The other name of a limit may also be in the file of a preset.
#[test]
fn keys_override_what_a_preset_sets() {
    let text = "policy = 'preset:ndarray'\nlarge_bucket_limit = ['1M', 4]\nzero = 'on_return'\n\
                full_bucket = 'evict_oldest'\nwindow = [1, '8M']\ncached_limit = '1G'";
    let pool = read(text).pool(SimDevice::new()).unwrap();
    let live: Vec<_> = (0..6).map(|_| pool.allocate(2 * MIB).unwrap()).collect();
    assert_eq!(live[0].contents().unwrap()[0], 0);
    drop(live);
    pool.trim(0).unwrap();
    assert_eq!(pool.cached_buffers(), [(2 * MIB, 4)].into());
    assert_eq!(pool.stats().cached_limit_bytes, Some(GIB));
    drop(pool.allocate(9 * MIB).unwrap());
    assert_eq!(pool.stats().bypasses, 1);
}
