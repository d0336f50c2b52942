//! What goes back without being pushed out: with time, while a small program grows, by hand, and
//! when a thread ends.
#![expect(unsafe_code, reason = "blocks are given back to the allocator that they came from")]

use super::bound::release;
use super::cache::{Cache, count};
use super::front::Front;
use super::inner::Inner;
use crate::depot::{Class, FRONT_CLASSES, MAGAZINE};
use crate::system;
use std::alloc::GlobalAlloc;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// Slow turns of a thread between two looks at the time.
const TURNS: u32 = 64;
/// A program that grew by less has not grown.
const GROWN_LEAST: usize = 64 << 10;
/// Up to here little is idle. (With the rule 1.4 times the live peak is resident on a compiler's
/// run instead of 1.6; without this bound two of the loads in `cache/tests/loads.rs` hit 86 and 66
/// % instead of 96 and 68.)
const LITTLE: usize = 16 << 20;

impl Cache {
    /// Each thread looks at the time once in a while: when a class is due, and each so many slow
    /// turns.
    pub(super) fn turn<A: GlobalAlloc>(
        &self,
        front: Option<&Front>,
        due: bool,
        inner: &Inner<'_, A>,
    ) {
        let Some(front) = front else { return };
        let turns = front.turns.load(Relaxed).wrapping_add(1);
        front.turns.store(turns, Relaxed);
        if due || turns % TURNS == 0 {
            self.decay(system::coarse_milliseconds(), inner);
        }
    }

    /// The program grows by so many bytes. When it has grown by as much as is idle, most of what
    /// nobody needed meanwhile goes back, so that the inner allocator can make of it what grows:
    /// one size's blocks are of no use to another here. Where much is idle, sizes come back in
    /// longer cycles, and only the bound and time take them.
    pub(super) fn make_way<A: GlobalAlloc>(&self, bytes: usize, inner: &Inner<'_, A>) {
        let grown = self.grown.fetch_add(bytes, Relaxed) + bytes;
        if grown < self.depot.leases.leased().max(GROWN_LEAST) {
            return;
        }
        // What is leased and not used is not idle.
        self.depot.reclaim_leases();
        let idle = self.depot.leases.leased();
        if grown >= idle {
            self.grown.store(0, Relaxed);
            if idle <= LITTLE {
                self.decay_by(2, inner);
            }
        }
    }

    /// So many steps of the decay. Returns the bytes that went back.
    fn decay_by<A: GlobalAlloc>(&self, steps: u32, inner: &Inner<'_, A>) -> usize {
        let mut bytes = 0;
        self.depot.decay(steps, |class, batch| {
            count(&self.counts.decayed, batch.len);
            // SAFETY: what the depot holds came here by `free`, with this allocator.
            bytes += unsafe { release(class, &batch, inner) };
        });
        bytes
    }

    /// Gives back what nobody needed for so long. Returns the bytes.
    pub(crate) fn decay<A: GlobalAlloc>(&self, now: u64, inner: &Inner<'_, A>) -> usize {
        let (every, last) = (self.decay_every.load(Relaxed), self.decayed_at.load(Relaxed));
        let turns = now.saturating_sub(last).checked_div(every).unwrap_or(0);
        let next = last + turns * every;
        // One thread does it.
        if turns == 0 || self.decayed_at.compare_exchange(last, next, Relaxed, Relaxed).is_err() {
            return 0;
        }
        self.decay_by(u32::try_from(turns).unwrap_or(u32::MAX), inner)
    }

    /// Gives back idle blocks of the depot, oldest first, until at least `bytes` went or none is
    /// left. Returns the bytes.
    pub(crate) fn trim<A: GlobalAlloc>(&self, bytes: usize, inner: &Inner<'_, A>) -> usize {
        // What others bring meanwhile is not for this call, or it might never end.
        let bytes = bytes.min(self.depot.all_bytes());
        let mut went = 0;
        while went < bytes
            && let Some((class, oldest)) = self.depot.take_oldest(bytes - went)
        {
            // SAFETY: what the depot holds came here by `free`, with this allocator.
            went += unsafe { release(class, &oldest, inner) };
        }
        went
    }

    /// Gives back all that is idle in this front and in the depot. Returns the bytes.
    pub(crate) fn clear<A: GlobalAlloc>(
        &self,
        front: Option<&Front>,
        inner: &Inner<'_, A>,
    ) -> usize {
        let mut went = 0;
        for class in (0..FRONT_CLASSES).map(Class::numbered) {
            let Some(front) = front else { break };
            while let batch = front.take_oldest(class, MAGAZINE)
                && batch.len > 0
            {
                let fewer = front.limit(class).saturating_sub(batch.len);
                self.depot.leases.give_back(front.set_limit(class, fewer));
                // SAFETY: what fronts hold came here by `free`, with this allocator.
                went += unsafe { release(class, &batch, inner) };
            }
            self.depot.leases.give_back(front.set_limit(class, 0));
        }
        went + self.trim(usize::MAX, inner)
    }

    /// A thread ends: what its front holds goes to the depot, with the lease for it. What the depot
    /// cannot take stays in the front, for the thread that has it next.
    pub(crate) fn leave(&self, front: &Front) {
        for class in (0..FRONT_CLASSES).map(Class::numbered) {
            while let mut batch = front.take_oldest(class, MAGAZINE)
                && batch.len > 0
            {
                let len = batch.len;
                let pushed = self.depot.push(class, &mut batch, len * class.bytes());
                let Ok(unused) = pushed else {
                    front.fill(class, &mut batch);
                    break;
                };
                // The lease for them went along, as far as it was needed.
                self.depot.leases.give_back(unused);
                front.set_limit(class, front.limit(class) - len);
            }
            if front.counted(class).blocks == 0 {
                self.depot.leases.give_back(front.set_limit(class, 0));
            }
        }
        // Release, for whoever has it next.
        front.in_use.store(false, Release);
    }
}
