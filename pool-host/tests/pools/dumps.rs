//! Core dumps have the buffers of a pool, and few of the addresses that its arena only reserves.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "tests")]

use pool_core::{ArenaConfig, BucketPool};
use pool_host::HostAllocator;
use std::ops::Range;

/// Returns the mappings that overlap these addresses, and whether a core dump has them: `dd` in the
/// flags marks those that it leaves out (`proc_pid_smaps(5)`).
fn mappings(addresses: &Range<usize>) -> Vec<(Range<usize>, bool)> {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut found, mut mapping) = (Vec::new(), 0..0);
    for line in text.lines() {
        let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        let [from, to] = range.map_or([None; 2], |(from, to)| {
            [from, to].map(|number| usize::from_str_radix(number, 16).ok())
        });
        if let (Some(from), Some(to)) = (from, to) {
            mapping = from..to;
        } else if let Some(flags) = line.strip_prefix("VmFlags:")
            && mapping.start < addresses.end
            && addresses.start < mapping.end
        {
            found.push((mapping.clone(), !flags.split(' ').any(|flag| flag == "dd")));
        }
    }
    found
}

#[test]
fn core_dumps_have_the_buffers_of_an_arena_and_not_all_that_it_reserves() {
    let pool = BucketPool::builder(HostAllocator::new()).arena(ArenaConfig::grow()).build();
    let mut buffers = Vec::new();
    for bytes in [1 << 20, 200 << 20, 10 << 20] {
        let mut buffer = pool.allocate(bytes).unwrap();
        buffer[0] = 1;
        buffers.push(buffer);
        for buffer in &buffers {
            let start = buffer.as_ptr().addr();
            let found = mappings(&(start..start + buffer.len()));
            assert!(!found.is_empty() && found.iter().all(|(_, is_dumped)| *is_dumped));
            let dumped: usize = found.iter().map(|(mapping, _)| mapping.len()).sum();
            assert!(dumped < 512 << 20, "{dumped} bytes in a core dump");
        }
    }
}
