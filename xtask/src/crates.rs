//! The crates of the workspace, as Cargo tells them. A new one is checked, hashed, packaged and
//! listed without a further word in `xtask`.

use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// A crate of the workspace.
pub(crate) struct Crate {
    /// Name of the package.
    pub(crate) name: String,
    /// Folder below the root; empty for the package of the root.
    pub(crate) folder: String,
    /// Crates of the workspace that it depends on, without those of its tests and build.
    pub(crate) uses: BTreeSet<String>,
    /// Whether it goes to a registry.
    pub(crate) is_published: bool,
    /// Whether a Rust program can depend on it.
    pub(crate) is_library: bool,
}

/// Returns all crates, or why Cargo does not tell them.
pub(crate) fn all(root: &Path) -> Result<Vec<Crate>, String> {
    let failed = |why: &str| format!("cargo metadata: {why}");
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(root)
        .output()
        .map_err(|error| failed(&error.to_string()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(failed(said.lines().last().unwrap_or_default()));
    }
    let json = serde_json::from_slice(&output.stdout);
    let metadata: Value = json.map_err(|error| failed(&error.to_string()))?;
    let root = metadata["workspace_root"].as_str().unwrap_or_default();
    let packages = list(&metadata["packages"]);
    let names: BTreeSet<String> = packages.iter().map(|package| text(&package["name"])).collect();
    Ok(packages.iter().map(|package| of(package, root, &names)).collect())
}

fn of(package: &Value, root: &str, names: &BTreeSet<String>) -> Crate {
    let ordinary = list(&package["dependencies"]).iter().filter(|used| used["kind"].is_null());
    let uses = ordinary.map(|used| text(&used["name"])).filter(|name| names.contains(name));
    let manifest = text(&package["manifest_path"]);
    let below = manifest.strip_prefix(root).unwrap_or(&manifest);
    let folder = below.trim_end_matches("Cargo.toml").replace('\\', "/");
    let kinds = list(&package["targets"]).iter().flat_map(|target| list(&target["kind"]));
    Crate {
        name: text(&package["name"]),
        folder: folder.trim_matches('/').to_owned(),
        uses: uses.collect(),
        // An empty list of registries.
        is_published: !package["publish"].as_array().is_some_and(Vec::is_empty),
        is_library: kinds.into_iter().any(|kind| kind == "lib"),
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_a_workspace_is_told() {
        let error = all(Path::new("/")).err().unwrap();
        assert!(error.starts_with("cargo metadata: error: could not find `Cargo.toml`"), "{error}");
    }

    #[test]
    fn a_crate_is_what_its_manifest_says() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let all = all(root).unwrap();
        let named = |name: &str| all.iter().find(|krate| krate.name == name).unwrap();
        let (core, bench) = (named("pool-core"), named("pool-bench"));
        assert!(core.is_published && core.is_library && core.uses.is_empty());
        assert!(!bench.is_published && bench.uses.contains("bucketpool"));
        assert!(named("pool-preload").is_published && !named("pool-preload").is_library);
        assert_eq!(
            (named("cuda-double").folder.as_str(), named("bucketpool").folder.as_str()),
            ("pool-cuda/double", "",)
        );
    }
}
