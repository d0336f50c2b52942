//! All interleavings of two threads in a depot, by loom: `cargo xtask ci` runs it.

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

/// What the cache does to keep a block: a lease for it, or the oldest goes. Returns what went.
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

/// Everything that is still there, in any order.
fn drain(depot: &Depot) -> Vec<usize> {
    std::iter::from_fn(|| pop(depot)).collect()
}

fn sorted(mut numbers: Vec<usize>) -> Vec<usize> {
    numbers.sort_unstable();
    numbers
}

#[test]
fn a_block_has_one_owner_and_the_bound_holds() {
    // All of them are millions; a thread is interrupted twice at most.
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
fn a_hot_block_has_one_owner_and_its_place_one_lease() {
    loom::model(|| {
        let depot = Arc::new(Depot::new(4 * 16));
        assert!(depot.leases.extend(16) && depot.open(class()));
        assert!(depot.put_hot(class(), block(1)));
        let other = {
            let depot = depot.clone();
            thread::spawn(move || {
                let mut out: Vec<usize> =
                    depot.take_hot(class()).map(number_of).into_iter().collect();
                // Another class wants the lease.
                depot.reclaim_leases();
                if let Some(taken) = out.pop()
                    && !depot.put_hot(class(), block(taken))
                {
                    out.push(taken);
                }
                out
            })
        };
        let mut out = vec![];
        match depot.put_above(class(), block(2)) {
            Put::Kept => {}
            Put::Displaced(older) => out.push(number_of(older)),
            Put::Refused => out.push(2),
        }
        out.extend(other.join().unwrap());
        out.extend(drain(&depot));
        assert_eq!(sorted(out), [1, 2]);
        depot.reclaim_leases();
        assert_eq!(depot.leases.leased(), 0);
        assert!(depot.open(class()), "it was closed once");
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

/// What one thread wrote to a block comes before what the next owner reads.
#[test]
fn a_block_is_handed_over_with_what_was_written() {
    loom::model(|| {
        let depot = Arc::new(Depot::new(4 * 16));
        let contents = Arc::new(loom::cell::UnsafeCell::new(0));
        assert!(depot.leases.extend(16) && depot.open(class()));
        let other = {
            let (depot, contents) = (depot.clone(), contents.clone());
            thread::spawn(move || {
                // SAFETY: the writer has the block; loom checks that nobody else has.
                contents.with_mut(|contents| unsafe { *contents = 7 });
                if !depot.put_hot(class(), block(1)) {
                    keep(&depot, 1);
                }
            })
        };
        if pop(&depot).is_some() {
            // SAFETY: the block came out of the depot; loom checks that this comes after the write.
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
