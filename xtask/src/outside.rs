//! Tools that are not part of the stable toolchain: Miri, `ThreadSanitizer` and `AddressSanitizer`,
//! on a nightly one.

use std::process::Command;

/// Makes them available.
pub(crate) const CURE: &str = "rustup component add miri rust-src --toolchain nightly";
/// The clock and files may be used: schedules have seeds, snapshots have files.
pub(crate) const MIRIFLAGS: &str = "-Zmiri-disable-isolation";
/// Cached blocks are live until their caches end, which with the process is never.
pub(crate) const ASAN_OPTIONS: &str = "detect_leaks=0";
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Files of pool-core's tests that Miri ends within minutes; loops are shorter there
/// (`cfg!(miri)`).
const CORE: &str = "lives:: zeroing:: cpu_visible:: captures:: ranges:: odd_kinds::";
/// More of them, for `--deep`, each of which takes many minutes.
const CORE_DEEP: &str = "limits:: arena:: streams:: failures:: regressions:: \
                         regressions_arena:: regressions_faults:: shards_faults::";
/// Unit tests of pool-host without pages of the tcache, which Miri fills byte by byte.
const HOST: &str = "class::";

/// Installs the components where the nightly toolchain lacks them; whether they are there then.
pub(crate) fn install() -> bool {
    let add = ["component", "add", "miri", "rust-src", "--toolchain", "nightly"];
    Command::new("rustup").args(add).output().is_ok_and(|said| said.status.success())
}

/// Cargo of the nightly toolchain. The variables by which cargo names its own toolchain to this
/// program must not reach it.
pub(crate) fn nightly() -> Command {
    let mut cargo = Command::new("rustup");
    cargo.args(["run", "nightly", "cargo"]);
    for name in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"] {
        cargo.env_remove(name);
    }
    cargo
}

/// The commands of the Miri step.
pub(crate) fn miri(deep: bool) -> Vec<String> {
    let test = |what: &str| format!("miri test --locked --package {what}");
    let mut lines = vec![
        test(&format!("pool-core --test pool -- {CORE}")),
        test("pool-config --test config -- caching::"),
        test(&format!("pool-host --lib {HOST}")),
    ];
    if deep {
        lines.push(test("pool-core --lib"));
        lines.push(test(&format!("pool-core --test pool -- {CORE_DEEP}")));
        lines.push(test("pool-host --lib"));
        lines.push(test("pool-host --test pools -- conformance::"));
    }
    lines
}

/// The commands of the `ThreadSanitizer` step: tests with threads. Those of pool-core take many
/// minutes to build with a sanitizer; loom and shuttle try their protocols in each run.
pub(crate) fn threads(deep: bool) -> Vec<String> {
    let test = |what: &str| format!("test --locked -Zbuild-std --target {TARGET} {what}");
    match deep {
        false => vec![test("--package pool-host --lib -- tcache random_blocks")],
        // Left out is the test of what a `Tcache` does without the word `on`.
        true => vec![
            test("--package pool-core"),
            test("--package pool-host -- --skip the_environment_configures_the_tcache"),
            test("--package pool-c --test threads"),
        ],
    }
}

/// The commands of the `AddressSanitizer` step: tests over real memory. Left out are those that
/// lock pages, since the sanitizer makes `mlock` do nothing, that count the system's pages, or that
/// expect blocks where only the C library's allocator puts them.
pub(crate) fn addresses() -> Vec<String> {
    let test = |what: &str| format!("test --locked -Zbuild-std --target {TARGET} {what}");
    vec![
        test("--package pool-host --test pools -- conformance:: guards:: scripts::"),
        test("--package pool-host --lib -- tcache --skip of_a_parked_thread"),
        test("--package pool-core --lib --tests"),
        test("--package pool-trace"),
        test("--package pool-c --test threads"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_runs_more_tests() {
        assert!(miri(true).len() > miri(false).len());
        assert!(threads(true).len() > threads(false).len());
    }
}
