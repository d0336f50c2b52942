//! Explicit operations on the cache, which also run when memory is short: fill, trim and clear it.

use crate::blocks::Effort;
use crate::limits::GivenBack;
use crate::observe::Reason;
use crate::port::{Allocating, DeviceAllocator};
use crate::store::{Goal, Store};
use std::time::Duration;

impl<A: DeviceAllocator> Store<A> {
    /// Does the frees that drops deferred, and gives back cached memory above the cached limit.
    pub(crate) fn free_deferred_and_excess(&self) -> GivenBack {
        and(self.free_deferred(), || self.give_back_to_limit(None))
    }

    /// As [`Store::free_deferred_and_excess`], for a request that needs the device. Where drops free
    /// at once, the other shards have nothing of this as a rule, and their locks are left alone. Where
    /// a free would wait for work, only what is done goes while the device may have memory.
    pub(super) fn free_before_growing(&self, home: usize, effort: Effort) -> GivenBack {
        if A::MEMORY.free_in_drop && !self.shape.is_arena() && effort == Effort::Bounded {
            return self.free_deferred_of(home, true);
        }
        if A::MEMORY.allocating == Allocating::AtOnce && effort == Effort::Bounded {
            return and(self.free_deferred_done(home), || self.give_back_to_limit(Some(home)));
        }
        self.free_deferred_and_excess()
    }

    /// Does the frees that drops deferred, and gives back free memory, oldest first, until it has
    /// given back the bytes of `goal`.
    pub(crate) fn trim(&self, goal: Goal) -> GivenBack {
        let freed = self.free_deferred_and_excess();
        let bytes = goal.bytes.saturating_sub(freed.0);
        and(freed, || self.give_back(Goal { bytes, ..goal }))
    }

    /// Gives back memory that has been free for too long at `now`, does the frees that drops
    /// deferred, and gives back cached memory above the cached limit.
    pub(crate) fn tick(&self, now: Duration) -> GivenBack {
        and(self.give_back_by_age(now), || self.free_deferred_and_excess())
    }

    /// Does the frees that drops deferred, gives back cached memory above the cached limit, and
    /// then free memory, largest first, until at most `target` bytes are reserved or none is free.
    pub(crate) fn shrink_to(&self, target: u64) -> GivenBack {
        let bytes = self.ledger.reserved().saturating_sub(target);
        let freed = self.free_deferred_and_excess();
        let (bytes, reason) = (bytes.saturating_sub(freed.0), Reason::Asked);
        and(freed, || self.give_back_largest(Goal { bytes, reason }))
    }

    /// Gives back all free memory, after waiting for the work that used it. Memory that waits for
    /// work that is not submitted stays in the pool.
    pub(crate) fn clear(&self) -> GivenBack {
        // A free waits for the marks where the device does not do so itself.
        and(self.free_deferred(), || self.give_back(Goal::all(Reason::Asked)))
    }
}

/// Runs a second step and returns the bytes that both steps gave back, and the first refusal.
fn and((bytes, refusal): GivenBack, then: impl FnOnce() -> GivenBack) -> GivenBack {
    let (more, refused) = then();
    (bytes + more, refusal.or(refused))
}
