//! Another stream's free range, or one of which only the device knows whether it is done: taken
//! out, asked about without the lock, and handed out or put back.

use super::lane::Lane;
use super::space::{ArenaRequest, Lent, Space};
use super::{Arena, ArenaBlock};
use crate::clock::{Order, StreamClock};
use crate::device::{DeviceAllocator, MarkOf};
use crate::error::DeviceError;
use crate::order::{StealPolicy, Taker};

impl<A: DeviceAllocator> Arena<A> {
    /// Serves a request from a range that is not ready, without blocking the host. First where an
    /// event exists, then by recording one; then neighbours of different streams become one.
    #[cold]
    pub(super) fn steal(
        &self,
        want: &ArenaRequest<A::Kind>,
        taker: &Taker<'_, A::Clock>,
    ) -> Result<Option<ArenaBlock<A>>, DeviceError> {
        let may_help = |space: &Space<A>| space.has_other_lanes(want.lane) || space.apart;
        if !taker.cpu_touches && !may_help(&self.space.lock()) {
            return Ok(None);
        }
        let mut refusal = None;
        let steps = [StealPolicy::Never, StealPolicy::Ordered, StealPolicy::Wait];
        for steal in steps.into_iter().filter(|step| *step <= taker.steal) {
            let taker = Taker { steal, ..*taker };
            match self.ask(want, &taker) {
                Ok(None) => {}
                Ok(found) => return Ok(found),
                Err(error) => refusal = refusal.or(Some(error)),
            }
        }
        let can = |mark: &MarkOf<A>| taker.may_ask(*mark) && taker.clock.is_submitted(*mark);
        let may = |marks: &[MarkOf<A>]| marks.iter().all(can);
        if self.space.lock().join_lanes(self.upstream.clock(), may) {
            match self.ask(want, taker) {
                Ok(None) => {}
                found => return found,
            }
        }
        refusal.map_or(Ok(None), Err)
    }

    /// Asks about one range after the other. One that cannot be had is put back, and another is
    /// tried, so a stream that is stuck holds up nobody who has a choice.
    fn ask(
        &self,
        want: &ArenaRequest<A::Kind>,
        taker: &Taker<'_, A::Clock>,
    ) -> Result<Option<ArenaBlock<A>>, DeviceError> {
        let (mut refused, mut refusal) = (Vec::new(), None);
        while let Some(lent) = self.lend(want, taker, &refused) {
            let mut behind = None;
            for mark in lent.after.marks() {
                match taker.make_ready(*mark) {
                    Ok(Order::Ordered) => {}
                    Ok(Order::NotYet) => behind = Some(*mark),
                    Err(error) => {
                        refusal = refusal.or(Some(error));
                        behind = Some(*mark);
                    }
                }
            }
            let Some(behind) = behind else { return Ok(Some(self.keep_part(lent, want))) };
            refused.push(behind);
            self.put_back(lent);
        }
        refusal.map_or(Ok(None), Err)
    }

    /// Takes out, whole, a range that may be asked for. Not one behind a point of a stream that was
    /// refused, nor behind a later one: each stream is asked about once.
    fn lend(
        &self,
        want: &ArenaRequest<A::Kind>,
        taker: &Taker<'_, A::Clock>,
        refused: &[MarkOf<A>],
    ) -> Option<Lent<A>> {
        let mut space = self.space.lock();
        let clock = taker.clock;
        let behind = |mark: &MarkOf<A>| {
            let later = |old: &MarkOf<A>| clock.is_later(*mark, *old);
            refused.iter().any(later)
        };
        let fits = |id: u32| !space.marks(id).iter().any(behind) && space.may_ask(id, taker);
        let any = |_: Lane| true;
        let id = space.best_of(want, any, fits, usize::MAX)?;
        let whole = space.ranges.bytes(id);
        space.take(id, whole)
    }

    /// Keeps what a request wants of a range that was lent whole, and puts the rest back.
    fn keep_part(&self, mut lent: Lent<A>, want: &ArenaRequest<A::Kind>) -> ArenaBlock<A> {
        let mut space = self.space.lock();
        let whole = lent.bytes.end - lent.bytes.start;
        if whole > want.bytes && space.config.splits(whole, want.bytes) {
            let rest = space.ranges.cut(lent.ticket.id, want.bytes);
            let (ticket, since) = (space.ranges.ticket(rest), space.turn);
            space.give(self.upstream.clock(), ticket, lent.after.clone(), since);
            lent.bytes.end = lent.bytes.start + want.bytes;
        }
        space.count_out(lent.bytes.end - lent.bytes.start, want.requested);
        drop(space);
        self.block(lent, want)
    }

    /// Puts a range back as it was.
    pub(super) fn put_back(&self, lent: Lent<A>) {
        let Lent { block, ticket, after, since, .. } = lent;
        drop(block);
        self.space.lock().give(self.upstream.clock(), ticket, after, since);
    }
}
