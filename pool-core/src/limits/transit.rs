//! Memory in transit: between the pools of a budget and their devices, or between two lists of a
//! pool. A search does not find it, so a request that would be refused waits until that memory has
//! arrived.

use crate::sys::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use crate::sys::forks;

#[cfg(not(any(loom, shuttle)))]
thread_local! {
    /// Pieces that this thread has on their way, in any budget.
    static OWN_PIECES: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    /// The number of times that this thread made memory available again, in all budgets.
    static OWN_RETURNS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}
#[cfg(any(loom, shuttle))]
crate::checker::thread_local! {
    static OWN_PIECES: std::cell::Cell<u64> = std::cell::Cell::new(0);
    static OWN_RETURNS: std::cell::Cell<u64> = std::cell::Cell::new(0);
}

/// Counts of memory on its way, and of returns. They change on cold paths only.
#[derive(Debug, Default)]
pub(crate) struct Transit {
    /// In the low 32 bits the number of blocks, ranges and reservations that threads have outside
    /// of all lists. In the high 32 bits the number of the process (`forks`), because a forked child
    /// has none of the threads whose pieces its parent counted.
    pieces: AtomicU64,
    /// The number of times that memory became available again: in a list of free memory, or under a
    /// limit.
    returns: AtomicU64,
}

/// The pieces of this process in a value of [`Transit::pieces`].
fn pieces_of(packed: u64) -> u64 {
    if packed >> 32 == u64::from(forks()) { packed & u64::from(u32::MAX) } else { 0 }
}

fn packed(pieces: u64) -> u64 {
    u64::from(forks()) << 32 | pieces
}

impl Transit {
    /// Returns whether any memory is on its way.
    pub(crate) fn has_pieces(&self) -> bool {
        pieces_of(self.pieces.load(Acquire)) > 0
    }

    /// Returns whether other threads have memory in transit. Pieces of the calling thread do not
    /// count, because code that a device call or an observer runs would wait for itself.
    pub(crate) fn others_have_pieces(&self) -> bool {
        let here = OWN_PIECES.with(std::cell::Cell::get);
        pieces_of(self.pieces.load(Acquire)) > here
    }

    /// Counts `count` pieces of memory that leave a list. Call it under the lock of that list.
    pub(crate) fn begin(&self, count: usize) {
        let count = count as u64;
        OWN_PIECES.with(|here| here.set(here.get() + count));
        self.change(|pieces| pieces + count);
    }

    /// Counts `count` pieces of memory that have arrived. Call it on the thread that began.
    pub(crate) fn end(&self, count: usize) {
        if count > 0 {
            let count = count as u64;
            OWN_PIECES.with(|here| here.set(here.get().saturating_sub(count)));
            // The return is counted first: a thread that sees no pieces in transit must see the
            // return.
            self.note_return();
            // The thread that forked may have begun this transit before the fork. The child's count
            // does not include it, so the subtraction saturates.
            self.change(|pieces| pieces.saturating_sub(count));
        }
    }

    fn change(&self, to: impl Fn(u64) -> u64) {
        self.pieces.update(Release, Acquire, |old| packed(to(pieces_of(old))));
    }

    /// Notes that memory came back without a transit.
    pub(crate) fn note_return(&self) {
        self.returns.fetch_add(1, Release);
        OWN_RETURNS.with(|here| here.set(here.get().wrapping_add(1)));
    }

    /// Returns a number that changes when another thread makes memory available again.
    pub(crate) fn returns_of_others(&self) -> u64 {
        OWN_RETURNS.with(|here| self.returns.load(Acquire).wrapping_sub(here.get()))
    }
}

/// One piece of memory on its way, until the drop.
pub(crate) struct InTransit<'t>(&'t Transit);

impl<'t> InTransit<'t> {
    pub(crate) fn new(transit: &'t Transit) -> Self {
        transit.begin(1);
        Self(transit)
    }
}

impl Drop for InTransit<'_> {
    fn drop(&mut self) {
        self.0.end(1);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn only_what_other_threads_return_changes_the_number() {
        let transit = Transit::default();
        let before = transit.returns_of_others();
        drop(InTransit::new(&transit));
        transit.note_return();
        assert_eq!(transit.returns_of_others(), before);
        thread::scope(|scope| {
            scope.spawn(|| drop(InTransit::new(&transit)));
        });
        assert_eq!(transit.returns_of_others(), before + 1);
        assert!(!transit.has_pieces());
    }

    #[test]
    fn a_thread_does_not_wait_for_its_own_pieces() {
        let transit = Transit::default();
        let _own = InTransit::new(&transit);
        assert!(transit.has_pieces() && !transit.others_have_pieces());
        thread::scope(|scope| {
            scope.spawn(|| assert!(transit.others_have_pieces()));
        });
    }

    /// As if a thread of the parent had begun, which the child does not have.
    #[test]
    fn pieces_of_a_parent_do_not_count_in_its_child() {
        let transit = Transit::default();
        transit.pieces.store((u64::from(forks()).wrapping_sub(1)) << 32 | 3, Release);
        assert!(!transit.has_pieces());
        let own = InTransit::new(&transit);
        assert_eq!(pieces_of(transit.pieces.load(Acquire)), 1);
        drop(own);
        transit.end(1); // it began before the fork
        assert!(!transit.has_pieces());
    }
}
