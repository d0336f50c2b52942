//! Loom models of two threads in a depot. `cargo xtask ci` runs them.

#![expect(unsafe_code, reason = "what a block holds is read and written")]

use super::*;
use loom::sync::Arc;
use loom::thread;

fn block(number: usize) -> *mut u8 {
    std::ptr::without_provenance_mut(16 * number)
}

fn class() -> Class {
    Class::numbered(0)
}

/// Caches a block as `Cache::keep` does: leases its bytes, or evicts the oldest block for them.
/// Returns the numbers of the evicted blocks.
fn keep(depot: &Depot, number: usize) -> Vec<usize> {
    let (mut batch, mut lease, mut out) = (Batch::of(block(number)), 0, vec![]);
    loop {
        match depot.push(class(), &mut batch, lease) {
            Ok(unused) => {
                depot.leases.give_back(unused);
                return out;
            }
            Err(Refused::Unleased(bytes)) if depot.leases.extend(bytes) => lease += bytes,
            Err(refused) => {
                if refused != Refused::Busy
                    && let Some((_, oldest)) = depot.take_oldest(1)
                {
                    out.extend(oldest.as_slice().iter().copied().map(number_of));
                    continue;
                }
                depot.leases.give_back(lease);
                out.push(number);
                return out;
            }
        }
    }
}

fn number_of(block: *mut u8) -> usize {
    block.addr() / 16
}

fn pop(depot: &Depot) -> Option<usize> {
    depot.pop(class(), 1).and_then(|mut batch| batch.pop()).map(number_of)
}

/// Takes all blocks that are still in the depot, in any order.
fn drain(depot: &Depot) -> Vec<usize> {
    std::iter::from_fn(|| pop(depot)).collect()
}

fn sorted(mut numbers: Vec<usize>) -> Vec<usize> {
    numbers.sort_unstable();
    numbers
}

#[test]
fn a_block_has_one_owner_and_the_bound_holds() {
    // There are millions of interleavings; the model covers those with at most two preemptions.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let depot = Arc::new(Depot::new(2 * 16));
        keep(&depot, 1);
        let other = {
            let depot = depot.clone();
            thread::spawn(move || {
                let mut out = keep(&depot, 2);
                out.extend(pop(&depot));
                out
            })
        };
        let mut out = keep(&depot, 3);
        assert!(depot.leases.leased() <= 2 * 16);
        out.extend(other.join().unwrap());
        out.extend(drain(&depot));
        assert_eq!(sorted(out), [1, 2, 3]);
        depot.reclaim_leases();
        assert_eq!(depot.leases.leased(), 0);
    });
}

#[test]
fn leases_never_pass_the_bound() {
    loom::model(|| {
        let leases = Arc::new(Leases::new(3));
        let other = {
            let leases = leases.clone();
            thread::spawn(move || {
                let got = leases.extend(2);
                leases.give_back(usize::from(got));
                usize::from(got)
            })
        };
        let got = leases.extend(2);
        assert!(leases.leased() <= 3);
        let left = if got { 2 } else { 0 } + other.join().unwrap();
        assert_eq!(leases.leased(), left);
        assert!(leases.peak() <= 3);
    });
}

/// Checks that a thread's writes to a block happen before the reads of the next owner.
#[test]
fn a_block_is_handed_over_with_what_was_written() {
    loom::model(|| {
        let depot = Arc::new(Depot::new(4 * 16));
        let contents = Arc::new(loom::cell::UnsafeCell::new(0));
        let other = {
            let (depot, contents) = (depot.clone(), contents.clone());
            thread::spawn(move || {
                // SAFETY: this thread owns the block until `keep`; loom checks that no other access
                // is concurrent.
                contents.with_mut(|contents| unsafe { *contents = 7 });
                keep(&depot, 1);
            })
        };
        if pop(&depot).is_some() {
            // SAFETY: this thread owns the block, because the depot returned it; loom checks that
            // the write happens before this read.
            assert_eq!(contents.with(|contents| unsafe { *contents }), 7);
        }
        other.join().unwrap();
    });
}

#[test]
fn a_lock_is_free_when_nobody_is_in_it() {
    loom::model(|| {
        let lock = Arc::new(TryLock::new(0));
        let other = {
            let lock = lock.clone();
            thread::spawn(move || lock.enter(|count| *count += 1).is_some())
        };
        let entered = lock.enter(|count| *count += 1).is_some();
        let entered = u32::from(entered) + u32::from(other.join().unwrap());
        assert_eq!(lock.enter(|count| *count), Some(entered));
    });
}
