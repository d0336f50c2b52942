//! Searches of the book beyond the own stream: other streams' memory, memory behind an event, and
//! neighbours that coalesce.

use crate::heap::block::request::PoolRequest;
use crate::heap::book::BookRequest;
use crate::heap::book::list::UsedBy;
use crate::heap::book::node::{RangeNode, State};
use crate::heap::store::book::device::Moving;
use crate::heap::store::book::give_back::NODES;
use crate::heap::store::book::{BookState, PoolBook};
use crate::heap::store::{Grant, Store};
use crate::port::{DeviceAllocator, DeviceError, MarkOf, Order, StreamClock};
use crate::stream::{Pending, Requester, StealPolicy};
use crate::sys::LockGuard;

/// Streams that are asked about for one request, unless it would be refused.
const STREAMS: usize = 16;
/// Streams that are queried before the taker's stream waits for one of them.
const QUERIED: usize = 2;

/// How far a search goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// A bounded number of ranges.
    Bounded,
    /// All ranges, before the request is refused.
    All,
}

impl<A: DeviceAllocator> Store<A> {
    /// Serves a request with a range of another stream that is ready as it is.
    #[cold]
    pub(crate) fn take_others_ready(
        &self,
        request: &PoolRequest<'_, A>,
        effort: Effort,
    ) -> Option<Grant<A>> {
        let (requester, book_request) = (self.requester(request), self.book.book_request(request));
        let of = |user: UsedBy| effort == Effort::All || !user.is_own(book_request.stream);
        let ready = |marks: &Pending<MarkOf<A>>| requester.are_ready(marks);
        let (mut state, id) = self.book.take_accepted(&book_request, of, ready, effort)?;
        let lent = state.lend_hit(id, request, requester.clock, self.bounds.statistics)?;
        Some(lent.grant(request))
    }

    /// Serves a request with a range that is not ready, without blocking the host: first one of
    /// which a query finds the work done, then one behind an event that exists, then one behind an
    /// event that is recorded now.
    ///
    /// # Errors
    ///
    /// The device's refusal, if no range could be had.
    #[cold]
    pub(crate) fn take_not_ready(
        &self,
        request: &PoolRequest<'_, A>,
        effort: Effort,
    ) -> Result<Option<Grant<A>>, DeviceError> {
        let requester = self.requester(request);
        let mut refusal = None;
        if !requester.cpu_touches && requester.steal > StealPolicy::Never {
            // Work that waits for the taker's next kernel must not make the taker wait.
            let known = Requester { steal: StealPolicy::Ordered, ..requester };
            match self
                .ask(request, &known, (Effort::Bounded, QUERIED), |mark| known.query_done(mark))
            {
                Ok(None) => {}
                Ok(found) => return Ok(found),
                Err(error) => refusal = Some(error),
            }
        }
        let steps = [StealPolicy::Never, StealPolicy::Ordered, StealPolicy::Wait];
        // Whatever the CPU touches is asked about once: the host waits for no event.
        let last = |step: &StealPolicy| !requester.cpu_touches || *step == requester.steal;
        for steal in steps.into_iter().filter(|step| *step <= requester.steal).filter(last) {
            let step = Requester { steal, ..requester };
            match self.ask(request, &step, (effort, STREAMS), |mark| step.make_ready(mark)) {
                Ok(None) => {}
                Ok(found) => return Ok(found),
                Err(error) => refusal = refusal.or(Some(error)),
            }
        }
        refusal.map_or(Ok(None), Err)
    }

    /// Asks about one range after the other. One that cannot be had is put back, and another is
    /// tried, so a stream that is stuck does not hold up a request that has a choice.
    fn ask(
        &self,
        request: &PoolRequest<'_, A>,
        requester: &Requester<'_, A::Clock>,
        (effort, streams): (Effort, usize),
        make_ready: impl Fn(MarkOf<A>) -> Result<Order, DeviceError>,
    ) -> Result<Option<Grant<A>>, DeviceError> {
        let (mut refused, mut refusal) = (Vec::new(), None);
        while effort == Effort::All || refused.len() < streams {
            let asked = self.take_out(request, requester, &refused, effort);
            let Some(mut asked) = asked else { break };
            let mut behind = None;
            for mark in asked.pieces.iter().flat_map(|piece| piece.after.marks()) {
                match make_ready(*mark) {
                    Ok(Order::Ordered) => {}
                    Ok(Order::NotYet) => behind = Some(*mark),
                    Err(error) => {
                        refusal = refusal.or(Some(error));
                        behind = Some(*mark);
                    }
                }
            }
            if let Some(behind) = behind {
                refused.push(behind);
                continue;
            }
            let mut state = self.book.lock();
            let Some(piece) = asked.take_over().pop() else { break };
            state.book.nodes[piece.id].state = State::Live;
            let lent = state.lend_hit(piece.id, request, requester.clock, self.bounds.statistics);
            return Ok(lent.map(|lent| lent.grant(request)));
        }
        refusal.map_or(Ok(None), Err)
    }

    /// Takes out a range that may be asked about, split to the request. Not one behind a point of a
    /// stream that was refused, nor behind a later one: each stream is asked about once.
    fn take_out<'s>(
        &'s self,
        request: &PoolRequest<'_, A>,
        requester: &Requester<'_, A::Clock>,
        refused: &[MarkOf<A>],
        effort: Effort,
    ) -> Option<Moving<'s, A>> {
        let (clock, book_request) = (requester.clock, self.book.book_request(request));
        let behind = |mark: &MarkOf<A>| refused.iter().any(|old| clock.is_later(*mark, *old));
        let may = |after: &Pending<MarkOf<A>>| {
            let marks = after.marks();
            !marks.iter().any(behind) && marks.iter().all(|mark| requester.may_query(*mark))
        };
        let (mut state, id) = self.book.take_accepted(&book_request, |_| true, may, effort)?;
        state.book.nodes[id].state = State::Moving { hole: false };
        let piece = state.piece(id)?;
        Some(self.moving(vec![piece]))
    }

    /// Moves what thread caches hold into the book, and coalesces neighbours of several streams
    /// that may be waited for. Returns whether that made any range larger.
    #[cold]
    pub(crate) fn coalesce_book(&self, request: &PoolRequest<'_, A>, effort: Effort) -> bool {
        let requester = self.requester(request);
        let mut any = self.collect();
        let can =
            |mark: &MarkOf<A>| requester.may_query(*mark) && requester.clock.is_submitted(*mark);
        let may = |marks: &[MarkOf<A>]| marks.iter().all(can);
        let book_request = self.book.book_request(request);
        if !self.book.lock().book.may_be_apart(&book_request) {
            return any;
        }
        let mut from = match effort {
            Effort::Bounded => self.book.lock().book.cursor,
            Effort::All => 0,
        };
        loop {
            let mut state = self.book.lock();
            let (coalesced, next) = state.book.coalesce_streams(requester.clock, from, NODES, may);
            state.book.cursor = next.unwrap_or(0);
            any |= coalesced;
            match next {
                Some(next) if effort == Effort::All => from = next,
                _ => return any,
            }
        }
    }
}

impl<A: DeviceAllocator> PoolBook<A> {
    /// Makes a free range live whose marks `accept` takes, split to the request: one of a bounded
    /// number in the lists that `of` names, or with all effort one of all ranges, of which a
    /// portion is looked at under the lock at a time. Returns it with the book, which is still
    /// locked.
    fn take_accepted(
        &self,
        book_request: &BookRequest<A::Kind>,
        of: impl Fn(UsedBy) -> bool,
        accept: impl Fn(&Pending<MarkOf<A>>) -> bool,
        effort: Effort,
    ) -> Option<(LockGuard<'_, BookState<A>>, u32)> {
        let accept = |node: &RangeNode<MarkOf<A>>| accept(&node.marks);
        let mut state = self.lock();
        let mut found = state.book.find(book_request, of, accept);
        let mut next = (effort == Effort::All).then_some(0);
        while let (None, Some(from)) = (found, next) {
            drop(state);
            state = self.lock();
            (found, next) = state.book.scan(book_request, from, NODES, accept);
        }
        let id = state.book.take_part(found?, book_request.bytes);
        Some((state, id))
    }
}
