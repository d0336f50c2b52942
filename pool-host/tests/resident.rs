//! Resident memory of pools. The figures are those of the whole process, so one test runs at a
//! time.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "tests")]

use pool_core::{ArenaConfig, BucketPool};
use pool_host::HostAllocator;
use std::sync::Mutex;

static ALONE: Mutex<()> = Mutex::new(());

/// Returns the resident bytes of this process.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn allocating_a_large_block_touches_none_of_its_pages() {
    let _alone = ALONE.lock();
    let pool = BucketPool::new(HostAllocator::new());
    let before = resident();
    let buffer = pool.allocate(512 << 20).unwrap();
    assert!(resident() - before < 64 << 20, "{} bytes became resident", resident() - before);
    assert_eq!((buffer[0], buffer[(512 << 20) - 1]), (0, 0));
}

#[test]
fn clear_returns_the_pages_of_an_arena_to_the_system() {
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

#[cfg(feature = "allocator-api2")]
#[test]
fn dropping_an_unfilled_collection_touches_none_of_its_pages() {
    use pool_host::InPool;
    use pool_host::allocator_api2::vec::Vec;

    let _alone = ALONE.lock();
    let pool = BucketPool::new(HostAllocator::new());
    let before = resident();
    let empty: Vec<u8, _> = Vec::with_capacity_in(512 << 20, InPool::new(&pool));
    drop(empty);
    assert!(resident() - before < 64 << 20, "{} bytes became resident", resident() - before);
}
