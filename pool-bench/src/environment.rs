//! Environment variables that change what an allocator does: none may reach a contender unless the
//! bench sets it.

use crate::input::BadInput;
use std::process::Command;

/// Beginnings of such names.
const PREFIXES: [&str; 11] = [
    "MALLOC_",
    "GLIBC_TUNABLES",
    "BUCKETPOOL_",
    "MIMALLOC_",
    "_RJEM_",
    "JE_MALLOC",
    "SNMALLOC_",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "LD_PRELOAD",
];
/// Names by which xtask, or the bundle, speaks to this program.
const OURS: [&str; 6] = [
    "BUCKETPOOL_ROOT",
    "BUCKETPOOL_BUILD",
    "BUCKETPOOL_CLIENTS",
    "BUCKETPOOL_COUNTING",
    "BUCKETPOOL_PRELOAD",
    "BUCKETPOOL_PYTHON",
];

/// The variables of this process that would change what a contender does, as `NAME=VALUE`.
#[must_use]
pub fn found() -> Vec<String> {
    let all = std::env::vars_os().map(|(name, value)| {
        (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
    });
    let mut found: Vec<String> = all
        .filter(|(name, _)| matters(name))
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    found.sort();
    found
}

fn matters(name: &str) -> bool {
    !OURS.contains(&name) && PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Removes such variables from the environment of a contender's process.
pub fn clean(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        if matters(&name.to_string_lossy()) {
            command.env_remove(name);
        }
    }
    command
}

/// Checks that this process, in which contenders run, has none but those that the bench set.
///
/// # Errors
///
/// The first variable that is there and should not be.
pub fn check(set_by_us: &[(&str, &str)]) -> Result<(), BadInput> {
    let is_ours = |found: &&String| {
        set_by_us.iter().any(|(name, value)| **found == format!("{name}={value}"))
    };
    match found().iter().find(|found| !is_ours(found)) {
        None => Ok(()),
        Some(stale) => Err(BadInput::new(
            format!("environment variable {stale}"),
            "none that changes what a contender does",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::matters;

    #[test]
    fn what_changes_an_allocator_matters_and_what_the_bench_says_to_itself_does_not() {
        for name in ["MALLOC_MMAP_MAX_", "GLIBC_TUNABLES", "BUCKETPOOL_HOST", "LD_PRELOAD"] {
            assert!(matters(name), "{name}");
        }
        for name in ["BUCKETPOOL_ROOT", "BUCKETPOOL_BUILD", "PATH", "HOME", "XDG_RUNTIME_DIR"] {
            assert!(!matters(name), "{name}");
        }
    }
}
