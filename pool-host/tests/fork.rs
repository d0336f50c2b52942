//! Pools of host memory in a child that was forked while other threads used them.
//!
//! In the child a pool works or returns `Why::Forked`. It never waits for a thread that does not
//! exist there.
#![cfg(unix)]
#![expect(unsafe_code, reason = "child processes are made")]
#![expect(clippy::unwrap_used, reason = "a test")]

use pool_core::{AllocError, ArenaConfig, BucketPolicy, BucketPool, KIB, MIB, Why};
use pool_host::HostAllocator;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

type Pool = BucketPool<HostAllocator>;

/// Number of children that are forked for each pool.
const CHILDREN: usize = 100;
/// Seconds after which a child that hangs is ended.
const SECONDS: u32 = 20;

fn pools() -> [(&'static str, Pool); 3] {
    let builder = || BucketPool::builder(HostAllocator::new());
    [
        ("exact", builder().policy(BucketPolicy::Exact).build()),
        ("limit", builder().cached_limit(MIB).build()),
        ("arena", builder().arena(ArenaConfig::grow()).build()),
    ]
}

/// Allocates blocks of many sizes, with hits and misses, and frees them. Returns whether each kept
/// the bytes that were written to it.
fn churn(pool: &Pool, seed: usize) -> Result<bool, AllocError> {
    let mut held = Vec::new();
    for step in 0..100 {
        let bytes = (seed * 7919 + step * 104_729) as u64 % (64 * KIB) + 1;
        let mut buffer = pool.allocate(bytes)?;
        buffer.fill(7);
        held.push(buffer);
        if step % 3 == 0 {
            held.swap_remove(step * 31 % held.len());
        }
    }
    let is_right = held.iter().all(|buffer| buffer.iter().all(|byte| *byte == 7));
    drop(held);
    Ok(is_right)
}

/// Uses the pool in a child, first on its only thread and then on a second one. Returns whether the
/// contents and the statistics are right.
fn child(pool: &Pool) -> Result<bool, AllocError> {
    let own = churn(pool, 1)?;
    let others = thread::scope(|scope| scope.spawn(|| churn(pool, 2)).join().unwrap())?;
    pool.clear()?;
    let stats = pool.stats_exact();
    Ok(own && others && stats.allocations >= 200)
}

/// Forks a child that uses the pool, and returns its wait status: 0 if the pool worked, `1 << 8` if
/// the pool returned `Why::Forked`, and another value if the result was wrong or the child hung.
fn fork(pool: &Pool) -> i32 {
    // SAFETY: the child uses the pool, which is under test, and the C library's allocator, which
    // may be used after `fork`. It ends by `_exit`.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: `alarm` has no requirements on memory. It ends a child that hangs.
            unsafe { libc::alarm(SECONDS) };
            let code = match child(pool) {
                Ok(true) => 0,
                Err(error) if error.why() == Why::Forked => 1,
                _ => 2,
            };
            // SAFETY: `_exit` has no requirements. It ends the child without running destructors.
            unsafe { libc::_exit(code) }
        }
        child => {
            let mut status = 0;
            // SAFETY: `status` is a live local variable that `waitpid` may write to.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            status
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no `fork`")]
fn in_children_of_a_busy_process_a_pool_works_or_reports_the_fork() {
    for (name, pool) in pools() {
        let stop = AtomicBool::new(false);
        let busy = |seed| {
            while !stop.load(Relaxed) {
                assert!(churn(&pool, seed).unwrap());
                pool.trim(MIB).unwrap();
            }
        };
        let statuses = thread::scope(|scope| {
            for seed in [3, 4] {
                let busy = &busy;
                scope.spawn(move || busy(seed));
            }
            let statuses: Vec<i32> = (0..CHILDREN).map(|_| fork(&pool)).collect();
            stop.store(true, Relaxed);
            statuses
        });
        let wrong: Vec<_> =
            statuses.iter().filter(|status| ![0, 1 << 8].contains(*status)).collect();
        assert!(wrong.is_empty(), "{name}: {wrong:?}");
        println!("{name}: {} of {CHILDREN} worked", statuses.iter().filter(|s| **s == 0).count());
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no `fork`")]
fn in_a_child_of_a_quiet_process_a_pool_works() {
    for (name, pool) in pools() {
        let parked = pool.clone();
        thread::spawn(move || churn(&parked, 5)).join().unwrap().unwrap();
        assert_eq!((name, fork(&pool)), (name, 0));
        assert!(churn(&pool, 6).unwrap(), "{name}: the parent goes on");
    }
}
