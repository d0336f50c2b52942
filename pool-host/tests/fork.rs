//! Pools of host memory in a child that was forked while other threads used them.
//!
//! In the child a pool works or returns `Why::Forked`. It never waits for a thread that does not
//! exist there.
#![cfg(unix)]
#![expect(unsafe_code, reason = "child processes are made")]
#![expect(clippy::unwrap_used, reason = "a test")]

use pool_core::check::PoolLock;
use pool_core::limits::Budget;
use pool_core::{AllocError, ArenaConfig, BucketPolicy, BucketPool, KIB, MIB, PrivatePool, Why};
use pool_host::HostAllocator;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

type Pool = BucketPool<HostAllocator>;

/// Number of children that are forked for each pool.
const CHILDREN: usize = 100;
/// Threads of a child that begin at once.
const THREADS: usize = 8;
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

/// Runs a test of this program again in its own process, unless this is that process. Returns
/// whether it did.
///
/// The standard library holds its own lock while a thread starts or ends. A child that is
/// forked in between can start no thread. So no other test may run meanwhile.
fn ran_alone(test: &str) -> bool {
    if std::env::var_os("ALONE").is_some() {
        return false;
    }
    let mut program = std::process::Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", test, "--nocapture"]).env("ALONE", "1");
    let output = program.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    true
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
    let stats = pool.stats();
    Ok(own && others && stats.allocations >= 200)
}

/// Forks a child that uses the pool, and returns its wait status: 0 if the pool worked, `1 << 8` if
/// the pool returned `Why::Forked`, and another value if the result was wrong or the child hung.
fn fork(pool: &Pool) -> i32 {
    fork_to(|| match child(pool) {
        Ok(true) => 0,
        Err(error) if error.why() == Why::Forked => 1,
        _ => 2,
    })
}

/// Forks a child that ends with what `work` returns, and returns its wait status.
fn fork_to(work: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child uses the pool, which is under test, and the C library's allocator, which
    // may be used after `fork`. It ends by `_exit`.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: `alarm` has no requirements on memory. It ends a child that hangs.
            unsafe { libc::alarm(SECONDS) };
            let code = work();
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
    if ran_alone("in_children_of_a_busy_process_a_pool_works_or_reports_the_fork") {
        return;
    }
    for (name, pool) in pools() {
        let (stop, start) = (AtomicBool::new(false), Barrier::new(3));
        let busy = |seed| {
            start.wait();
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
            start.wait(); // no thread starts while this one forks
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
    if ran_alone("in_a_child_of_a_quiet_process_a_pool_works") {
        return;
    }
    for (name, pool) in pools() {
        let parked = pool.clone();
        thread::spawn(move || churn(&parked, 5)).join().unwrap().unwrap();
        assert_eq!((name, fork(&pool)), (name, 0));
        assert!(churn(&pool, 6).unwrap(), "{name}: the parent goes on");
    }
}

/// Threads of a child that all begin with hits: none may take the lock of another for that of a thread of
/// the parent. `BUCKETPOOL_CHILDREN` says how many children are tried.
#[test]
#[cfg_attr(miri, ignore = "Miri has no `fork`")]
fn threads_of_a_child_that_begin_with_hits_are_all_served() {
    if ran_alone("threads_of_a_child_that_begin_with_hits_are_all_served") {
        return;
    }
    let children = std::env::var("BUCKETPOOL_CHILDREN").map_or(CHILDREN, |number| {
        number.parse().expect("BUCKETPOOL_CHILDREN: a number of children")
    });
    for shards in [1, THREADS] {
        let pool = BucketPool::builder(HostAllocator::new()).shards(shards).build();
        let hold = || pool.allocate(4 * KIB).unwrap();
        // As many blocks as there are threads, in the shard of each thread that may come.
        let start = Barrier::new(THREADS);
        let take_and_wait = || {
            let block = hold();
            start.wait();
            drop(block);
        };
        thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(take_and_wait))));
        let refused = (0..children).filter(|_| {
            0 != fork_to(|| {
                let start = Barrier::new(THREADS);
                let take = || {
                    start.wait();
                    (0..50).all(|_| pool.allocate(4 * KIB).is_ok())
                };
                let take = &take;
                thread::scope(|scope| {
                    let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(take)).collect();
                    i32::from(!threads.into_iter().all(|thread| thread.join().unwrap()))
                })
            })
        });
        assert_eq!(refused.count(), 0, "of {children} children, {shards} shards");
    }
}

/// A thread of the parent may be making the pools of the process.
#[test]
#[cfg_attr(miri, ignore = "Miri has no `fork`")]
fn in_a_child_the_pools_of_the_process_wait_for_no_thread_of_the_parent() {
    if ran_alone("in_a_child_the_pools_of_the_process_wait_for_no_thread_of_the_parent") {
        return;
    }
    let use_both = || {
        let small = pool_host::global_small_tensors().allocate(100).map(drop);
        let all = pool_host::global().allocate(100).map(drop).and(small);
        all.map_err(|error| error.why())
    };
    let statuses: Vec<i32> = (0..CHILDREN)
        .map(|turn| {
            fork_to(|| {
                // In this process no thread has used the pools yet.
                let start = Barrier::new(2);
                thread::scope(|scope| {
                    scope.spawn(|| {
                        start.wait();
                        let _ = use_both();
                    });
                    start.wait();
                    (0..turn * 100).for_each(|_| std::hint::spin_loop());
                    let status =
                        fork_to(|| i32::from(!matches!(use_both(), Ok(()) | Err(Why::Forked))));
                    i32::from(status != 0)
                })
            })
        })
        .collect();
    assert_eq!(statuses, [0; CHILDREN]);
}

/// A thread of the parent may be inside a private pool, or give a tag its name.
#[test]
#[cfg_attr(miri, ignore = "Miri has no `fork`")]
fn in_a_child_no_private_pool_and_no_tag_waits_for_a_thread_of_the_parent() {
    if ran_alone("in_a_child_no_private_pool_and_no_tag_waits_for_a_thread_of_the_parent") {
        return;
    }
    let pool = BucketPool::new(HostAllocator::new());
    let (private, stop, start) = (PrivatePool::new(&pool), AtomicBool::new(false), Barrier::new(2));
    private.bind(&()).unwrap();
    let buffer = pool.allocate(KIB).unwrap();
    assert!(buffer.is_private());
    let statuses: Vec<i32> = thread::scope(|scope| {
        scope.spawn(|| {
            start.wait();
            while !stop.load(Relaxed) {
                drop((private.cached_bytes(), pool.tagged("parent")));
            }
        });
        start.wait();
        let of_children = (0..CHILDREN).map(|_| {
            fork_to(|| {
                let cached = (private.cached_bytes(), format!("{private:?}"));
                let uses = buffer.on(&()).map(drop).map_err(|error| error.why);
                let other = PrivatePool::new(&pool);
                other.unbind_one(&());
                other.end(&[]);
                drop((other, pool.tagged("child")));
                let well = cached.0 == 0 && matches!(uses, Ok(()) | Err(Why::Forked));
                i32::from(!well)
            })
        });
        let statuses = of_children.collect();
        stop.store(true, Relaxed);
        statuses
    });
    assert_eq!(statuses, [0; CHILDREN]);
}

/// A thread of the parent waited for memory at the fork. It is not in the child, so a request there
/// must not wait behind it.
#[test]
#[cfg_attr(miri, ignore = "Miri has no `fork`")]
fn in_a_child_no_request_waits_behind_one_of_the_parent() {
    if ran_alone("in_a_child_no_request_waits_behind_one_of_the_parent") {
        return;
    }
    let pool = BucketPool::builder(HostAllocator::new()).reserved_limit(MIB).build();
    let held = pool.allocate(MIB).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| pool.allocate_timeout(MIB, Duration::MAX).map(drop));
        while pool.budget().waiter_count() == 0 {
            thread::yield_now();
        }
        let status = fork_to(|| {
            let refusals = [
                pool.allocate_timeout(MIB, Duration::MAX).unwrap_err(),
                pool.with_timeout(Duration::MAX).allocate(MIB).unwrap_err(),
                pool.allocate(MIB).unwrap_err(),
            ];
            let well = refusals.iter().all(|refusal| refusal.why() == Why::Forked);
            i32::from(!well)
        });
        assert_eq!(status, 0);
        drop(held);
        waits.join().unwrap().unwrap();
    });
}

/// A request that waits in a child tells the other pools of its budget, which look at their locks then.
#[test]
#[cfg_attr(miri, ignore = "Miri has no `fork`")]
fn in_a_child_a_request_that_waits_leaves_the_other_pools_of_its_budget_alone() {
    if ran_alone("in_a_child_a_request_that_waits_leaves_the_other_pools_of_its_budget_alone") {
        return;
    }
    let budget = Budget::new(8 * MIB);
    let [full, other] = [MIB, 8 * MIB].map(|limit| {
        let builder = BucketPool::builder(HostAllocator::new()).reserved_limit(limit);
        builder.budget(&budget).build()
    });
    let held = full.allocate(MIB).unwrap();
    let status = fork_to(|| {
        let waited = full.allocate_timeout(MIB, Duration::from_millis(1)).unwrap_err();
        let served = other.allocate(KIB).map(drop).map_err(|error| error.why());
        i32::from(waited.why() != Why::TimedOut || served != Ok(()))
    });
    assert_eq!(status, 0);
    drop(held);
}

/// A pool's first call on a thread gives the thread a number. The C library's `fork` takes its own
/// locks after all handlers, so no thread may wait for a handler's lock.
#[test]
#[cfg_attr(miri, ignore = "Miri has no `fork`")]
fn a_thread_begins_to_use_a_pool_while_another_forks() {
    /// Whether the handler below lets a thread use a pool.
    static USES: AtomicBool = AtomicBool::new(false);
    /// Runs after the handlers of pools, which were registered later.
    extern "C" fn before() {
        if USES.load(Relaxed) {
            let other = thread::spawn(|| pools().iter().all(|(_, pool)| churn(pool, 3).unwrap()));
            assert!(other.join().unwrap());
        }
    }
    if ran_alone("a_thread_begins_to_use_a_pool_while_another_forks") {
        return;
    }
    // SAFETY: the handler lives as long as the process. It runs in the parent only, where a thread
    // may be made.
    assert_eq!(unsafe { libc::pthread_atfork(Some(before), None, None) }, 0);
    let [(_, pool), ..] = pools();
    USES.store(true, Relaxed);
    // SAFETY: `alarm` has no requirements on memory. It ends this process if it hangs.
    unsafe { libc::alarm(SECONDS) };
    assert_eq!(fork(&pool), 0);
    // SAFETY: as above.
    unsafe { libc::alarm(0) };
}

/// What a child finds: 0 if the pool of the process works, and is as `same` says that of its parent.
fn uses(get: fn() -> &'static Pool, parents: &'static Pool, same: bool) -> i32 {
    let own = get();
    let works = churn(own, 1).is_ok_and(|is_right| is_right);
    i32::from(!works || std::ptr::eq(own, parents) != same || !std::ptr::eq(own, get()))
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no `fork`")]
fn the_pools_of_the_process_serve_a_child_whoever_was_in_them() {
    if ran_alone("the_pools_of_the_process_serve_a_child_whoever_was_in_them") {
        return;
    }
    for get in [pool_host::global as fn() -> &'static Pool, pool_host::global_small_tensors] {
        let pool = get();
        assert_eq!(fork_to(|| uses(get, pool, true)), 0, "nobody was in it");
        let (held, forked) = (Barrier::new(2), Barrier::new(2));
        thread::scope(|scope| {
            scope.spawn(|| {
                pool.with_lock_held(PoolLock::Shard, || {
                    held.wait();
                    forked.wait();
                });
            });
            held.wait();
            let status = fork_to(|| {
                let own = uses(get, pool, false);
                let child = get();
                own + fork_to(|| uses(get, child, true)) // and the children of the child
            });
            forked.wait();
            assert_eq!(status, 0, "a thread was in it");
        });
        assert_eq!(uses(get, pool, true), 0, "the parent keeps its own");
    }
}
