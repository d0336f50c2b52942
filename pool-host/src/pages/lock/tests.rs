//! Tests of the lock in signal handlers that fork. A handler runs on the stack of the code that it has
//! interrupted, so to the lock it is a call of that code.
#![expect(unsafe_code, reason = "child processes are made")]

use super::*;
use crate::pages::tests::with_forks;

/// Returns whether `work` is true in a child process, which ends if it waits for 20 s.
fn holds_in_child(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child uses only a lock of the test and system calls, and ends with `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: `alarm` has no preconditions.
        unsafe { libc::alarm(20) };
        let code = i32::from(!work());
        // SAFETY: `_exit` has no preconditions.
        unsafe { libc::_exit(code) };
    }
    let mut status = 1;
    // SAFETY: `child` is this process's child, and `status` is valid for the write.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    waited == child && status == 0
}

/// A handler forks. `in_handler` runs in its child, in the handler, and the result is whether it was
/// true there, and the interrupted code went on in both.
fn forks_in_handler(lock: &ForkLock<u32>, in_handler: impl FnOnce(&ForkLock<u32>) -> bool) -> bool {
    let mut is_well = true;
    let interrupted = lock.enter(|value| {
        *value = 1;
        lock.before_fork(true);
        is_well = holds_in_child(|| {
            lock.in_child(|value| *value = 3);
            in_handler(lock)
        });
        lock.after_fork(|value| *value = 4);
        *value += 1;
    });
    is_well && interrupted.is_some() && lock.enter(|value| *value) == Some(2)
}

#[test]
fn a_signal_handler_may_fork_under_the_lock_and_its_requests_are_refused() {
    let _alone = with_forks();
    assert!(holds_in_child(|| {
        let lock = ForkLock::new(0);
        forks_in_handler(&lock, |lock| lock.enter(|_| ()).is_none())
    }));
}

#[test]
fn a_child_of_a_signal_handler_has_the_lock_when_the_interrupted_code_is_done() {
    let _alone = with_forks();
    assert!(holds_in_child(|| {
        let lock = ForkLock::new(0);
        let (parent, mut is_child) = (std::process::id(), false);
        let done = lock.enter(|value| {
            lock.before_fork(true);
            // SAFETY: both use only the lock and system calls.
            let child = unsafe { libc::fork() };
            is_child = child == 0;
            if is_child {
                lock.in_child(|_| ());
            } else {
                lock.after_fork(|_| ());
                let mut status = 1;
                // SAFETY: `child` is this process's child, and `status` is valid for the write.
                unsafe { libc::waitpid(child, &raw mut status, 0) };
                assert_eq!(status, 0, "the child goes on");
            }
            *value = parent;
        });
        let is_well = done.is_some() && lock.enter(|value| *value) == Some(parent);
        if is_child {
            // SAFETY: `_exit` has no preconditions.
            unsafe { libc::_exit(i32::from(!is_well)) };
        }
        is_well
    }));
}

#[test]
fn a_signal_handler_may_fork_while_the_lock_is_given_up_after_a_fork() {
    let _alone = with_forks();
    assert!(holds_in_child(|| {
        let lock = ForkLock::new(0);
        lock.before_fork(true);
        lock.after_fork(|value| {
            *value = 1;
            lock.before_fork(true);
            *value += u32::from(lock.enter(|_| ()).is_none());
            lock.after_fork(|_| ());
        });
        lock.enter(|value| *value) == Some(2)
    }));
}

/// A thread that comes while another forks is refused, and leaves its lock; the thread that forks may
/// enter meanwhile.
#[test]
fn a_shut_gate_refuses_all_but_the_thread_that_forks() {
    let (gate, locks) = (Gate::new(), [ForkLock::new(1), ForkLock::new(2)]);
    gate.before_fork(locks.iter(), true);
    let other = |lock: &ForkLock<u32>| gate.enter(lock, |value| *value);
    let others = std::thread::scope(|scope| {
        scope.spawn(|| locks.each_ref().map(other)).join().unwrap_or([Some(0); 2])
    });
    assert_eq!(others, [None, None]);
    assert_eq!(locks.each_ref().map(other), [Some(1), Some(2)], "its own fork handlers");
    gate.after_fork();
    let others = std::thread::scope(|scope| {
        scope.spawn(|| locks.each_ref().map(other)).join().unwrap_or([None; 2])
    });
    assert_eq!(others, [Some(1), Some(2)]);
}

/// A fork begins when the threads that were inside have left, and no thread enters from then on.
#[test]
fn a_fork_waits_for_what_is_under_the_locks_of_its_gate() {
    let (gate, lock) = (Gate::new(), ForkLock::new(0_u32));
    let (is_inside, may_leave) = (std::sync::Barrier::new(2), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            gate.enter(&lock, |value| {
                is_inside.wait();
                // Until the other has shut the gate, and is about to wait.
                while gate.lock.owner.load(SeqCst) & FORKS == 0 {
                    std::hint::spin_loop();
                }
                may_leave.store(1, SeqCst);
                *value = 1;
            });
        });
        is_inside.wait();
        gate.before_fork(std::iter::once(&lock), true);
        assert_eq!(may_leave.load(SeqCst), 1);
        assert_eq!(gate.enter(&lock, |value| *value), Some(1), "whole");
        gate.after_fork();
    });
}

/// A thread that was about to find the gate shut has a lock in the child, under which it did nothing.
#[test]
fn a_child_has_the_locks_that_threads_were_about_to_leave() {
    const OTHER: usize = 2;
    let (gate, lock) = (Gate::new(), ForkLock::new(7_u32));
    gate.before_fork(std::iter::once(&lock), true);
    assert!(lock.try_hold(OTHER));
    gate.in_child(std::iter::once(&lock));
    assert_eq!(gate.enter(&lock, |value| *value), Some(7));
    // Without a gate that was shut, the thread may have been at work.
    assert!(lock.try_hold(OTHER));
    gate.in_child(std::iter::once(&lock));
    assert_eq!(gate.enter(&lock, |value| *value), None);
}

/// A thread may wait for one lock while it has another. A handler that has interrupted its own thread with
/// the first does not wait for the other.
#[test]
fn a_fork_in_a_handler_does_not_wait_for_a_thread_that_waits_for_the_interrupted_code() {
    let _alone = with_forks();
    assert!(holds_in_child(|| {
        let (outer, inner, started) = (ForkLock::new(0), ForkLock::new(0), AtomicU32::new(0));
        let work_in_both = |value: &mut u32| {
            started.store(1, SeqCst);
            *value += 1;
            inner.enter(|value| *value += 1);
        };
        let mut is_lost = false;
        std::thread::scope(|scope| {
            inner.enter(|value| {
                scope.spawn(|| outer.enter(work_in_both));
                while started.load(SeqCst) == 0 {
                    std::thread::yield_now();
                }
                outer.before_fork(!inner.is_inside());
                is_lost = holds_in_child(|| {
                    outer.in_child(|_| ());
                    outer.enter(|_| ()).is_none()
                });
                outer.after_fork(|_| ());
                *value += 1;
            });
        });
        is_lost && outer.enter(|value| *value) == Some(1) && inner.enter(|value| *value) == Some(2)
    }));
}

/// A fork that may not wait finds a thread at work, and the child does without what that has locked.
#[test]
fn a_child_of_a_fork_that_does_not_wait_loses_what_other_threads_have_locked() {
    const OTHER: usize = 2;
    let (gate, locks) = (Gate::new(), [ForkLock::new(1), ForkLock::new(2)]);
    assert!(locks[0].try_hold(OTHER));
    gate.before_fork(locks.iter(), false);
    gate.in_child(locks.iter());
    assert_eq!(locks.each_ref().map(|lock| gate.enter(lock, |value| *value)), [None, Some(2)]);
}

/// Who frees the lock wakes one thread that sleeps. If another forks before that thread has the lock, it is refused,
/// and wakes the others: the fork may wait for what they have.
#[test]
fn a_thread_that_is_refused_when_it_wakes_wakes_the_others() {
    const HOLDER: usize = 2;
    let _alone = with_forks();
    assert!(holds_in_child(|| {
        let (lock, sleeper) = (ForkLock::new(0), AtomicU32::new(0));
        assert!(lock.try_hold(HOLDER));
        std::thread::scope(|scope| {
            let refused = scope.spawn(|| {
                sleeper.store(system::thread_number().cast_unsigned(), SeqCst);
                lock.enter(|_| ()).is_none()
            });
            let sleeps = || {
                let stat = format!("/proc/self/task/{}/stat", sleeper.load(SeqCst));
                std::fs::read_to_string(stat).is_ok_and(|stat| stat.contains(") S "))
            };
            while lock.awaited.load(SeqCst) == 0 || !sleeps() {
                std::thread::yield_now();
            }
            // The holder has woken a thread, which has not run yet.
            lock.owner.store(NOBODY, SeqCst);
            lock.awaited.store(0, SeqCst);
            lock.before_fork(true);
            let woken = lock.sleep(HOLDER, |owner| owner & FORKS != 0);
            woken.is_err() && refused.join().unwrap_or(false)
        })
    }));
}
