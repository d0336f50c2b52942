//! How many nodes a call looks at: a count for tests.

use crate::port::StreamClock;
use crate::ranges::Ranges;
use std::cell::Cell;

/// Looks at nodes since the lock was taken, and the most that there were under it at once.
#[derive(Debug, Default)]
pub(crate) struct Visits {
    now: Cell<usize>,
    most: Cell<usize>,
}

impl Visits {
    #[inline]
    pub(super) fn count(&self) {
        self.now.set(self.now.get() + 1);
    }

    /// Counts from 0 on: the lock was taken.
    pub(crate) fn start(&self) {
        self.most.set(self.most.get().max(self.now.take()));
    }

    /// The most looks between two starts, which are forgotten.
    pub(crate) fn take_most(&self) -> usize {
        self.start();
        self.most.take()
    }
}

impl<C: StreamClock, K> Ranges<C, K> {
    /// The lock was taken.
    pub(crate) fn start_visits(&self) {
        self.nodes.visits.start();
    }

    /// The most nodes that were looked at under the lock at once, which are forgotten.
    pub(crate) fn most_visits(&self) -> usize {
        self.nodes.visits.take_most()
    }
}
