//! Platforms that nothing runs on here: their code is checked by the compiler only.

use std::path::Path;
use std::process::Command;

/// A platform, by the feature of the facade that brings its wgpu backend.
pub(crate) struct Platform {
    pub(crate) feature: &'static str,
    /// As `rustc` calls it.
    pub(crate) target: &'static str,
}

pub(crate) const ALL: [Platform; 3] = [
    Platform { feature: "metal", target: "aarch64-apple-darwin" },
    Platform { feature: "dx12", target: "x86_64-pc-windows-msvc" },
    Platform { feature: "webgpu", target: "wasm32-unknown-unknown" },
];

impl Platform {
    /// Whether its standard library is installed, without which nothing can be checked.
    pub(crate) fn is_here(&self) -> bool {
        let asked = ["--print", "target-libdir", "--target", self.target];
        let said = Command::new("rustc").args(asked).output();
        said.is_ok_and(|said| Path::new(String::from_utf8_lossy(&said.stdout).trim()).is_dir())
    }

    /// The arguments of cargo that check it.
    pub(crate) fn check(&self) -> String {
        let Self { feature, target } = self;
        let only = format!("--no-default-features --features {feature} --target {target}");
        format!("clippy --quiet --locked {only} -- -D warnings")
    }

    /// What to do where it is missing.
    pub(crate) fn cure(&self) -> String {
        format!("rustup target add {}", self.target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_platform_that_rustc_does_not_know_is_not_here() {
        assert!(!Platform { feature: "metal", target: "of-no-make" }.is_here());
    }

    #[test]
    fn the_check_names_feature_and_target() {
        let wanted = "clippy --quiet --locked --no-default-features --features metal \
            --target aarch64-apple-darwin -- -D warnings";
        assert_eq!(ALL[0].check(), wanted);
        assert_eq!(ALL[0].cure(), "rustup target add aarch64-apple-darwin");
    }
}
