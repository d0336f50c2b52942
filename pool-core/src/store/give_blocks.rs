//! Whole blocks go back to the device, one by one: by age, or by size.

use crate::block::record::{Record, RecordOwner};
use crate::limits::{GivenBack, InTransit};
use crate::port::{DeviceAllocator, StreamClock};
use crate::shard::State;
use crate::store::{Goal, Store};
use std::cmp::Reverse;

impl<A: DeviceAllocator> Store<A> {
    /// Gives whole blocks back that were freed before `before`, the oldest first, until at least
    /// `bytes` bytes went. What is behind work that is not submitted stays.
    pub(super) fn give_back_blocks(&self, goal: Goal, before: u64) -> GivenBack {
        let age = |state: &mut State<A>| state.blocks.oldest().map_or(u64::MAX, |old| old.freed_at);
        let take =
            |state: &mut State<A>| state.blocks.take_oldest(before, |record| self.may_go(record));
        self.give_back_by(goal, age, take)
    }

    /// Gives whole blocks back, the largest first, until at least `bytes` bytes went.
    pub(super) fn give_back_largest_blocks(&self, goal: Goal) -> GivenBack {
        let size = |state: &mut State<A>| Reverse(state.blocks.largest());
        let take = |state: &mut State<A>| state.blocks.take_largest(|record| self.may_go(record));
        self.give_back_by(goal, size, take)
    }

    fn may_go(&self, record: &mut Record<A>) -> bool {
        let clock = self.allocator.clock();
        record.marks.get_mut().all_are(|mark| clock.is_submitted(mark))
    }

    /// Gives whole blocks back as `take` takes them out, of the shard that is first by `key`.
    fn give_back_by<K: Ord>(
        &self,
        goal: Goal,
        key: impl Fn(&mut State<A>) -> K,
        take: impl Fn(&mut State<A>) -> Option<RecordOwner<A>>,
    ) -> GivenBack {
        let (mut given_back, mut refusal) = (0, None);
        let mut shards: Vec<usize> = (0..self.shards.count()).collect();
        while given_back < goal.bytes {
            shards.sort_by_cached_key(|at| key(&mut self.shards.lock(*at)));
            let taken = shards.iter().find_map(|at| {
                let state = &mut *self.shards.lock(*at);
                let record = take(state)?;
                state.counts.evictions += u64::from(self.bounds.statistics);
                let in_transit = InTransit::new(self.transit());
                Some((*at, self.remove(state, record), in_transit))
            });
            let Some((at, removed, _in_transit)) = taken else { break };
            let Some(removed) = removed else { continue };
            let (went, refused) = self.free_on_device(at, removed, Some(goal.reason));
            given_back += went;
            refusal = refusal.or(refused);
        }
        (given_back, refusal)
    }
}
