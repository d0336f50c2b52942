//! Free memory of a shard by one interface, whether it is whole blocks or ranges of segments: a search takes
//! some out, and it is lent, or put back. A search asks here alone which of the two a shard has.

use crate::block::PoolRequest;
use crate::block::record::{Record, RecordOwner};
use crate::blocks::Effort;
use crate::port::{DeviceAllocator, MarkOf, StreamClock};
use crate::ranges::list::UsedBy;
use crate::ranges::node::{NodeState, RangeNode};
use crate::shard::{Heap, KeepRules};
use crate::stream::{LastUses, Pending, Requester};

/// Ranges that are looked at in one section under a lock.
pub(crate) const MAX_NODES: u32 = 256;

/// Memory that was free, and is in no list.
pub(crate) enum Taken<A: DeviceAllocator> {
    Block(RecordOwner<A>),
    /// The number of a range.
    Range(u32),
}

/// What free memory is behind.
pub(crate) enum Behind<'b, C: StreamClock> {
    Uses(&'b LastUses<C>),
    Marks(&'b Pending<C::Mark>),
}

impl<C: StreamClock> Behind<'_, C> {
    /// Whether the memory is ready as it is.
    pub(crate) fn is_ready(&self, requester: &Requester<'_, C>) -> bool {
        match self {
            Self::Uses(uses) => uses.is_ready(requester),
            Self::Marks(marks) => requester.are_ready(marks),
        }
    }

    /// Whether `is` holds for all marks that a new owner must be ordered after.
    pub(crate) fn all_are(&self, cpu_touches: bool, is: impl FnMut(C::Mark) -> bool) -> bool {
        match self {
            Self::Uses(uses) => uses.relevant(cpu_touches).all(is),
            Self::Marks(marks) => marks.marks().iter().copied().all(is),
        }
    }
}

/// How a shard is searched for a request.
pub(crate) struct Search<'r, A: DeviceAllocator> {
    pub(crate) request: &'r PoolRequest<'r, A>,
    /// Whether the lists of its own stream are left out, where memory is split: they were searched.
    pub(crate) skips_own: bool,
    pub(crate) effort: Effort,
}

impl<A: DeviceAllocator> Heap<A> {
    /// Serves a request from free memory of its own stream, or of none, that is ready. Counts it as lent.
    pub(crate) fn lend_own(
        &mut self,
        request: &PoolRequest<'_, A>,
        requester: &Requester<'_, A::Clock>,
        statistics: bool,
    ) -> Option<RecordOwner<A>> {
        if !self.splits {
            return self.lend_own_block(request, requester, statistics);
        }
        let wanted = self.ranges.config.request(&request.key, request.class.bytes);
        let mark = requester.clock.mark(request.stream); // before anything is taken: it may panic
        let id = self.ranges.take(&wanted, requester)?.id;
        self.lend(Taken::Range(id), request, mark, statistics)
    }

    /// Takes free memory out that serves a request and of which `may` says so, whatever stream used it last:
    /// among a bounded number of blocks or ranges without `from`, else among the next ranges from this number
    /// on. Returns it, or the number to carry on with, if the search has more to look at.
    pub(crate) fn take_out(
        &mut self,
        search: &Search<'_, A>,
        from: Option<u32>,
        may: impl Fn(Behind<'_, A::Clock>) -> bool,
    ) -> Result<Taken<A>, Option<u32>> {
        let Search { request, skips_own, effort } = *search;
        if !self.splits {
            let ready = |record: &mut Record<A>| may(Behind::Uses(record.marks.get_mut()));
            let (kind, sizes) = (request.key.kind, request.sizes());
            let found = self.blocks.pop_of_any(kind, &sizes, effort, ready);
            return found.map(Taken::Block).ok_or(None);
        }
        let wanted = self.ranges.config.request(&request.key, request.class.bytes);
        let may = |node: &RangeNode<MarkOf<A>>| may(Behind::Marks(&node.marks));
        let of = |user: UsedBy| !skips_own || !user.is_own(wanted.stream);
        let (found, more) = match from {
            None => (self.ranges.find(&wanted, of, may), (effort == Effort::All).then_some(0)),
            Some(from) => self.ranges.scan(&wanted, from, MAX_NODES, may),
        };
        let taken = found.ok_or(more)?;
        self.ranges.take_part(taken, wanted.bytes).map(Taken::Range).ok_or(None)
    }

    /// Lends memory that was taken out, as of `mark`, which its stream has reached. Counts it.
    pub(crate) fn lend(
        &mut self,
        taken: Taken<A>,
        request: &PoolRequest<'_, A>,
        mark: MarkOf<A>,
        statistics: bool,
    ) -> Option<RecordOwner<A>> {
        let record = match taken {
            Taken::Block(record) => {
                self.count_out(record.bytes, request.requested);
                record
            }
            Taken::Range(id) => self.lend_range(id, request, mark)?,
        };
        self.count_hit(request, record.is_clean(), statistics);
        Some(record)
    }

    /// Holds the room of memory that was taken out, which may come back. Returns what it is behind.
    pub(crate) fn hold(&mut self, taken: &mut Taken<A>) -> Pending<MarkOf<A>> {
        match taken {
            Taken::Block(record) => {
                self.blocks.hold_room(record);
                record.marks.get_mut().pending(A::MEMORY.cpu_touches)
            }
            Taken::Range(id) => {
                let node = &mut self.ranges.nodes[*id];
                node.state = NodeState::Out { hole: false };
                node.marks.clone()
            }
        }
    }

    /// As [`Heap::lend`], of memory whose room was held.
    pub(crate) fn lend_held(
        &mut self,
        held: Taken<A>,
        request: &PoolRequest<'_, A>,
        mark: MarkOf<A>,
        statistics: bool,
    ) -> Option<RecordOwner<A>> {
        match &held {
            Taken::Block(record) => self.blocks.leave_room(record),
            Taken::Range(id) => self.ranges.nodes[*id].state = NodeState::Live,
        }
        self.lend(held, request, mark, statistics)
    }

    /// Puts memory back whose room was held: as old as it was. A block does not stay if a limit was
    /// lowered below it meanwhile, or the pool is closed.
    pub(crate) fn put_back(&mut self, held: Taken<A>, clock: &A::Clock, rules: &KeepRules) {
        match held {
            Taken::Block(mut record) => {
                let key = Self::key_of(clock, &mut record);
                let is_above = self.blocks.bytes > self.lease; // with its own bytes, which were held
                if self.closed || is_above || self.is_bucket_full(key, record.bytes, rules) {
                    self.blocks.leave_room(&record);
                    self.evict(record, rules);
                } else {
                    self.blocks.put_back(key, record);
                }
            }
            Taken::Range(id) => {
                let node = &mut self.ranges.nodes[id];
                let (marks, freed_at) = (std::mem::take(&mut node.marks), node.freed_at);
                self.ranges.release(clock, id, marks, freed_at);
                self.ranges.rejoin(clock, id);
            }
        }
    }
}
