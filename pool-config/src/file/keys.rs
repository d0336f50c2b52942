//! The list of the keys of a file.

use crate::file::PoolConfig;

/// A key of the configuration file of a pool: a row of [`PoolConfig::KEYS`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ConfigKey {
    /// The name of the key, which is that of the field of [`PoolConfig`].
    pub name: &'static str,
    /// A value as TOML has it.
    pub example: &'static str,
    /// The values that the key takes.
    pub values: &'static str,
    /// What holds in a file without the key and without a preset.
    pub default: &'static str,
    /// What the key sets, and the method that does the same in a program.
    pub sets: &'static str,
}

macro_rules! keys {
    ($($name:ident: $example:literal, $values:literal, $default:literal, $sets:literal;)*) => {
        &[$(ConfigKey {
            name: stringify!($name),
            example: $example,
            values: $values,
            default: $default,
            sets: $sets,
        }),*]
    };
}

impl PoolConfig {
    /// All keys, in the order of the table in `docs/configuration.md`, which is made from them.
    ///
    /// ```
    /// use pool_config::PoolConfig;
    ///
    /// let key = PoolConfig::KEYS.iter().find(|key| key.name == "reserved_limit");
    /// assert_eq!(key.map(|key| key.example), Some("\"8G\""));
    /// ```
    pub const KEYS: &[ConfigKey] = keys! {
        policy: r#""pow2:min=512""#, "a policy, an arena or a preset as [text](cli.md#policies-and-sizes)",
            "none: each file has it", "how requests are rounded and whether memory is split; `policy`, `granule`, `arena`";
        tile_use: r#""large_tiles""#, "`small_tiles`, `medium_tiles`, `large_tiles`, `batch`, `limited_vram`, `high_vram`",
            "`medium_tiles`", "the limits of `preset:tile_pipeline`, with no other policy; `preset::tile_pipeline_for`";
        max_split_size_mb: "256", "whole MiB, 20 or more",
            "512 with `preset:caching`, else none", "above how many MiB free ranges are not split, with `arena:torch` and `preset:caching`; `ArenaConfig::max_split`";
        garbage_collection_threshold: r#""80%""#, "a share above 0 and below 1",
            "off", "above which share of the limit an arena of segments gives segments back before it grows; `ArenaConfig::gc_threshold`";
        caching_allocator: "false", "`true` or `false`",
            "`true`", "whether an arena caches; `ArenaConfig::uncached`";
        name: r#""frames""#, "text",
            "empty", "the name for observers, metrics and logs; `name`";
        reserved_limit: r#""8G""#, "a size",
            "none", "bytes that are taken from the device; `reserved_limit`";
        memory_fraction: r#""50%""#, "a share, 0 to 1",
            "none", "the same as a share of the device's memory; the lower one holds; `memory_fraction`";
        cached_limit: r#""1G""#, "a size; 0 turns the cache off",
            "none", "bytes of cached blocks, or of free ranges of an arena; `cached_limit`";
        cached_share: r#""25%""#, "a share, 0 to 10; not beside `cached_limit`",
            "none", "the same as a share of the most bytes that were allocated at once; `CachedLimit::OfPeak`";
        bucket_limit: "20", "a count, 1 or more; with `large_bucket_limit` also 0",
            "none", "cached blocks of one size; not with an arena; `bucket_limit`";
        large_bucket_limit: r#"["1M", 2]"#, "a size and a count",
            "none", "the same for blocks from that size on; `large_bucket_limit`";
        full_bucket: r#""refuse_newest""#, "`evict_oldest`, `refuse_newest`",
            "`evict_oldest`", "which block goes back when a limit of a bucket is reached; `full_bucket`";
        full_pool: r#""refuse_newest""#, "`evict_oldest`, `refuse_newest`; with a cached limit",
            "`evict_oldest`", "which block goes back when the cached limit leaves no room; not with an arena; `full_pool`";
        window: r#"[1, "64M"]"#, "the first and the last size",
            "all sizes", "requests that are cached; the others bypass the pool; `window`";
        retention: r#""30s""#, "a number of allocations, a time such as `\"500ms\"`, `\"30s\"`, `\"5min\"`, `\"2h\"`, or `{ allocations = 1000, time = \"30s\" }`",
            "for ever", "how old cached memory becomes before `tick` gives it back; `retention`";
        ahead: r#"[["4K", 16], [64, 8]]"#, "pairs of a size and a count",
            "none", "blocks that are allocated when the pool is made; `ahead`";
        zero: r#""on_return""#, "`never`, `on_allocate`, `on_return`",
            "`never`; on wgpu `on_allocate`", "when blocks are zeroed; `zero`";
        steal: r#""ordered""#, "`never`, `ordered`, `wait`",
            "`wait`", "when a stream may take memory that another one freed; `steal`";
        statistics: "false", "`true` or `false`",
            "`true`", "whether requests are counted; `statistics`";
        shards: "4", "a count, 1 to 64",
            "as many as threads need", "parts of the pool with a lock each; `shards`";
    };
}
