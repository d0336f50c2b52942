//! The biased lock in all interleavings, by loom. `cargo xtask ci` runs it.

use crate::heap::lock::biased::Biased;
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

/// A count whose reads and writes loom follows: it reports two threads inside at once, and a write
/// that the next one inside does not see.
type Count = Biased<UnsafeCell<u32>>;

fn count(inside: &UnsafeCell<u32>) {
    // SAFETY: loom fails the test if another thread is inside.
    inside.with_mut(|count| unsafe { *count += 1 });
}

/// The owner tries to enter `tries` times, while `others` threads enter.
fn check(barrier: bool, tries: u32, others: u32) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let lock = Arc::new(Count::with_barrier(UnsafeCell::new(0), barrier));
        let enter = |lock: Arc<Count>| thread::spawn(move || count(&lock.enter()));
        let others: Vec<_> = (0..others).map(|_| enter(lock.clone())).collect();
        let mut entered = 0;
        for _ in 0..tries {
            // SAFETY: this thread alone is the owner.
            if let Ok(inside) = unsafe { lock.enter_as_owner() } {
                count(&inside);
                entered += 1;
            }
        }
        let sum = entered + u32::try_from(others.len()).unwrap();
        others.into_iter().for_each(|other| other.join().unwrap());
        // SAFETY: as in `count`.
        lock.enter().with(|count| assert_eq!(unsafe { *count }, sum));
    });
}

#[test]
fn the_owner_and_another_are_never_inside_together() {
    check(true, 2, 1);
}

#[test]
fn nor_where_the_owner_enters_by_a_swap() {
    check(false, 2, 1);
}

#[test]
fn two_others_and_the_owner_take_turns() {
    check(true, 1, 2);
}

/// The thread that enters last may free the lock: the owner does not touch it after it has left.
#[test]
fn the_owner_is_let_out_before_the_lock_goes() {
    loom::model(|| {
        let lock = Arc::new(Count::with_barrier(UnsafeCell::new(0), true));
        let own = lock.clone();
        let owner = thread::spawn(move || {
            // SAFETY: this thread alone is the owner.
            if let Ok(inside) = unsafe { own.enter_as_owner() } {
                count(&inside);
            }
        });
        count(&lock.enter());
        owner.join().unwrap();
        // SAFETY: this thread is the owner now; joining orders it after the one before.
        let inside = unsafe { lock.enter_as_owner() }.expect("nobody else is there");
        // SAFETY: as in `count`.
        inside.with(|count| assert!(unsafe { *count } >= 1));
    });
}
