//! Rounds of work on threads that live for all of them, with the pause between two rounds in which
//! nothing runs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

/// Runs `work` with the number of a thread and of a round, on `threads` threads, as long as
/// `between` says so; `between` is called after each round. The threads live for all of it, as
/// those of a service do: glibc keeps heap for each thread that ever ran.
///
/// Returns whether no round panicked. A panic ends the rounds, and is printed.
pub(super) fn run(
    threads: usize,
    work: impl Fn(usize, usize) + Sync,
    mut between: impl FnMut() -> bool,
) -> bool {
    // One for each thread and one for this: a round lies between two waits.
    let (barrier, ends) = (Barrier::new(threads + 1), AtomicBool::new(false));
    let panicked = AtomicBool::new(false);
    let rounds_of = &|number: usize| {
        for round in 0.. {
            barrier.wait();
            if ends.load(Relaxed) {
                return;
            }
            // The other threads wait at the barrier for this one, whatever happens.
            let done = catch_unwind(AssertUnwindSafe(|| work(number, round)));
            panicked.fetch_or(done.is_err(), Relaxed);
            barrier.wait();
        }
    };
    thread::scope(|scope| {
        for number in 0..threads {
            scope.spawn(move || rounds_of(number));
        }
        loop {
            barrier.wait();
            barrier.wait();
            if panicked.load(Relaxed) || !between() {
                break;
            }
        }
        ends.store(true, Relaxed);
        barrier.wait();
    });
    !panicked.load(Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn each_thread_works_once_between_two_pauses() {
        let (done, mut pauses) = (AtomicUsize::new(0), 0);
        let work = |number: usize, round: usize| {
            assert!(done.fetch_add(1, Relaxed) / 3 == round && number < 3);
        };
        let whole = run(3, work, || {
            pauses += 1;
            assert_eq!(done.load(Relaxed), 3 * pauses);
            pauses < 4
        });
        assert!(whole && pauses == 4);
    }

    #[test]
    fn a_panic_ends_the_rounds_of_all_threads() {
        let mut pauses = 0;
        let work = |number, round| assert!((number, round) != (1, 2), "planted");
        let whole = run(2, work, || {
            pauses += 1;
            true
        });
        assert!(!whole && pauses == 2);
    }
}
