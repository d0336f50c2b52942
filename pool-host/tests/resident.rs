//! What stays resident: figures of the whole process, so one test at a time.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "tests")]

use pool_core::{ArenaConfig, BucketPool};
use pool_host::HostAllocator;
use std::sync::Mutex;

static ALONE: Mutex<()> = Mutex::new(());

/// Resident bytes of this process.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn a_large_fresh_block_is_not_touched() {
    let _alone = ALONE.lock();
    let pool = BucketPool::new(HostAllocator::new());
    let before = resident();
    let buffer = pool.allocate(512 << 20).unwrap();
    assert!(resident() - before < 64 << 20, "{} bytes became resident", resident() - before);
    assert_eq!((buffer[0], buffer[(512 << 20) - 1]), (0, 0));
}

#[test]
fn pages_that_an_arena_gives_back_are_the_systems_again() {
    let _alone = ALONE.lock();
    let pool = BucketPool::builder(HostAllocator::new()).arena(ArenaConfig::grow()).build();
    let before = resident();
    let mut buffer = pool.allocate(256 << 20).unwrap();
    buffer.fill(7);
    assert!(resident() - before >= 250 << 20);
    drop(buffer);
    assert!(pool.clear().unwrap() >= 256 << 20);
    assert!(resident() - before < 64 << 20, "{} bytes stay resident", resident() - before);
    assert!(pool.allocate(256 << 20).unwrap().iter().step_by(4096).all(|byte| *byte == 0));
}
