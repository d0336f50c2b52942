//! The memory that this process may use: the least of the machine's memory, the limits of its
//! control groups, and `RLIMIT_AS`.
//!
//! The tcache asks before its first block, so nothing here allocates.
#![expect(unsafe_code, reason = "files are read through C")]

use crate::system;
use pool_core::GIB;
use std::ffi::CStr;

/// Bytes of a path, with its final zero byte. A longer path is not read.
const PATH: usize = 512;
/// Bytes of `/proc/self/cgroup` that are read.
const TEXT: usize = 4096;

/// Returns the least limit in bytes; `None` if the system names none.
pub(crate) fn usable_bytes() -> Option<u64> {
    usable_bytes_under(b"")
}

/// Returns the least limit; the files of the control groups are those below `root`.
fn usable_bytes_under(root: &[u8]) -> Option<u64> {
    let groups = group_limit_bytes(root);
    let limits = [system::physical_bytes(), groups, system::address_limit_bytes()];
    limits.into_iter().flatten().min()
}

/// Returns the cached limit of a pool or tcache whose user sets none: an eighth of the memory that
/// the process may use, and at most 1 GiB.
///
/// It is 128 MiB if the system names no limit.
pub(crate) fn usual_cached_limit() -> u64 {
    cached_limit_of(usable_bytes())
}

/// Returns the default cached limit for this much usable memory.
fn cached_limit_of(usable: Option<u64>) -> u64 {
    usable.map_or(GIB / 8, |bytes| GIB.min(bytes / 8))
}

/// Returns the least limit of the control groups of this process and of their ancestors, in both
/// versions (Linux, `Documentation/admin-guide/cgroup-v2.rst` and `cgroup-v1/memory.rst`).
///
/// Each path begins with `root`. In a container the process's group may be at the top of the mount,
/// while `/proc/self/cgroup` names the path that the group has outside. So the limit at the top of
/// the mount is read too.
fn group_limit_bytes(root: &[u8]) -> Option<u64> {
    let (mut text, mut least) = ([0; TEXT], None);
    let groups = read(&Path::of(&[root, b"/proc/self/cgroup"])?, &mut text)?;
    for line in groups.split(|byte| *byte == b'\n') {
        // A line holds the hierarchy's number, its controllers and the path.
        let mut parts = line.splitn(3, |byte| *byte == b':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let is_memory = controllers.split(|byte| *byte == b',').any(|name| name == b"memory");
        let mounts: &[(&[u8], &[u8])] = match controllers.is_empty() {
            true => {
                &[(b"/sys/fs/cgroup", b"memory.max"), (b"/sys/fs/cgroup/unified", b"memory.max")]
            }
            false if is_memory => &[(b"/sys/fs/cgroup/memory", b"memory.limit_in_bytes")],
            false => continue,
        };
        for (mount, file) in mounts {
            least = least_of(least, limit_above([root, mount], path, file));
        }
    }
    least
}

/// Returns the lower of two limits.
fn least_of(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    [a, b].into_iter().flatten().min()
}

/// Returns the least limit of a group and of its ancestors.
fn limit_above([root, mount]: [&[u8]; 2], path: &[u8], file: &[u8]) -> Option<u64> {
    let mut group = path.strip_suffix(b"/").unwrap_or(path);
    let mut least = None;
    loop {
        least = least_of(least, limit_in(&[root, mount, group, b"/", file]));
        let Some(end) = group.iter().rposition(|byte| *byte == b'/') else { return least };
        group = &group[..end];
    }
}

/// Returns the number in a file; `None` for `max`, and if there is no such file.
fn limit_in(path: &[&[u8]]) -> Option<u64> {
    let mut text = [0; 32];
    let number = read(&Path::of(path)?, &mut text)?;
    std::str::from_utf8(number).ok()?.trim().parse().ok()
}

/// A path that ends with a zero byte, without an allocation.
pub(crate) struct Path([u8; PATH]);

impl Path {
    /// Concatenates the parts; `None` if they are too long.
    pub(crate) fn of(parts: &[&[u8]]) -> Option<Self> {
        let (mut path, mut end) = ([0; PATH], 0);
        for part in parts {
            path.get_mut(end..end + part.len())?.copy_from_slice(part);
            end += part.len();
        }
        (end < PATH).then_some(Self(path))
    }
}

/// Reads the first bytes of a file, at most as many as `text` has; `None` if it cannot be opened.
pub(crate) fn read<'t>(path: &Path, text: &'t mut [u8]) -> Option<&'t [u8]> {
    let path = CStr::from_bytes_until_nul(&path.0).ok()?;
    // SAFETY: `path` is a `CStr`, so it ends with a zero byte.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if file < 0 {
        return None;
    }
    let mut len = 0;
    while len < text.len() {
        let rest = &mut text[len..];
        // SAFETY: `rest` is a mutable slice, so `read` may write `rest.len()` bytes to it.
        let read = unsafe { libc::read(file, rest.as_mut_ptr().cast(), rest.len()) };
        match usize::try_from(read) {
            Ok(0) | Err(_) => break,
            Ok(read) => len += read,
        }
    }
    // SAFETY: `open` returned this descriptor above, and it is not used after this call.
    unsafe { libc::close(file) };
    Some(&text[..len])
}

#[cfg(all(test, not(any(miri, loom, shuttle))))]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use std::fs;

    /// Creates a folder with these files, and returns what `read` finds in it.
    fn read_by(read: impl FnOnce(&[u8]) -> Option<u64>, files: &[(&str, &str)]) -> Option<u64> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = folder.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        read(folder.path().to_str().unwrap().as_bytes())
    }

    fn found(files: &[(&str, &str)]) -> Option<u64> {
        read_by(group_limit_bytes, files)
    }

    #[test]
    fn a_container_of_the_second_version() {
        let groups = ("proc/self/cgroup", "0::/\n");
        let limit = found(&[groups, ("sys/fs/cgroup/memory.max", "536870912\n")]);
        assert_eq!((limit, cached_limit_of(limit)), (Some(512 << 20), 64 << 20));
        assert_eq!(found(&[groups, ("sys/fs/cgroup/memory.max", "max\n")]), None);
        assert_eq!(found(&[groups]), None);
    }

    #[test]
    fn the_least_of_a_group_and_those_above() {
        let files = [
            ("proc/self/cgroup", "0::/user.slice/app.service\n"),
            ("sys/fs/cgroup/user.slice/memory.max", "1000000\n"),
            ("sys/fs/cgroup/user.slice/app.service/memory.max", "2000000\n"),
        ];
        assert_eq!(found(&files), Some(1_000_000));
        assert_eq!(found(&[files[0], files[2]]), Some(2_000_000));
    }

    #[test]
    fn a_container_of_the_first_version_whose_path_is_the_hosts() {
        let files = [
            ("proc/self/cgroup", "5:cpu,cpuacct:/docker/1\n4:memory:/docker/1\n0::/system\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n"),
            ("sys/fs/cgroup/cpu/memory.limit_in_bytes", "1\n"),
        ];
        assert_eq!(found(&files), Some(512 << 20));
    }

    #[test]
    fn what_cannot_be_read_is_no_limit() {
        assert_eq!(found(&[]), None);
        assert_eq!(found(&[("proc/self/cgroup", "nonsense\n::\n0:\n")]), None);
        let long = format!("0::/{}\n", "x".repeat(2 * PATH));
        assert_eq!(found(&[("proc/self/cgroup", &long)]), None);
    }

    #[test]
    fn a_control_group_limits_what_the_process_may_use() {
        let files = [("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "1048576\n")];
        assert_eq!(read_by(usable_bytes_under, &files), Some(1 << 20));
    }

    #[test]
    fn a_machine_has_memory() {
        assert!(usable_bytes().is_some_and(|bytes| bytes >= 1 << 20));
    }
}
