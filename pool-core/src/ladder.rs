//! The stages of an allocation, from a hit to out of memory. Each stage finds or frees something
//! and then searches again.
//!
//! 1. the free lists of the thread's shard, or of the book with an arena ([`Store::allocate`]: the
//!    hit);
//! 2. blocks of other shards and streams that are ready;
//! 3. a block behind an event, by one wait on the device;
//! 4. with an arena, neighbours that coalesce, and then 1 to 3 again;
//! 5. the device, after the deferred frees;
//! 6. cached memory given back, oldest first, as many bytes as are missing, and 1 to 5 again; then
//!    all of it, again and again while another thread has memory between pool and device;
//! 7. the program ([`PoolBuilder::on_shortage`](crate::PoolBuilder::on_shortage)), and 1 to 5
//!    again;
//! 8. an error that says why.

use crate::book::find::Effort;
use crate::device::DeviceAllocator;
use crate::error::{AllocError, DeviceError};
use crate::request::Want;
use crate::stats::Rungs;
use crate::store::{Grant, PoolBook, Store};
use std::thread;

/// How often a request that is about to be refused waits for blocks in other threads' hands.
const PATIENCE: u32 = 1000;
/// How often the program is asked to spare something for one request.
const ASKED: u32 = 8;

/// A rung: which counter of those served counts it.
type Rung = fn(&mut Rungs) -> &mut u64;

/// How far a request has climbed.
struct Climb {
    given_back: u64,
    patience: u32,
    asked: u32,
    /// What gave the memory that is looked for now.
    rung: Rung,
    /// How far a book is searched.
    effort: Effort,
}

impl<A: DeviceAllocator> Store<A> {
    /// Serves a request.
    #[inline]
    pub(crate) fn allocate(&self, want: &Want<'_, A>) -> Result<Grant<A>, AllocError> {
        let hit = match &self.book {
            _ if want.private.is_some() => None,
            Some(book) => self.take_from_book(book, want),
            None if want.class.pooled() => self.take(want),
            None => None,
        };
        hit.map_or_else(|| self.climb(want), Ok)
    }

    #[cold]
    fn climb(&self, want: &Want<'_, A>) -> Result<Grant<A>, AllocError> {
        let (rung, given_back): (Rung, u64) = (|rungs| &mut rungs.device, 0);
        let mut climb =
            Climb { given_back, patience: PATIENCE, asked: ASKED, rung, effort: Effort::Bounded };
        let mut short = match self.search_then_device(want, &mut climb) {
            Ok(grant) => return Ok(grant),
            Err(error) => error,
        };
        let trimmed: Rung = |rungs| &mut rungs.trimmed;
        let cleared: Rung = |rungs| &mut rungs.cleared;
        let mut rungs = [(self.missing(want), trimmed), (u64::MAX, cleared)].into_iter();
        while short.is_want_of_memory() {
            match rungs.next() {
                Some((bytes, rung)) => {
                    climb.rung = rung;
                    climb.given_back += self.trim(bytes).0;
                }
                None if self.wait_for_others(&mut climb) || self.ask_program(want, &mut climb) => {
                    climb.given_back += self.trim(u64::MAX).0;
                }
                None => break,
            }
            if let Some(book) = &self.book {
                book.lock().note_retry();
            }
            climb.effort = Effort::All;
            short = match self.search_then_device(want, &mut climb) {
                Ok(grant) => return Ok(grant),
                Err(error) => error,
            };
        }
        if let Some(book) = &self.book {
            book.lock().note_refusal();
        }
        Err(self.refuse(short, want, climb.given_back))
    }

    /// The rungs from 2 to 4. What an event refuses is told only if the device refuses too.
    fn search_then_device(
        &self,
        want: &Want<'_, A>,
        climb: &mut Climb,
    ) -> Result<Grant<A>, DeviceError> {
        let mut refused = None;
        // What an event refuses is told only if the device refuses too.
        if let Some(id) = want.private {
            if let Some(grant) = self.take_private(want, id) {
                return Ok(self.served(|rungs| &mut rungs.private, grant));
            }
        } else if self.book.is_none() && want.class.pooled() {
            if let Some(grant) = self.take_elsewhere(want) {
                return Ok(self.served(|rungs| &mut rungs.elsewhere, grant));
            }
            if let Some(grant) = note(self.take_behind_event(want), &mut refused) {
                return Ok(self.served(|rungs| &mut rungs.behind_event, grant));
            }
        }
        if let Some(book) = &self.book
            && let Some((rung, grant)) =
                note(self.search_book(book, want, climb.effort), &mut refused)
        {
            self.count_out_of_private(want);
            return Ok(self.served(rung, grant));
        }
        climb.given_back += self.settle().0;
        let fresh = match &self.book {
            Some(book) => self.grow(book, want).inspect(|_| self.count_out_of_private(want)),
            None => self.fresh(want),
        };
        let fresh = fresh.map_err(|error| refused.unwrap_or(error))?;
        Ok(self.served(climb.rung, fresh))
    }

    /// The stages from 1 to 4 over a book.
    fn search_book(
        &self,
        book: &PoolBook<A>,
        want: &Want<'_, A>,
        effort: Effort,
    ) -> Result<Option<(Rung, Grant<A>)>, DeviceError> {
        if book.is_uncached() {
            // What frees left is the device's; a refusal is counted there.
            let _ = self.trim_book(book, u64::MAX);
            return Ok(None);
        }
        let mut refused = None;
        let mut found = None;
        for coalesced in [false, true] {
            if coalesced && !self.coalesce_book(book, want, effort) {
                break;
            }
            let ready = self.take_from_book(book, want);
            if let Some(grant) = ready {
                found = Some(((|rungs| &mut rungs.elsewhere) as Rung, grant));
            } else if let Some(grant) = self.take_others_ready(book, want, effort) {
                found = Some(((|rungs| &mut rungs.elsewhere) as Rung, grant));
            } else if let Some(grant) = note(self.take_not_ready(book, want, effort), &mut refused)
            {
                found = Some(((|rungs| &mut rungs.behind_event) as Rung, grant));
            }
            let coalesced_rung: Rung = |rungs| &mut rungs.coalesced;
            if let Some((rung, grant)) = found {
                return Ok(Some((if coalesced { coalesced_rung } else { rung }, grant)));
            }
        }
        refused.map_or(Ok(None), Err)
    }

    /// Counts a block of the book that a private pool has from now on.
    fn count_out_of_private(&self, want: &Want<'_, A>) {
        if let Some(id) = want.private {
            self.privates.count_out(id);
        }
    }

    fn served(&self, rung: Rung, grant: Grant<A>) -> Grant<A> {
        if self.bounds.statistics {
            *rung(&mut self.shards.own().counts.served_by) += 1;
        }
        grant
    }

    /// Another thread holds blocks that come back, to a shard or to the device, in a moment: lets
    /// it, and then everything idle is worth giving back once more.
    fn wait_for_others(&self, climb: &mut Climb) -> bool {
        if climb.patience == 0 || !self.is_in_transit() {
            return false;
        }
        climb.patience -= 1;
        thread::yield_now();
        true
    }

    /// Asks the program to drop something.
    fn ask_program(&self, want: &Want<'_, A>, climb: &mut Climb) -> bool {
        let Some(call) = self.on_shortage.lock().clone() else { return false };
        if climb.asked == 0 {
            return false;
        }
        climb.asked -= 1;
        climb.rung = |rungs| &mut rungs.spared;
        call(want.class.bytes)
    }

    /// What must go back before the request fits under the limit; as much as it wants if the
    /// device, not the limit, is short.
    fn missing(&self, want: &Want<'_, A>) -> u64 {
        let needed = self.ledger.reserved().saturating_add(want.class.bytes);
        match needed.saturating_sub(self.ledger.limit()) {
            0 => want.class.bytes,
            over => over,
        }
    }

    /// The error of a request that climbed to the end, counted.
    fn refuse(&self, cause: DeviceError, want: &Want<'_, A>, given_back: u64) -> AllocError {
        self.count_refusal();
        let taker = self.taker(want);
        let here = self.cached_bytes_not(|mark| taker.may_ask(mark));
        let in_book = self
            .book
            .as_ref()
            .map_or(0, |book| self.stranded(book, want.key.lane, self.bounds.steal));
        let error = self.error(cause, want.requested, want.class.bytes, given_back);
        error.judged(here + in_book, A::MEMORY.cpu_touches)
    }

    /// The error of a request that was never one, counted.
    #[cold]
    pub(crate) fn refuse_early(&self, cause: DeviceError, requested: u64) -> AllocError {
        self.count_refusal();
        self.error(cause, requested, requested, 0)
    }

    fn count_refusal(&self) {
        if !self.is_forked() {
            self.shards.own().counts.failures += u64::from(self.bounds.statistics);
        }
    }
}

/// What was found. An error is kept for the case that the device refuses too.
fn note<T>(found: Result<Option<T>, DeviceError>, refused: &mut Option<DeviceError>) -> Option<T> {
    found.unwrap_or_else(|error| {
        *refused = Some(error);
        None
    })
}
