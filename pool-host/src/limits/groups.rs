//! The memory that the control groups of this process leave it, in both versions (Linux,
//! `Documentation/admin-guide/cgroup-v2.rst` and `cgroup-v1/memory.rst`).

use super::file::{Path, read};

/// Bytes of `/proc/self/cgroup` and of `memory.stat` that are read.
const TEXT: usize = 4096;

/// Divisor of a limit: that part of it counts as left in any case.
const LEAST_PART: u64 = 8;

/// The files of a group's memory, in one version.
struct Files {
    /// Where the groups of this version are mounted.
    mount: &'static [u8],
    /// Files that may each have a limit: the system ends a process beyond the first, and slows it
    /// down beyond the second.
    limits: &'static [&'static [u8]],
    usage: &'static [u8],
    /// The words of `memory.stat` before the parts of the usage that the system can take back: pages
    /// of files that are no memory shared by processes. In the first version, those of the groups
    /// below count too.
    reclaimable: [&'static [u8]; 2],
}

impl Files {
    const fn second(mount: &'static [u8]) -> Self {
        Self {
            mount,
            limits: &[b"memory.max", b"memory.high"],
            usage: b"memory.current",
            reclaimable: [b"inactive_file ", b"active_file "],
        }
    }
}

const SECOND: [Files; 2] =
    [Files::second(b"/sys/fs/cgroup"), Files::second(b"/sys/fs/cgroup/unified")];
const FIRST: [Files; 1] = [Files {
    mount: b"/sys/fs/cgroup/memory",
    limits: &[b"memory.limit_in_bytes"],
    usage: b"memory.usage_in_bytes",
    reclaimable: [b"total_inactive_file ", b"total_active_file "],
}];

/// The least limit of all groups, and what the group with the least left leaves, in bytes; `None`
/// if no group has a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) limit: Option<u64>,
    pub(super) left: Option<u64>,
}

impl Room {
    /// Returns what the groups of this process and those above them have, of a machine with so many
    /// bytes. Each path begins with `root`.
    ///
    /// In a container the process's group may be at the top of the mount, while
    /// `/proc/self/cgroup` names the path that the group has outside. So the limit at the top of
    /// the mount is read too.
    pub(super) fn of_process(root: &[u8], machine: Option<u64>) -> Self {
        let (mut text, mut room) = ([0; TEXT], Self::default());
        let path = Path::of(&[root, b"/proc/self/cgroup"]);
        let groups = path.and_then(|path| read(&path, &mut text)).unwrap_or_default();
        for line in groups.split(|byte| *byte == b'\n') {
            // A line holds the hierarchy's number, its controllers and the path.
            let mut parts = line.splitn(3, |byte| *byte == b':');
            let (Some(_), Some(controllers), Some(path)) =
                (parts.next(), parts.next(), parts.next())
            else {
                continue;
            };
            let is_memory = controllers.split(|byte| *byte == b',').any(|name| name == b"memory");
            let versions: &[Files] = match controllers.is_empty() {
                true => &SECOND,
                false if is_memory => &FIRST,
                false => continue,
            };
            for files in versions {
                room.add_groups(root, path, files, machine);
            }
        }
        room
    }

    /// Adds a group and those above it.
    fn add_groups(&mut self, root: &[u8], path: &[u8], files: &Files, machine: Option<u64>) {
        // What such a group leaves in any case is more than the machine has. The first version names
        // a limit of 2^63 where there is none, and it takes longest to read what is used.
        let limits = |limit: &u64| machine.is_none_or(|machine| limit / LEAST_PART < machine);
        let mut group = path.strip_suffix(b"/").unwrap_or(path);
        loop {
            let in_group = |file: &[u8]| number_in(&[root, files.mount, group, b"/", file]);
            let limit = files.limits.iter().filter_map(|file| in_group(file)).min();
            if let Some(limit) = limit.filter(limits) {
                let usage = in_group(files.usage).unwrap_or(0);
                let stat = [root, files.mount, group, b"/memory.stat"];
                let reclaimable = sum_in(&stat, &files.reclaimable);
                let left = limit.saturating_sub(usage.saturating_sub(reclaimable));
                // What others use now they may free.
                let left = left.max(limit / LEAST_PART);
                self.limit = Some(self.limit.map_or(limit, |least| least.min(limit)));
                self.left = Some(self.left.map_or(left, |least| least.min(left)));
            }
            let Some(end) = group.iter().rposition(|byte| *byte == b'/') else { return };
            group = &group[..end];
        }
    }
}

/// Returns the number in a file; `None` for `max`, and if there is no such file.
fn number_in(path: &[&[u8]]) -> Option<u64> {
    let mut text = [0; 32];
    number(read(&Path::of(path)?, &mut text)?)
}

/// Returns the sum of the numbers behind these words, each at the start of a line of a file. A function,
/// so that a process without a limit needs no stack for the text.
#[inline(never)]
fn sum_in(path: &[&[u8]], words: &[&[u8]]) -> u64 {
    let mut text = [0; TEXT];
    let text = Path::of(path).and_then(|path| read(&path, &mut text)).unwrap_or_default();
    let lines = text.split(|byte| *byte == b'\n');
    let numbers = lines
        .filter_map(|line| words.iter().find_map(|word| line.strip_prefix(*word)).and_then(number));
    numbers.fold(0, u64::saturating_add)
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}
