#![expect(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::preset::Preset;
use pool_sim::SimDevice;

fn refusal(text: &str) -> String {
    let config: PoolConfig = match toml::from_str(text) {
        Ok(config) => config,
        Err(error) => return format!("{text}\n  {}", error.message()),
    };
    let error = config.pool(SimDevice::new()).unwrap_err();
    format!("{text}\n  {error}")
}

#[test]
fn each_contradiction_has_one_line() {
    let texts = [
        "",
        "policy = 'best'",
        "policy = 'fit:0.5'",
        "policy = 'exact'\nclasses = [4096]",
        "policy = 'exact'\ncached_limit = 1\ncached_share = 0.5",
        "policy = 'exact'\ncached_share = 25",
        "policy = 'exact'\ncached_share = -0.1",
        "policy = 'exact'\ncached_limit = -1",
        "policy = 'exact'\ncached_limit = '1X'",
        "policy = 'exact'\nreserved_limit = 1.5",
        "policy = 'exact'\ncached_share = 'all'",
        "policy = 'exact'\nlimit = 1",
        "policy = 'preset:tiles'",
        "policy = 'arena'\nbucket_limit = 8",
        "policy = 'preset:caching'\nbucket_limit = 8",
    ];
    let refusals: Vec<String> = texts.into_iter().map(refusal).collect();
    insta::assert_snapshot!(refusals.join("\n"));
}

#[test]
fn sizes_and_shares_are_numbers_or_text() {
    let limits = |text: &str| {
        let config: PoolConfig = toml::from_str(text).unwrap();
        (config.reserved_limit, config.cached_limit, config.cached_share)
    };
    let text = "policy = 'exact'\nreserved_limit = '1G'\ncached_limit = '1.5M'";
    assert_eq!(limits(text), (Some(1 << 30), Some(3 << 19), None));
    let text = "policy = 'exact'\nreserved_limit = 4096\ncached_share = '25%'";
    assert_eq!(limits(text), (Some(4096), None, Some(0.25)));
    assert_eq!(limits("policy = 'exact'\ncached_share = 1"), (None, None, Some(1.0)));
    assert_eq!(limits("policy = 'exact'"), (None, None, None));
    let null =
        r#"{ "policy": "exact", "reserved_limit": null, "cached_share": null, "ahead": null }"#;
    assert_eq!(
        serde_json::from_str::<PoolConfig>(null).unwrap(),
        toml::from_str("policy = 'exact'").unwrap()
    );
    let text = "policy = 'exact'\nahead = [[64, 16], ['4K', 2]]";
    let config: PoolConfig = toml::from_str(text).unwrap();
    assert_eq!(config.ahead, Some(vec![(64, 16), (4096, 2)]));
}

#[test]
fn a_preset_of_a_file_is_that_of_its_name_and_other_keys_override_it() {
    for preset in Preset::ALL {
        let config = PoolConfig::of(PolicySpec::Preset(preset));
        let pool = config.pool(SimDevice::new()).unwrap();
        let same = preset.set(BucketPool::builder(SimDevice::new())).build();
        let limits = |pool: &BucketPool<SimDevice>| {
            let stats = pool.stats();
            let live = pool.allocate(3000).unwrap();
            let reserved = pool.reserved_bytes();
            (stats.reserved_limit_bytes, stats.cached_limit_bytes, live.allocated_size(), reserved)
        };
        assert_eq!(limits(&pool), limits(&same), "{preset}");
    }
    let text = "policy = 'preset:small_tensors'\ncached_limit = 1048576\nahead = [[64, 2]]\n\
                reserved_limit = 2097152";
    let config: PoolConfig = toml::from_str(text).unwrap();
    let pool = config.pool(SimDevice::new()).unwrap();
    assert_eq!(pool.cached_buffers().into_iter().collect::<Vec<_>>(), [(64, 2)]);
    let stats = pool.stats();
    let limits = (stats.cached_limit_bytes, stats.reserved_limit_bytes);
    assert_eq!(limits, (Some(1 << 20), Some(2 << 20)));
    let text = "policy = 'preset:tile_pipeline'\nbucket_limit = 1";
    let config: PoolConfig = toml::from_str(text).unwrap();
    let pool = config.pool(SimDevice::new()).unwrap();
    drop([pool.allocate(4096).unwrap(), pool.allocate(4096).unwrap()]);
    assert_eq!(pool.cached_buffers()[&4096], 1);
    assert_eq!(toml::from_str::<PoolConfig>(&toml::to_string(&config).unwrap()).unwrap(), config);
}
