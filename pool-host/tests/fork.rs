//! A process forks while its threads use pools of host memory: in the child a pool works, or says
//! that it was forked. It never waits for a thread that is not there.
#![cfg(unix)]
#![expect(unsafe_code, reason = "child processes are made")]
#![expect(clippy::unwrap_used, reason = "a test")]

use pool_core::{AllocError, ArenaConfig, BucketPolicy, BucketPool, KIB, MIB, Why};
use pool_host::HostAllocator;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

type Pool = BucketPool<HostAllocator>;

/// Children of each pool.
const CHILDREN: usize = 100;
/// Seconds after which a child that waits is ended.
const SECONDS: u32 = 20;

fn pools() -> [(&'static str, Pool); 3] {
    let builder = || BucketPool::builder(HostAllocator::new());
    [
        ("exact", builder().policy(BucketPolicy::Exact).build()),
        ("limit", builder().cached_limit(MIB).build()),
        ("arena", builder().arena(ArenaConfig::grow()).build()),
    ]
}

/// Takes blocks of many sizes, hits and misses, and gives them back.
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

/// Uses the pool in a child as a program does, on two threads.
fn child(pool: &Pool) -> Result<bool, AllocError> {
    let own = churn(pool, 1)?;
    let others = thread::scope(|scope| scope.spawn(|| churn(pool, 2)).join().unwrap())?;
    pool.clear()?;
    let stats = pool.stats_exact();
    Ok(own && others && stats.allocations >= 200)
}

/// Forks. Returns the exit status of the child: 0 if it worked, 1 << 8 if it was told that it was
/// forked, anything else if it was wrong, or waited.
fn fork(pool: &Pool) -> i32 {
    // SAFETY: the child does what is tested here, allocates by the C library, which allows that
    // after `fork`, and ends.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: sets a clock of this process.
            unsafe { libc::alarm(SECONDS) };
            let code = match child(pool) {
                Ok(true) => 0,
                Err(error) if error.why() == Why::Forked => 1,
                _ => 2,
            };
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(code) }
        }
        child => {
            let mut status = 0;
            // SAFETY: waits for our child, and writes to the number that it is given.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            status
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no `fork`")]
fn children_of_a_busy_process_work_or_say_that_they_were_forked() {
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
fn a_child_of_a_quiet_process_works() {
    for (name, pool) in pools() {
        let parked = pool.clone();
        thread::spawn(move || churn(&parked, 5)).join().unwrap().unwrap();
        assert_eq!((name, fork(&pool)), (name, 0));
        assert!(churn(&pool, 6).unwrap(), "{name}: the parent goes on");
    }
}
