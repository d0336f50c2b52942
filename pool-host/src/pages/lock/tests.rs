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
