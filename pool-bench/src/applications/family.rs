//! A process and its descendants, as `/proc` shows them: their CPU time and memory.

use rustix::param::clock_ticks_per_second;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// What `/proc/PID/stat` says of a process.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stat {
    parent: u32,
    /// CPU time of the process, and of the children that have ended and that it has waited for, in
    /// ticks of the clock.
    ticks: u64,
}

/// A process and its descendants, the process first.
#[derive(Debug)]
pub(super) struct Family(Vec<(u32, Stat)>);

impl Family {
    /// Looks for the living descendants of a process. A process that has ended has none.
    pub(super) fn of(ancestor: u32) -> Self {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let stats = numbers.filter_map(|pid| Some((pid, stat(&text(pid, "stat")?)?)));
        Self(descendants(ancestor, &stats.collect()))
    }

    /// The numbers of the processes.
    pub(super) fn processes(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().map(|(pid, _)| *pid)
    }

    /// CPU time in nanoseconds, that of descendants included that have ended and were waited for.
    pub(super) fn cpu_ns(&self) -> f64 {
        let ticks: u64 = self.0.iter().map(|(_, stat)| stat.ticks).sum();
        ticks as f64 * 1e9 / clock_ticks_per_second() as f64
    }

    /// Resident bytes. Pages that several processes share are counted once: of several processes it
    /// is the sum of the proportional set sizes.
    pub(super) fn resident_bytes(&self) -> u64 {
        let (file, key) = match self.0.as_slice() {
            [_] => ("status", "VmRSS:"),
            _ => ("smaps_rollup", "Pss:"),
        };
        self.processes().filter_map(|pid| bytes(&text(pid, file)?, key)).sum()
    }
}

/// The most bytes that were resident in a process since its start.
pub(super) fn resident_peak_bytes(pid: u32) -> Option<u64> {
    bytes(&text(pid, "status")?, "VmHWM:")
}

/// Whether a file is mapped into a process.
pub(super) fn has_mapped(pid: u32, file: &Path) -> bool {
    let file = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    text(pid, "maps").is_some_and(|maps| {
        maps.lines().any(|line| file.to_str().is_some_and(|file| line.ends_with(file)))
    })
}

fn text(pid: u32, file: &str) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/{file}")).ok()
}

/// Reads `/proc/PID/stat`. The name of the program is in brackets, and may hold brackets and spaces.
fn stat(text: &str) -> Option<Stat> {
    let (_, behind) = text.rsplit_once(')')?;
    let fields: Vec<&str> = behind.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    // `state` is field 3 of proc(5), and the first one here; fields 14 to 17 are the times.
    let ticks = (11..15).map(number).sum::<Option<u64>>()?;
    Some(Stat { parent: number(1)?.try_into().ok()?, ticks })
}

/// Bytes behind a key, in a file whose lines end in `kB`.
fn bytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

fn descendants(ancestor: u32, stats: &BTreeMap<u32, Stat>) -> Vec<(u32, Stat)> {
    let mut found: Vec<(u32, Stat)> =
        stats.get(&ancestor).map(|stat| (ancestor, *stat)).into_iter().collect();
    let mut at = 0;
    while let Some((parent, _)) = found.get(at).copied() {
        let children = stats.iter().filter(|(_, stat)| stat.parent == parent);
        found.extend(children.map(|(pid, stat)| (*pid, *stat)));
        at += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_of_a_process_whose_name_has_brackets_are_read() {
        let text =
            "812 (a) b (c)) S 77 812 812 0 -1 4194560 900 0 3 0 10 20 300 4000 20 0 5 0 99 1 2";
        assert_eq!(stat(text), Some(Stat { parent: 77, ticks: 4330 }));
        assert_eq!(stat("812 (cut) S 77 812"), None);
        assert_eq!(stat(""), None);
    }

    #[test]
    fn bytes_stand_behind_their_key() {
        let text = "Rss:                2048 kB\nPss:                1024 kB\nPss_Dirty:   8 kB\n";
        assert_eq!(bytes(text, "Pss:"), Some(1 << 20));
        assert_eq!(bytes(text, "VmHWM:"), None);
    }

    #[test]
    fn descendants_are_found_at_any_depth_and_strangers_are_not() {
        let stats = [(1, 0), (5, 1), (7, 5), (6, 7), (8, 5), (9, 1)];
        let stats = stats.map(|(pid, parent)| (pid, Stat { parent, ticks: 1 }));
        let found = descendants(5, &stats.into());
        assert_eq!(found.iter().map(|(pid, _)| *pid).collect::<Vec<_>>(), [5, 7, 8, 6]);
        assert!(descendants(4, &stats.into()).is_empty());
    }

    #[test]
    fn this_process_has_a_family() {
        let family = Family::of(std::process::id());
        assert_eq!(family.processes().next(), Some(std::process::id()));
        assert!(family.resident_bytes() > 0 && family.cpu_ns() >= 0.0);
        assert!(resident_peak_bytes(std::process::id()) > Some(0));
    }

    #[test]
    fn a_mapped_file_is_told_from_one_that_is_not() {
        let program = std::env::current_exe().unwrap();
        assert!(has_mapped(std::process::id(), &program));
        assert!(!has_mapped(std::process::id(), Path::new("/etc/passwd")));
    }
}
