//! Platforms beside that of this machine: those that it cannot run, whose code the compiler checks, and
//! musl, whose static programs run here.

use std::path::Path;
use std::process::Command;

/// A platform with the facade's feature that enables its wgpu backend.
pub(crate) struct Platform {
    pub(crate) feature: &'static str,
    /// Target name of `rustc`.
    pub(crate) target: &'static str,
}

pub(crate) const ALL: [Platform; 3] = [
    Platform { feature: "metal", target: "aarch64-apple-darwin" },
    Platform { feature: "dx12", target: "x86_64-pc-windows-msvc" },
    Platform { feature: "webgpu", target: "wasm32-unknown-unknown" },
];

/// Static programs with musl's C library, which run on any Linux of this processor.
pub(crate) const MUSL: &str = "x86_64-unknown-linux-musl";
/// What they need.
pub(crate) const MUSL_CURE: &str =
    "rustup target add x86_64-unknown-linux-musl && apt-get install musl-tools";

/// Whether static programs can be built here, C code of dependencies included.
pub(crate) fn has_musl() -> bool {
    let compiler = Command::new("musl-gcc").arg("--version").output();
    has_library(MUSL) && compiler.is_ok_and(|said| said.status.success())
}

/// Whether the standard library of a target is installed.
fn has_library(target: &str) -> bool {
    let said =
        Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output();
    said.is_ok_and(|said| Path::new(String::from_utf8_lossy(&said.stdout).trim()).is_dir())
}

impl Platform {
    /// Returns whether its standard library is installed, which checking needs.
    pub(crate) fn is_here(&self) -> bool {
        has_library(self.target)
    }

    /// Returns the cargo arguments that check the platform.
    ///
    /// For a browser they include a check of the tests that `web` runs.
    pub(crate) fn checks(&self) -> Vec<String> {
        let Self { feature, target } = self;
        let only = format!("--features {feature} --target {target}");
        let mut checks = vec![format!("--no-default-features {only}")];
        if self.feature == "webgpu" {
            checks.push(format!("{only} --package pool-wgpu --test web"));
        }
        let clippy = |what: String| format!("clippy --quiet --locked {what} -- -D warnings");
        checks.into_iter().map(clippy).collect()
    }

    /// Returns the command that installs the missing standard library.
    pub(crate) fn cure(&self) -> String {
        format!("rustup target add {}", self.target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ci_installs_each_of_them() {
        let script = include_str!("../../.ci/run");
        let named = |platform: &&Platform| script.contains(platform.target);
        assert_eq!(ALL.iter().filter(named).count(), ALL.len());
        assert!(script.contains(MUSL));
    }

    #[test]
    fn a_platform_that_rustc_does_not_know_is_not_here() {
        assert!(!Platform { feature: "metal", target: "of-no-make" }.is_here());
    }

    #[test]
    fn the_check_names_feature_and_target() {
        let wanted = "clippy --quiet --locked --no-default-features --features metal \
            --target aarch64-apple-darwin -- -D warnings";
        assert_eq!(ALL[0].checks(), [wanted]);
        assert!(ALL[2].checks()[1].contains("--package pool-wgpu --test web"));
        assert_eq!(ALL[0].cure(), "rustup target add aarch64-apple-darwin");
    }
}
