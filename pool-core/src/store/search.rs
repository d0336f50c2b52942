//! The search of a request that its own free list does not serve: memory of other streams and other
//! shards, memory behind an event, and neighbours that coalesce.

use crate::block::record::Record;
use crate::block::request::PoolRequest;
use crate::blocks::Effort;
use crate::observe::{Reason, Stage};
use crate::port::{DeviceAllocator, DeviceError, MarkOf, StreamClock};
use crate::ranges::list::UsedBy;
use crate::ranges::node::RangeNode;
use crate::shard::{Grant, State};
use crate::store::stages::note;
use crate::store::{Goal, Store};
use crate::stream::Pending;

/// The share of its memory that an arena may have free beside its slack while a shard still takes its
/// part from the device.
const PART_FREE: u64 = 4;

/// Nodes that are looked at in one section under a lock.
pub(super) const NODES: u32 = 256;

/// The shards that are searched.
#[derive(Clone, Copy)]
enum Reach {
    All,
    /// The home of a request, and shards that nobody uses.
    Idle,
    Home,
}

/// A grant, and the stage that served it.
pub(super) type Found<A> = Result<Option<(Stage, Grant<A>)>, DeviceError>;

impl<A: DeviceAllocator> Store<A> {
    /// The shards in which a request is searched, from its home on and round. Where memory is cheap to
    /// make, a bounded search leaves shards that are in use alone; for whole blocks see `steal.rs`.
    pub(super) fn shards_for(
        &self,
        request: &PoolRequest<'_, A>,
        effort: Effort,
    ) -> impl Iterator<Item = usize> {
        let (home, count) = (self.home(request), self.shards.count());
        let reach = match () {
            () if !A::MEMORY.is_cheap || effort == Effort::All || count == 1 => Reach::All,
            () if !self.shape.is_arena() => Reach::Home,
            () if self.may_grow_alone(home, request) => Reach::Idle,
            () => Reach::All,
        };
        (0..count).map(move |step| (home + step) % count).filter(move |at| match reach {
            Reach::All => true,
            Reach::Home => *at == home,
            Reach::Idle => *at == home || self.is_idle(*at),
        })
    }

    /// Whether nothing of a shard's ranges is lent, and no thread is in it.
    fn is_idle(&self, at: usize) -> bool {
        self.shards.published(at).used() == 0 && !self.shards.is_locked(at)
    }

    /// The shard that a request begins with.
    pub(super) fn home(&self, request: &PoolRequest<'_, A>) -> usize {
        self.shards.home(&request.key)
    }

    /// Whether a shard of an arena takes memory from the device rather than from shards that are in
    /// use. Where the arena bounds what it has from the device: within the bounds, or while the shard
    /// has less than its part of that. What others have too much goes back then.
    fn may_grow_alone(&self, home: usize, request: &PoolRequest<'_, A>) -> bool {
        let Some(arena) = &self.shape.arena else { return false };
        let bytes = request.class.bytes;
        let Some(page) = self.shape.page_bytes() else {
            return self.may_take_segment(home, arena.segment_bytes(bytes).unwrap_or(bytes));
        };
        let missing = self.shape.bytes_to_grow(bytes);
        let own = self.shards.lock(home).ranges.committed();
        let used = self.used().1;
        let most = arena.committed_limit(used, page, self.split_apart());
        // Beside the slack, which is free when all is used.
        let free = most.saturating_sub(used) + used / PART_FREE;
        self.ledger.reserved().saturating_add(missing) <= most
            || self.takes_its_part(home, (own, missing), most, free)
    }

    /// Whether a shard of an arena takes a segment without a look at the others.
    pub(super) fn may_take_segment(&self, home: usize, segment: u64) -> bool {
        if self.shards.count() == 1 {
            return false;
        }
        let own = || self.shards.lock(home).ranges.committed();
        let most = self.arena_most();
        self.arena_may_buy(segment)
            || self.takes_its_part(home, (own(), segment), most, most / PART_FREE)
    }

    /// Whether free memory may serve a request: not where it goes past a pool without an arena.
    pub(super) fn searches(&self, request: &PoolRequest<'_, A>) -> bool {
        self.shape.is_arena() || request.class.is_cached()
    }

    /// How many shards of an arena are split each by itself and need slack for that. In memory with
    /// streams a part of the slack is for pages that these still use.
    pub(super) fn split_apart(&self) -> usize {
        if A::Clock::HAS_STREAMS { 1 } else { self.shards.count() }
    }

    /// The stages 2 to 4. The request's own free list was searched, unless the effort is `All`.
    pub(super) fn search(&self, request: &PoolRequest<'_, A>, effort: Effort) -> Found<A> {
        if !self.searches(request) {
            return Ok(None);
        }
        if self.shape.uncached {
            // What frees left is the device's; a refusal is counted there.
            let _ = self.give_back(Goal::all(Reason::Bound));
            return Ok(None);
        }
        // A request with a private pool has not searched the memory of all.
        let own_first = request.private.is_some() || effort == Effort::All;
        let mut refused = None;
        for coalesced in [false, true] {
            if coalesced && !self.coalesce(request, effort) {
                break;
            }
            let own = if own_first || coalesced { self.take_own(request) } else { None };
            let found = match own {
                Some(grant) => Some((Stage::Elsewhere, grant)),
                None => note(self.search_streams(request, effort), &mut refused),
            };
            if let Some((stage, grant)) = found {
                return Ok(Some((if coalesced { Stage::Coalesced } else { stage }, grant)));
            }
        }
        refused.map_or(Ok(None), Err)
    }

    /// The stages 2 and 3: memory of other streams and shards, and behind events.
    fn search_streams(&self, request: &PoolRequest<'_, A>, effort: Effort) -> Found<A> {
        let home = self.home(request);
        for at in self.shards_for(request, effort) {
            let own_was_searched = at == home && effort == Effort::Bounded;
            // Without streams and private pools the hit has looked at all of its home, or of the shard that
            // it was in instead; `steal` looks at the home in the end.
            if own_was_searched && self.moves_blocks() && !A::Clock::HAS_STREAMS {
                continue;
            }
            if let Some(grant) = self.take_ready(at, request, own_was_searched, effort) {
                return Ok(Some((Stage::Elsewhere, grant)));
            }
        }
        if self.moves_blocks() {
            if self.shards.count() == 1 || effort == Effort::All {
                self.note_needed(request);
            } else if let Some(record) = self.steal(request) {
                let grant = Grant::new(record, request, self.allocator.clock(), false);
                return Ok(Some((Stage::Elsewhere, grant)));
            }
        }
        let found = self.take_not_ready(request, effort)?;
        Ok(found.map(|grant| (Stage::BehindEvent, grant)))
    }

    /// Serves a request with memory of a shard that is ready as it is.
    #[cold]
    fn take_ready(
        &self,
        at: usize,
        request: &PoolRequest<'_, A>,
        own_was_searched: bool,
        effort: Effort,
    ) -> Option<Grant<A>> {
        let (requester, statistics) = (self.requester(request), self.bounds.statistics);
        let taken = if self.shape.is_arena() {
            let of = |user: UsedBy| !own_was_searched || !user.is_own(request.key.stream_id);
            let ready = |after: &Pending<MarkOf<A>>| requester.are_ready(after);
            let mark = requester.clock.mark(request.stream);
            self.take_range(at, request, of, ready, effort, |state, id| {
                let lent = state.lend_free_range(id, request, mark, statistics);
                state.publish_used(self.shards.published(at));
                lent
            })
        } else {
            let ready = |record: &mut Record<A>| record.marks.get_mut().is_ready(&requester);
            let state = &mut *self.shards.lock(at);
            let sizes = request.sizes();
            let record = state.blocks.take_of_any(request.key.kind, &sizes, effort, ready)?;
            Some(state.lend_block(record, request, statistics))
        }?;
        Some(Grant::new(taken, request, requester.clock, false))
    }

    /// Makes a free range live whose marks `accept` takes, split to the request, and does `work` with
    /// it under the lock: one of a bounded number in the lists that `of` names, or with all effort
    /// one of all ranges, of which a portion is looked at under the lock at a time.
    pub(super) fn take_range<R>(
        &self,
        at: usize,
        request: &PoolRequest<'_, A>,
        of: impl Fn(UsedBy) -> bool,
        accept: impl Fn(&Pending<MarkOf<A>>) -> bool,
        effort: Effort,
        work: impl FnOnce(&mut State<A>, u32) -> Option<R>,
    ) -> Option<R> {
        let accept = |node: &RangeNode<MarkOf<A>>| accept(&node.marks);
        let wanted = self.shape.range_request(request);
        let mut next = (effort == Effort::All).then_some(0);
        {
            let state = &mut *self.shards.lock(at);
            if let Some(id) = state.ranges.find(&wanted, of, accept) {
                let id = state.ranges.take_part(id, wanted.bytes)?;
                return work(state, id);
            }
        }
        while let Some(from) = next {
            let state = &mut *self.shards.lock(at);
            let (found, more) = state.ranges.scan(&wanted, from, NODES, accept);
            if let Some(id) = found {
                let id = state.ranges.take_part(id, wanted.bytes)?;
                return work(state, id);
            }
            next = more;
        }
        None
    }

    /// Coalesces neighbours of several streams that may be waited for. Returns whether that made any
    /// range larger.
    fn coalesce(&self, request: &PoolRequest<'_, A>, effort: Effort) -> bool {
        let mut any = false;
        if self.shape.is_arena() {
            for at in self.shards_for(request, effort) {
                any |= self.coalesce_in(at, request, effort);
            }
        }
        any
    }

    #[cold]
    fn coalesce_in(&self, at: usize, request: &PoolRequest<'_, A>, effort: Effort) -> bool {
        let (requester, mut any) = (self.requester(request), false);
        // What a capture takes behind no wait, no wait makes whole either.
        let needs_done = !requester.clock.takes_work(request.stream);
        let can = |mark: &MarkOf<A>| {
            let is_done = || requester.is_ready(*mark) || requester.clock.is_seen_done(*mark);
            requester.may_query(*mark)
                && requester.clock.is_submitted(*mark)
                && (!needs_done || is_done())
        };
        let may = |marks: &[MarkOf<A>]| marks.iter().all(can);
        let wanted = self.shape.range_request(request);
        let mut from = {
            let state = &mut *self.shards.lock(at);
            if !state.ranges.may_be_apart(&wanted) {
                return false;
            }
            if effort == Effort::Bounded { state.ranges.cursor } else { 0 }
        };
        loop {
            let state = &mut *self.shards.lock(at);
            let (coalesced, next) =
                state.ranges.coalesce_streams(requester.clock, from, NODES, may);
            state.ranges.cursor = next.unwrap_or(0);
            any |= coalesced;
            match next {
                Some(next) if effort == Effort::All => from = next,
                _ => return any,
            }
        }
    }
}
