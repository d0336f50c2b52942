//! Within the bound: room for bins, leases for batches, and who goes for them.
#![expect(unsafe_code, reason = "blocks are given back to the allocator that they came from")]

use super::cache::{Cache, count};
use super::front::Front;
use super::inner::Inner;
use crate::depot::{Batch, Class, Put, Refused};
use std::alloc::GlobalAlloc;
use std::sync::atomic::Ordering::Relaxed;

/// How often room is made for one batch, before it goes to the inner allocator instead.
const ATTEMPTS: usize = 64;
/// Slow turns of a thread between two sweeps for what stacks have leased and do not use.
const RECLAIM: u32 = 16;

impl Cache {
    /// Lets a bin hold more, if the front's lease allows it or another bin can give up some.
    #[cold]
    pub(super) fn widen(&self, front: &Front, class: Class) {
        let (limit, bytes) = front.next_limit(class);
        let most = self.front_lease.load(Relaxed);
        if bytes == 0 || bytes > most {
            return;
        }
        while front.leased() + bytes > most {
            let Some(other) = front.least_used(class) else { return };
            let half = front.limit(other) / 2;
            let excess = (front.limit(other) - front.room(other)).saturating_sub(half);
            let mut oldest = front.take_oldest(other, excess);
            let moves = oldest.len * other.bytes();
            let mut unused = 0;
            if oldest.len > 0 {
                let Ok(rest) = self.depot.push(other, &mut oldest, moves) else {
                    // They stay, and this bin gets no more.
                    return front.fill(other, &mut oldest);
                };
                unused = rest;
            }
            self.depot.leases.give_back(front.set_limit(other, half) - moves + unused);
        }
        let turn = front.turns.load(Relaxed);
        // At the bound all stacks are asked for what they do not use, but not each time.
        if self.depot.leases.extend(bytes)
            || (turn.is_multiple_of(RECLAIM)
                && self.depot.reclaim_leases() > 0
                && self.depot.leases.extend(bytes))
        {
            front.set_limit(class, limit);
        }
    }

    /// Keeps a block of a program in the depot.
    pub(super) unsafe fn keep_one<A: GlobalAlloc>(
        &self,
        class: Class,
        block: *mut u8,
        inner: &Inner<'_, A>,
    ) {
        let mut put = Put::Refused;
        if !class.is_of_front() && self.may_keep(class.bytes()) {
            put = self.depot.put_above(class, block);
            if put == Put::Refused && self.lease(class.bytes(), inner) {
                if !self.depot.open(class) {
                    self.depot.leases.give_back(class.bytes()); // it is open already
                }
                put = self.depot.put_above(class, block);
            }
        }
        let rest = match put {
            Put::Kept => return,
            Put::Displaced(older) => older,
            Put::Refused => block,
        };
        // SAFETY: as the caller says, of this block or of the one that was kept before.
        unsafe { self.keep(class, Batch::of(rest), inner) };
    }

    /// The newcomer is kept unless it alone is more than half of the bound.
    fn may_keep(&self, bytes: usize) -> bool {
        bytes <= self.depot.leases.limit() / 2
    }

    /// Keeps a batch in the depot and makes room for it; else it goes back.
    pub(super) unsafe fn keep<A: GlobalAlloc>(
        &self,
        class: Class,
        mut batch: Batch,
        inner: &Inner<'_, A>,
    ) {
        if batch.len == 0 {
            return;
        }
        let mut lease = 0;
        while self.may_keep(batch.len * class.bytes()) {
            match self.depot.push(class, &mut batch, lease) {
                Ok(unused) => return self.depot.leases.give_back(unused),
                Err(Refused::Unleased(bytes)) if self.lease(bytes, inner) => lease += bytes,
                Err(_) => break,
            }
        }
        self.depot.leases.give_back(lease);
        count(&self.counts.evicted, batch.len);
        // SAFETY: as the caller says.
        unsafe { release(class, &batch, inner) };
    }

    /// Leases so many bytes, and evicts for that, oldest first.
    fn lease<A: GlobalAlloc>(&self, bytes: usize, inner: &Inner<'_, A>) -> bool {
        for _ in 0..ATTEMPTS {
            if self.depot.leases.extend(bytes) {
                return true;
            }
            if self.depot.reclaim_leases() > 0 {
                continue;
            }
            let Some((class, oldest)) = self.depot.take_oldest(bytes) else { break };
            count(&self.counts.evicted, oldest.len);
            // SAFETY: what the depot holds came here by `free`, with this allocator.
            unsafe { release(class, &oldest, inner) };
        }
        false
    }
}

/// Gives blocks back to the inner allocator. Returns the bytes.
pub(super) unsafe fn release<A: GlobalAlloc>(
    class: Class,
    batch: &Batch,
    inner: &Inner<'_, A>,
) -> usize {
    for block in batch.as_slice() {
        // SAFETY: as the caller says.
        unsafe { inner.free(class, *block) };
    }
    batch.len * class.bytes()
}
