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

/// How much more is resident than before. The end of another test's thread may have made it less.
fn grown(before: u64) -> u64 {
    resident().saturating_sub(before)
}

#[test]
fn allocating_a_large_block_touches_none_of_its_pages() {
    let _alone = ALONE.lock();
    let pool = BucketPool::new(HostAllocator::new());
    let before = resident();
    let buffer = pool.allocate(512 << 20).unwrap();
    assert!(grown(before) < 64 << 20, "{} bytes became resident", grown(before));
    assert_eq!((buffer[0], buffer[(512 << 20) - 1]), (0, 0));
}

#[test]
fn clear_returns_the_pages_of_an_arena_to_the_system() {
    let _alone = ALONE.lock();
    let pool = BucketPool::builder(HostAllocator::new()).arena(ArenaConfig::grow()).build();
    let before = resident();
    let mut buffer = pool.allocate(256 << 20).unwrap();
    buffer.fill(7);
    assert!(grown(before) >= 250 << 20);
    drop(buffer);
    assert!(pool.clear().unwrap() >= 256 << 20);
    assert!(grown(before) < 64 << 20, "{} bytes stay resident", grown(before));
    assert!(pool.allocate(256 << 20).unwrap().iter().step_by(4096).all(|byte| *byte == 0));
}

/// glibc raises its mmap threshold when a large block is freed, and then keeps what it gets back.
#[cfg(target_env = "gnu")]
#[test]
fn clear_returns_blocks_that_the_c_library_would_keep() {
    let _alone = ALONE.lock();
    if std::env::var_os("MALLOC_ARENA_MAX").is_none() {
        // In the heap of the main thread, as in most programs.
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "clear_returns_blocks_that_the_c_library_would_keep"]);
        let output = again.env("MALLOC_ARENA_MAX", "1").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let pool = BucketPool::new(HostAllocator::new());
    for bytes in [1 << 20, 4 << 20, 30 << 20] {
        drop(pool.allocate(bytes).unwrap());
        pool.clear().unwrap();
    }
    let before = resident();
    let mut live = Vec::new();
    for _ in 0..400 {
        let mut buffer = pool.allocate(512 << 10).unwrap();
        buffer.fill(7);
        // A block above it in the heap, whose end cannot move then.
        live.push((buffer, vec![1_u8; 1 << 10]));
    }
    assert!(grown(before) >= 180 << 20);
    let small: Vec<_> = live.into_iter().map(|(_, small)| small).collect();
    assert!(pool.clear().unwrap() >= 200 << 20);
    let stays = grown(before);
    assert!(stays < 20 << 20, "{stays} bytes stay beside {} small blocks", small.len());
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
    assert!(grown(before) < 64 << 20, "{} bytes became resident", grown(before));
}
