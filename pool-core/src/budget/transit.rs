//! Memory on its way between the pools of a budget and their devices, or between two lists of a
//! pool. A search does not see it, so a request is refused only if none was on its way.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Release};

#[cfg(not(any(loom, shuttle)))]
thread_local! {
    /// How often memory came back by this thread, in any budget.
    static RETURNS_HERE: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}
#[cfg(any(loom, shuttle))]
crate::checker::thread_local! {
    static RETURNS_HERE: std::cell::Cell<u64> = std::cell::Cell::new(0);
}

/// Counts of memory on its way, and of returns. They change on cold paths only.
#[derive(Debug, Default)]
pub(crate) struct Transit {
    /// Blocks, ranges and reservations that a thread has outside of all lists.
    count: AtomicUsize,
    /// How often memory has come back: to a list of free memory, or to the limit.
    returns: AtomicU64,
}

impl Transit {
    /// Returns whether any memory is on its way.
    pub(crate) fn is_any(&self) -> bool {
        self.count.load(Acquire) > 0
    }

    /// Counts `count` pieces of memory that leave a list. Call it under the lock of that list.
    pub(crate) fn begin(&self, count: usize) {
        self.count.fetch_add(count, Release);
    }

    /// Counts `count` pieces of memory that have arrived.
    pub(crate) fn end(&self, count: usize) {
        if count > 0 {
            // First, so that a thread that sees the count at 0 sees the return.
            self.note_return();
            self.count.fetch_sub(count, Release);
        }
    }

    /// Notes that memory came back without a transit.
    pub(crate) fn note_return(&self) {
        self.returns.fetch_add(1, Release);
        RETURNS_HERE.with(|here| here.set(here.get().wrapping_add(1)));
    }

    /// Returns a number that changes when memory comes back by another thread.
    pub(crate) fn returns_of_others(&self) -> u64 {
        RETURNS_HERE.with(|here| self.returns.load(Acquire).wrapping_sub(here.get()))
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
        assert!(!transit.is_any());
    }
}
