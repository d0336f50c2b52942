#![expect(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::conformance;
use crate::sim::SimDevice;

fn refusal(text: &str) -> String {
    let config: PoolConfig = match toml::from_str(text) {
        Ok(config) => config,
        Err(error) => return format!("{text}\n  {}", error.message()),
    };
    let error = BucketPool::from_config(SimDevice::new(), &config).unwrap_err();
    format!("{text}\n  {error}")
}

#[test]
fn each_policy_of_scripts_is_one_of_files() {
    for (name, policy) in conformance::policies() {
        let classes = match &policy {
            BucketPolicy::Tiered(classes) => classes.clone(),
            _ => Vec::new(),
        };
        let config = PoolConfig { classes, ..PoolConfig::of(name) };
        assert_eq!(config.policy(), Ok(policy), "{name}");
        assert!(
            POLICIES.split([' ', ',']).any(|known| known == name),
            "{name} is not in the message"
        );
    }
}

#[test]
fn each_contradiction_has_one_line() {
    let texts = [
        "",
        "policy = 'best'",
        "policy = 'tiered'",
        "policy = 'tiered'\nclasses = [0]",
        "policy = 'pow2'\nclasses = [4096]",
        "policy = 'fit'\nalpha = 0.5",
        "policy = 'fit'\nalpha = nan",
        "policy = 'exact'\nalpha = 2.0",
        "policy = 'exact'\npage_bytes = 65536",
        "policy = 'arena'\nslack = 0.05",
        "policy = 'arena'\npage_bytes = 65536\nslack = 25",
        "policy = 'arena'\npage_bytes = 65537",
        "policy = 'arena'\npage_bytes = 1024",
        "policy = 'exact'\ngranule = 0",
        "policy = 'exact'\ncached_limit = 1\ncached_share = 0.5",
        "policy = 'exact'\ncached_share = 25",
        "policy = 'exact'\ncached_share = -0.1",
        "policy = 'exact'\ncached_limit = -1",
        "policy = 'exact'\nlimit = 1",
    ];
    let refusals: Vec<String> = texts.into_iter().map(refusal).collect();
    insta::assert_snapshot!(refusals.join("\n"));
}
