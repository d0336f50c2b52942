//! Tests of the limits, on files that stand in for those of the system.
#![expect(clippy::unwrap_used, reason = "tests")]

use super::file::{PATH, READS};
use super::*;
use std::fs;

/// Creates a folder with these files, and returns what is read in it.
fn found_in(files: &[(&str, &str)]) -> Memory {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let file = folder.path().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    Memory::read_under(folder.path().to_str().unwrap().as_bytes())
}

/// Returns the least limit of the groups, in these files.
fn found(files: &[(&str, &str)]) -> Option<u64> {
    found_in(files).group
}

#[test]
fn a_container_of_the_second_version() {
    let groups = ("proc/self/cgroup", "0::/\n");
    let memory = found_in(&[groups, ("sys/fs/cgroup/memory.max", "536870912\n")]);
    assert_eq!((memory.group, memory.cached_limit()), (Some(512 << 20), 64 << 20));
    assert_eq!(memory.lent_from(), 128 << 20);
    assert_eq!(found(&[groups, ("sys/fs/cgroup/memory.max", "max\n")]), None);
    assert_eq!(found(&[groups]), None);
}

/// Others may use most of a container, and files may fill it.
#[test]
fn the_limit_is_of_what_is_left() {
    let groups = ("proc/self/cgroup", "0::/\n");
    let high = ("sys/fs/cgroup/memory.high", "419430400\n");
    let files = [
        groups,
        ("sys/fs/cgroup/memory.max", "536870912\n"),
        high,
        ("sys/fs/cgroup/memory.current", "314572800\n"),
        (
            "sys/fs/cgroup/memory.stat",
            "anon 367001600\nfile 99999999\nshmem 9\ninactive_file 8388608\nactive_file 2097152\n",
        ),
    ];
    // 400 MiB where the system slows down, 300 in use, 10 of them files.
    assert_eq!(found_in(&files), Memory { left: Some(110 << 20), group: Some(400 << 20) });
    assert_eq!(found_in(&files[..4]).left, Some(100 << 20));
    let first = [
        ("proc/self/cgroup", "4:memory:/\n"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n"),
        ("sys/fs/cgroup/memory/memory.usage_in_bytes", "637534208\n"),
        (
            "sys/fs/cgroup/memory/memory.stat",
            "cache 1\ninactive_file 1\ntotal_inactive_file 104857600\ntotal_active_file 104857600\n",
        ),
    ];
    assert_eq!(found_in(&first).left, Some(104 << 20));
    let least = Some((512 << 20) / 8);
    assert_eq!(found_in(&first[..3]).left, least, "more in use than may be");
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

/// To read what is used takes longest, at each start of a preloaded program.
#[test]
fn a_limit_beyond_the_machine_is_none_and_what_is_used_is_not_read() {
    let none = found_in(&[]);
    READS.set(0);
    let files = [
        ("proc/self/cgroup", "4:memory:/\n"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ("sys/fs/cgroup/memory/memory.usage_in_bytes", "9223372036854771712\n"),
    ];
    assert_eq!(found_in(&files), none);
    assert_eq!(READS.get(), 2, "the groups, and the limit");
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
    let memory = found_in(&files);
    assert_eq!((memory.left, memory.group), (Some(1 << 20), Some(1 << 20)));
}

#[test]
fn a_machine_has_memory() {
    assert!(Memory::read().left.is_some_and(|bytes| bytes >= 1 << 20));
}
