//! Where things lie: the repository, its records, the bundled traces.

use crate::input::BadInput;
use std::fs;
use std::path::PathBuf;

/// Where records go, below the root.
pub const RECORDS: &str = "pool-bench/records";

/// The root of the repository: what xtask says, else the current folder.
#[must_use]
pub fn root() -> PathBuf {
    std::env::var_os("BUCKETPOOL_ROOT").map_or_else(|| PathBuf::from("."), PathBuf::from)
}

/// The bundled traces; one of them for a smoke test.
///
/// # Errors
///
/// A folder that cannot be read.
pub fn traces(smoke: bool) -> Result<Vec<PathBuf>, BadInput> {
    let folder = root().join("traces");
    let unreadable = |error| {
        let what = format!("{}: {error}", folder.display());
        BadInput::new(what, "the folder of the bundled traces; run `cargo xtask bench`")
    };
    let entries = fs::read_dir(&folder).map_err(unreadable)?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.to_string_lossy().contains(".ptrace.csv"));
    files.sort();
    if smoke {
        files.truncate(1);
    }
    Ok(files)
}
