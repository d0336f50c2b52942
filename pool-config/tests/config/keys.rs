//! The list of keys, the fields of the configuration, and the page of them are the same.

use pool_config::PoolConfig;
use pool_core::BucketPool;
use pool_sim::SimDevice;
use std::fs;
use std::path::Path;

const PAGE: &str = "../docs/configuration.md";
const BEGIN: &str = "<!-- keys: this table is made from PoolConfig::KEYS -->\n";
const END: &str = "<!-- end of keys -->\n";

/// A file of one key, and a policy that it can stand beside.
fn file_of(name: &str, example: &str) -> String {
    let policy = match name {
        "policy" => return format!("policy = {example}"),
        "tile_use" => "preset:tile_pipeline",
        "max_split_size_mb" | "garbage_collection_threshold" | "caching_allocator" => "arena:torch",
        "full_bucket" | "full_pool" => "preset:ndarray",
        _ => "pow2",
    };
    format!("policy = '{policy}'\n{name} = {example}")
}

#[test]
fn each_key_has_an_example_that_is_read_and_written_and_read_again() {
    for key in PoolConfig::KEYS {
        let text = file_of(key.name, key.example);
        let config: PoolConfig = toml::from_str(&text).unwrap();
        let device = SimDevice::with_capacity(16 << 30);
        assert!(config.set(BucketPool::builder(device)).is_ok(), "{text}");
        let written = toml::to_string(&config).unwrap();
        assert!(written.contains(&format!("{} = ", key.name)), "{written}");
        assert_eq!(toml::from_str::<PoolConfig>(&written).unwrap(), config, "{written}");
        let json = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<PoolConfig>(&json).unwrap(), config, "{json}");
        if key.name != "policy" {
            let without: PoolConfig = toml::from_str(text.lines().next().unwrap()).unwrap();
            let null = format!("{{\"policy\": \"{}\", \"{}\": null}}", config.policy, key.name);
            let null: PoolConfig = serde_json::from_str(&null).unwrap();
            assert_eq!(null, without, "{}: null sets nothing", key.name);
            assert_ne!(config, without, "{}", key.name);
        }
    }
}

/// What a file may have is told by the error of a key that no file has.
#[test]
fn the_list_has_the_keys_that_a_file_may_have() {
    let error = toml::from_str::<PoolConfig>("policy = 'pow2'\nno_such_key = 1").unwrap_err();
    let (_, fields) = error.message().split_once("expected one of ").unwrap();
    let mut fields: Vec<&str> = fields.split(", ").map(|field| field.trim_matches('`')).collect();
    let mut keys: Vec<&str> = PoolConfig::KEYS.iter().map(|key| key.name).collect();
    fields.sort_unstable();
    keys.sort_unstable();
    assert_eq!(keys, fields);
}

#[test]
fn all_keys_of_one_policy_are_read_and_written_and_read_again() {
    let with = |policy: &str, left_out: &[&str]| {
        let keys = PoolConfig::KEYS.iter().filter(|key| !left_out.contains(&key.name));
        let lines = keys.map(|key| format!("{} = {}\n", key.name, key.example));
        format!("policy = '{policy}'\n{}", lines.collect::<String>())
    };
    let arena = ["max_split_size_mb", "garbage_collection_threshold", "caching_allocator"];
    let blocks = ["policy", "tile_use", "cached_share", "shards"];
    let text = with("preset:tile_pipeline", &[&blocks[..], &arena].concat());
    let config: PoolConfig = toml::from_str(&text).unwrap();
    let pool = config.pool(SimDevice::with_capacity(16 << 30)).unwrap();
    assert_eq!((pool.name(), pool.stats().reserved_limit_bytes), ("frames", Some(8 << 30)));
    let written = toml::to_string(&config).unwrap();
    assert_eq!(toml::from_str::<PoolConfig>(&written).unwrap(), config, "{written}");
    let json = serde_json::to_string(&config).unwrap();
    assert_eq!(serde_json::from_str::<PoolConfig>(&json).unwrap(), config, "{json}");
}

/// `INSTA_UPDATE=always` writes the table.
#[test]
fn the_page_has_the_table_of_the_keys() {
    let mut table = String::from(
        "| key | for example | values | if it is left out | what it sets, and the method of the builder |\n\
         |---|---|---|---|---|\n",
    );
    for key in PoolConfig::KEYS {
        let row = [&format!("`{}`", key.name), &format!("`{}`", key.example), key.values];
        let row = [&row[..], &[key.default, key.sets]].concat().join(" | ");
        table.extend(["| ", &row, " |\n"]);
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (found, after) = rest.split_once(END).unwrap();
    if std::env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
        fs::write(&path, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(found, table, "{PAGE}: INSTA_UPDATE=always cargo test -p pool-config writes it");
}
