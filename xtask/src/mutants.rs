//! `cargo xtask mutants`: changes files of pool-core in one place after the other, and runs the
//! tests. A change that no test sees is printed. `.cargo/mutants.toml` says which
//! files and which tests.

use std::path::Path;
use std::process::{Command, ExitCode};

/// Loops of random tests, shorter than in CI: each change runs all of them.
const SHORTER: [(&str, &str); 3] =
    [("BUCKETPOOL_SCHEDULES", "2000"), ("BUCKETPOOL_SCRIPTS", "100"), ("INSTA_UPDATE", "no")];
/// Exit statuses of cargo-mutants: a change lived; tests did not end, which counts as seen.
const LIVED: i32 = 2;
const ENDLESS: i32 = 3;

/// Which changes are tried.
#[derive(Debug, PartialEq, Eq)]
enum Choice {
    All,
    /// Part K of N, as `K/N`.
    Shard(String),
    /// Changes of lines that differ from a revision.
    Since(Option<String>),
}

/// Runs cargo-mutants; `further` are the arguments behind `mutants`.
pub(crate) fn run(root: &Path, further: &[String]) -> ExitCode {
    let outcome = choice(further).and_then(|choice| try_run(root, &choice));
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(crate::BAD_INPUT)
        }
    }
}

fn choice(further: &[String]) -> Result<Choice, String> {
    match further.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => Ok(Choice::All),
        ["--shard", part] if is_part(part) => Ok(Choice::Shard((*part).to_owned())),
        ["--shard", other] => Err(format!("`--shard {other}`; expected K/N, K below N")),
        ["--since"] => Ok(Choice::Since(None)),
        ["--since", revision] => Ok(Choice::Since(Some((*revision).to_owned()))),
        [other, ..] => {
            Err(format!("`{other}` behind `mutants`; expected --shard K/N or --since [REVISION]"))
        }
    }
}

fn is_part(text: &str) -> bool {
    let numbers = text.split_once('/').map(|(k, n)| (k.parse::<u32>(), n.parse::<u32>()));
    matches!(numbers, Some((Ok(k), Ok(n))) if k < n)
}

fn try_run(root: &Path, choice: &Choice) -> Result<ExitCode, String> {
    let has = Command::new(env!("CARGO")).args(["mutants", "--version"]).output();
    if !has.is_ok_and(|said| said.status.success()) {
        return Err("no cargo-mutants; `cargo install --locked cargo-mutants`".to_owned());
    }
    let folder = root.join("target/mutants-found");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["mutants", "--package", "pool-core", "--no-times", "--output"]).arg(&folder);
    cargo.current_dir(root).env("CARGO_INCREMENTAL", "0").envs(SHORTER);
    match choice {
        Choice::All => {}
        Choice::Shard(part) => {
            cargo.args(["--sharding", "round-robin", "--shard", part]);
        }
        Choice::Since(revision) => {
            let file = folder.join("since.diff");
            let diff = diff(root, revision.as_deref())?;
            std::fs::write(&file, diff).map_err(|error| format!("{}: {error}", file.display()))?;
            cargo.arg("--in-diff").arg(file);
        }
    }
    let status = cargo.status().map_err(|error| format!("cargo mutants: {error}"))?;
    match status.code() {
        Some(0 | ENDLESS) => Ok(ExitCode::SUCCESS),
        Some(LIVED) => {
            println!(
                "Write a test that sees them, or name them with the reason under `exclude_re` in \
                 .cargo/mutants.toml."
            );
            Ok(ExitCode::FAILURE)
        }
        _ => Ok(ExitCode::FAILURE),
    }
}

/// The changes of pool-core's sources since a revision: the branch that was fetched if there are
/// commits on top of it, and else the last commit.
fn diff(root: &Path, revision: Option<&str>) -> Result<Vec<u8>, String> {
    let git = |args: &[&str]| Command::new("git").args(args).current_dir(root).output();
    let ahead = git(&["rev-list", "--count", "origin/main..HEAD"]);
    let is_ahead = ahead.is_ok_and(|said| said.status.success() && said.stdout != b"0\n");
    let since = revision.unwrap_or(if is_ahead { "origin/main" } else { "HEAD~1" });
    let said = git(&["diff", since, "--", "pool-core/src"]);
    let said = said.map_err(|error| format!("git: {error}"))?;
    match said.status.success() {
        true => Ok(said.stdout),
        false => Err(format!("git diff {since}: {}", String::from_utf8_lossy(&said.stderr).trim())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_arguments_are_named() {
        let choice = |words: &str| choice(&words.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(choice("--shard 3/8"), Ok(Choice::Shard("3/8".to_owned())));
        assert_eq!(choice("--since main"), Ok(Choice::Since(Some("main".to_owned()))));
        for words in ["--shard 8/8", "--shard x", "--all", "--shard"] {
            let said = choice(words).unwrap_err();
            assert!(said.contains("expected") && said.contains(words), "{said}");
        }
    }
}
