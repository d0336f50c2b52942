//! Memory that is not ready: the device is asked about one block or range after the other, which is
//! in no list meanwhile.

use crate::block::record::{Record, RecordOwner};
use crate::block::request::PoolRequest;
use crate::blocks::Effort;
use crate::limits::InTransit;
use crate::port::{DeviceAllocator, DeviceError, MarkOf, Order, StreamClock};
use crate::ranges::node::NodeState;
use crate::shard::{Grant, State};
use crate::store::Store;
use crate::store::moving::Moving;
use crate::stream::{Pending, Requester, StealPolicy};

/// Streams that are asked about for one request, unless it would be refused.
const STREAMS: usize = 16;
/// Streams that are queried before the taker's stream waits for one of them.
const QUERIED: usize = 2;

/// What the device is asked about. It goes back into its list when it is dropped.
enum Asked<'s, A: DeviceAllocator> {
    Block(AskedBlock<'s, A>),
    Range(Moving<'s, A>),
}

struct AskedBlock<'s, A: DeviceAllocator> {
    store: &'s Store<A>,
    at: usize,
    record: Option<RecordOwner<A>>,
    _in_transit: InTransit<'s>,
}

impl<A: DeviceAllocator> Drop for AskedBlock<'_, A> {
    fn drop(&mut self) {
        if let Some(mut record) = self.record.take() {
            let key = State::key_of(self.store.allocator.clock(), &mut record);
            let mut state = self.store.shards.lock(self.at);
            state.put_back(key, record, &self.store.bounds.keeping);
        }
    }
}

impl<A: DeviceAllocator> Asked<'_, A> {
    fn after(&mut self) -> Vec<MarkOf<A>> {
        match self {
            Self::Block(AskedBlock { record, .. }) => {
                invariant!(record.is_some(), "a block is asked about before it is lent");
                let record = record.as_mut().map(|record| record.marks.get_mut());
                let after = record.map(|marks| marks.pending(A::MEMORY.cpu_touches));
                after.unwrap_or_default().marks().to_vec()
            }
            Self::Range(moving) => {
                moving.pieces.iter().flat_map(|piece| piece.after.marks()).copied().collect()
            }
        }
    }
}

impl<A: DeviceAllocator> Store<A> {
    /// Serves a request with memory that is not ready, without blocking the host: first what a query
    /// finds done, then what is behind an event that exists, then behind one that is recorded now. Once
    /// memory is short, also with what only a wait of the host makes ready.
    ///
    /// # Errors
    ///
    /// The device's refusal, if nothing could be had.
    #[cold]
    pub(super) fn take_not_ready(
        &self,
        request: &PoolRequest<'_, A>,
        effort: Effort,
    ) -> Result<Option<Grant<A>>, DeviceError> {
        let requester = self.requester(request);
        let mut refusal = None;
        if !requester.must_be_done() && requester.steal > StealPolicy::Never {
            // Work that waits for the taker's next kernel must not make the taker wait.
            let known = Requester { steal: StealPolicy::Ordered, ..requester };
            let query = |mark| known.query_done(mark);
            match self.ask(request, &known, (Effort::Bounded, QUERIED), query) {
                Ok(None) => {}
                Ok(found) => return Ok(found),
                Err(error) => refusal = Some(error),
            }
        }
        let steps = [StealPolicy::Never, StealPolicy::Ordered, StealPolicy::Wait];
        // What must be done is asked about once: nothing waits for an event.
        let last = |step: &StealPolicy| !requester.must_be_done() || *step == requester.steal;
        for steal in steps.into_iter().filter(|step| *step <= requester.steal).filter(last) {
            let step = Requester { steal, ..requester };
            match self.ask(request, &step, (effort, STREAMS), |mark| step.make_ready(mark)) {
                Ok(None) => {}
                Ok(found) => return Ok(found),
                Err(error) => refusal = refusal.or(Some(error)),
            }
        }
        if effort == Effort::All && requester.steal == StealPolicy::Wait {
            let last = Requester { host_waits: true, ..requester };
            match self.ask(request, &last, (effort, STREAMS), |mark| last.make_ready(mark)) {
                Ok(None) => {}
                Ok(found) => return Ok(found),
                Err(error) => refusal = refusal.or(Some(error)),
            }
        }
        // Beside a capture some streams refuse to be asked, which says nothing of the device.
        let refusal = refusal.filter(|_| requester.cpu_touches || !requester.must_be_done());
        refusal.map_or(Ok(None), Err)
    }

    /// Asks about one block or range after the other, of all shards. One that cannot be had is put
    /// back, and another is tried, so a stream that is stuck does not hold up a request that has a
    /// choice.
    fn ask(
        &self,
        request: &PoolRequest<'_, A>,
        requester: &Requester<'_, A::Clock>,
        (effort, streams): (Effort, usize),
        make_ready: impl Fn(MarkOf<A>) -> Result<Order, DeviceError>,
    ) -> Result<Option<Grant<A>>, DeviceError> {
        let (mut refused, mut refusal) = (Vec::new(), None);
        for at in self.shards_for(request, effort) {
            while effort == Effort::All || refused.len() < streams {
                let asked = self.take_out(at, request, requester, &refused, effort);
                let Some(mut asked) = asked else { break };
                let mut behind = None;
                for mark in asked.after() {
                    let order = make_ready(mark);
                    behind = behind.or((order != Ok(Order::Ordered)).then_some(mark));
                    refusal = refusal.or(order.err());
                }
                if let Some(behind) = behind {
                    refused.push(behind);
                    continue;
                }
                return Ok(self.lend_asked(at, request, requester, asked));
            }
        }
        refusal.map_or(Ok(None), Err)
    }

    /// Takes out a block or a range that may be asked about. Not one behind a point of a stream that
    /// was refused, nor behind a later one: each stream is asked about once.
    fn take_out<'s>(
        &'s self,
        at: usize,
        request: &PoolRequest<'_, A>,
        requester: &Requester<'_, A::Clock>,
        refused: &[MarkOf<A>],
        effort: Effort,
    ) -> Option<Asked<'s, A>> {
        let clock = requester.clock;
        let behind = |mark: &MarkOf<A>| refused.iter().any(|old| clock.is_later(*mark, *old));
        let may = |after: &Pending<MarkOf<A>>| {
            let marks = after.marks();
            !marks.iter().any(behind) && marks.iter().all(|mark| requester.may_query(*mark))
        };
        if self.shape.is_arena() {
            let moving = self.take_range(
                at,
                request,
                |_| true,
                may,
                effort,
                |state, id| {
                    state.ranges.nodes[id].state = NodeState::Moving { hole: false };
                    Some(self.moving(at, vec![state.piece(id)?]))
                },
            )?;
            return Some(Asked::Range(moving));
        }
        let may =
            |record: &mut Record<A>| may(&record.marks.get_mut().pending(A::MEMORY.cpu_touches));
        let state = &mut *self.shards.lock(at);
        let sizes = request.sizes();
        let record = state.blocks.take_of_any(request.key.kind, &sizes, effort, may)?;
        state.blocks.hold_room(&record);
        let transit = InTransit::new(self.transit());
        Some(Asked::Block(AskedBlock {
            store: self,
            at,
            record: Some(record),
            _in_transit: transit,
        }))
    }

    /// Lends what the device has made ready.
    fn lend_asked(
        &self,
        at: usize,
        request: &PoolRequest<'_, A>,
        requester: &Requester<'_, A::Clock>,
        mut asked: Asked<'_, A>,
    ) -> Option<Grant<A>> {
        let statistics = self.bounds.statistics;
        let mark = requester.clock.mark(request.stream);
        let taken = {
            let state = &mut *self.shards.lock(at);
            match &mut asked {
                Asked::Block(block) => {
                    let record = block.record.take()?;
                    state.blocks.leave_room(&record);
                    Some(state.lend_block(record, request, statistics))
                }
                Asked::Range(moving) => {
                    let id = moving.take_over().pop()?.id;
                    state.ranges.nodes[id].state = NodeState::Live;
                    let lent = state.lend_free_range(id, request, mark, statistics);
                    state.publish_used(self.shards.published(at));
                    lent
                }
            }
        };
        taken.map(|record| Grant::new(record, request, requester.clock, false))
    }
}
