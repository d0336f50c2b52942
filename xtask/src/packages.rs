//! The crates as a registry would hand them out: each published one is built from its tarball, in
//! the order of their dependencies.
//!
//! Cargo 1.95 unpacks these tarballs below its home, in a folder named after the path of the
//! checkout, and does not unpack them again where that folder is; what it has built of a version it
//! does not build again either. Both are right for a registry and wrong here: a later state of the
//! same checkout would be built on the crates of an earlier one. So this step has a target folder
//! and a home that no other step uses, and empties both.

use crate::crates;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The arguments of cargo for all published crates.
pub(crate) fn line(root: &Path) -> String {
    let Ok(crates) = crates::all(root) else {
        return "metadata --no-deps --offline --format-version 1".to_owned(); // says why, and fails
    };
    let published = crates.iter().filter(|krate| krate.is_published);
    let names: Vec<String> = published.map(|krate| format!("--package {}", krate.name)).collect();
    format!("package --locked --allow-dirty {}", names.join(" "))
}

/// A cargo that has unpacked and built nothing yet. Its step fails where it cannot be had.
pub(crate) fn cargo(root: &Path) -> Command {
    let target = root.join("target/packages");
    let home = home(&target).unwrap_or_else(|error| {
        eprintln!("a home for cargo in {}: {error}; expected a writable folder", target.display());
        PathBuf::from("/dev/null") // not the user's, with which the step could pass
    });
    let mut cargo = Command::new(env!("CARGO"));
    cargo.env("CARGO_HOME", home).env("CARGO_TARGET_DIR", target);
    cargo
}

/// Empties `target` and makes a home for cargo in it: the user's own with all that it has
/// downloaded, but nothing of what it has unpacked.
fn home(target: &Path) -> io::Result<PathBuf> {
    if target.exists() {
        std::fs::remove_dir_all(target)?;
    }
    let home = target.join("home");
    std::fs::create_dir_all(home.join("registry"))?;
    let Some(users) = users_home() else { return Ok(home) };
    link_all(&users, &home, "registry")?;
    link_all(&users.join("registry"), &home.join("registry"), "src")?;
    Ok(home)
}

/// Where cargo keeps its things if nothing else is said.
fn users_home() -> Option<PathBuf> {
    let told = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    told.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")))
}

/// Makes what is in `from` but `left_out` visible in `to`.
fn link_all(from: &Path, to: &Path, left_out: &str) -> io::Result<()> {
    if !from.exists() {
        return Ok(()); // nothing is downloaded yet
    }
    for entry in from.read_dir()? {
        let entry = entry?;
        if entry.file_name() != left_out {
            link(&entry.path(), &to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

#[cfg(unix)]
fn link(from: &Path, to: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(from, to)
}

/// Links want a right of their own here: cargo fetches its index and the crates again.
#[cfg(not(unix))]
fn link(_: &Path, _: &Path) -> io::Result<()> {
    Ok(())
}
