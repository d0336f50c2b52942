//! The stages of an allocation, from a hit to out of memory. Each stage finds or frees something
//! and then searches again.
//!
//! 1. the thread cache, and the free lists of the book ([`Store::allocate`]: the hit);
//! 2. without an arena, the transfer cache and the caches of other threads; then other streams'
//!    memory that is ready;
//! 3. memory whose work a query finds done, or behind an event, by one wait on the device;
//! 4. with an arena, neighbours that coalesce, and then 1 to 3 again;
//! 5. the device, after the deferred frees;
//! 6. cached memory given back, oldest first, as many bytes as are missing; then as many of the
//!    other pools of the budget;
//! 7. everything cached of the pool; then of the other pools of the budget;
//! 8. everything cached of the pool again, while another thread has memory between pool and device,
//!    and each time that the program has spared something
//!    ([`PoolBuilder::on_shortage`](crate::PoolBuilder::on_shortage));
//! 9. an error that says why.
//!
//! After each step of 6, 7 and 8 the stages from 1 to 5 are tried again.

use crate::block::request::PoolRequest;
#[cfg(any(loom, shuttle))]
use crate::checker::thread;
use crate::device::DeviceAllocator;
use crate::error::{AllocError, DeviceError};
use crate::observe::tag::Tag;
use crate::observe::{About, EventKind, Reason};
use crate::pool::store::{Effort, Goal, Grant, Store};
use crate::stats::Stages;
#[cfg(not(any(loom, shuttle)))]
use std::thread;

/// How often a request that is about to be refused waits for blocks in transit on other threads.
const PATIENCE: u32 = if cfg!(loom) { 2 } else { 1000 };
/// How often the program is asked to spare something for one request.
const ASKED: u32 = 8;

/// The counter of the stage that served a request.
type Stage = fn(&mut Stages) -> &mut u64;

/// Why no stage served a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Short {
    pub(crate) cause: DeviceError,
    /// Bytes that went back to the device in the attempt.
    pub(crate) given_back: u64,
    /// Bytes of the block that would have served it.
    pub(crate) rounded: u64,
    /// The number of the stream, for a request that was searched for.
    pub(crate) stream: Option<u64>,
}

impl Short {
    /// A request that is refused before memory is searched.
    pub(crate) fn early(cause: DeviceError, requested: u64) -> Self {
        Self { cause, given_back: 0, rounded: requested, stream: None }
    }
}

/// The steps of the stages 6 and 7.
#[derive(Clone, Copy)]
enum Trim {
    Missing,
    Others,
    All,
    AllOthers,
}

/// A grant, and the stage that served it.
type Found<A> = Result<Option<(Stage, Grant<A>)>, DeviceError>;

/// How far a request has come.
struct Progress {
    /// Bytes that went back to the device for it.
    given_back: u64,
    patience: u32,
    asked: u32,
    /// The counter of a request that the device serves now.
    stage: Stage,
    /// How far a book is searched.
    effort: Effort,
    /// The refusal of an event in the last round.
    refused: Option<DeviceError>,
}

impl<A: DeviceAllocator> Store<A> {
    /// Serves a request.
    #[inline]
    pub(crate) fn allocate(&self, request: &PoolRequest<'_, A>) -> Result<Grant<A>, Short> {
        let hit = if self.searches(request) { self.take_from_book(request) } else { None };
        match hit {
            Some(grant) => Ok(grant),
            None => self.allocate_slow(*request),
        }
    }

    /// The stages from 2 on. The request comes by value, so that a hit keeps it in registers.
    #[cold]
    fn allocate_slow(&self, request: PoolRequest<'_, A>) -> Result<Grant<A>, Short> {
        let request = &request;
        let mut progress = Progress {
            given_back: 0,
            patience: PATIENCE,
            asked: ASKED,
            stage: |stages| &mut stages.device,
            effort: Effort::Bounded,
            refused: None,
        };
        let mut short = match self.search_then_device(request, &mut progress) {
            Ok(grant) => return Ok(grant),
            Err(error) => error,
        };
        let mut trims = [Trim::Missing, Trim::Others, Trim::All, Trim::AllOthers].into_iter();
        while short.is_out_of_memory() {
            // A request above the limit takes no cached memory from those below it.
            let is_hopeless = !self.ledger.could_hold(request.class.bytes);
            let given_back = match trims.next() {
                Some(_) if is_hopeless => None,
                Some(trim) => self.trim_for(request, trim, &mut progress.stage),
                None if !is_hopeless && self.wait_for_others(&mut progress)
                    || self.ask_program(request, &mut progress) =>
                {
                    // The program may have raised the limit.
                    let fits = self.ledger.could_hold(request.class.bytes);
                    Some(if fits { self.trim_short(u64::MAX) } else { 0 })
                }
                None => break,
            };
            let Some(given_back) = given_back else { continue };
            progress.given_back += given_back;
            self.book.lock().note_retry();
            progress.effort = Effort::All;
            short = match self.search_then_device(request, &mut progress) {
                Ok(grant) => return Ok(grant),
                Err(error) => error,
            };
        }
        self.book.lock().note_refusal();
        let cause = progress.refused.unwrap_or(short);
        let (rounded, stream) = (request.class.bytes, Some(request.key.stream_id));
        Err(Short { cause, given_back: progress.given_back, rounded, stream })
    }

    /// Gives cached memory back for a request. Returns the bytes, or `None` if there is nothing to
    /// try in this step.
    fn trim_for(&self, request: &PoolRequest<'_, A>, trim: Trim, stage: &mut Stage) -> Option<u64> {
        let bytes = self.book.bytes_to_grow(request.class.bytes);
        let (own, of_budget) = self.ledger.missing(bytes);
        let missing = match own.max(of_budget) {
            0 => bytes, // the device is short, not a limit
            missing => missing,
        };
        *stage = match trim {
            Trim::Missing | Trim::Others => |stages| &mut stages.trimmed,
            Trim::All | Trim::AllOthers => |stages| &mut stages.cleared,
        };
        // Other pools cannot help a pool that is at its own limit.
        let by_others = own == 0 || of_budget > 0;
        match trim {
            Trim::Missing => Some(self.trim_short(missing)),
            Trim::All => Some(self.trim_short(u64::MAX)),
            Trim::Others if by_others => self.trim_others(missing),
            Trim::AllOthers if by_others => self.trim_others(u64::MAX),
            Trim::Others | Trim::AllOthers => None,
        }
    }

    /// Gives back at least `bytes` bytes of cached memory, since a request needs them.
    pub(crate) fn trim_short(&self, bytes: u64) -> u64 {
        self.trim(Goal { bytes, reason: Reason::Shortage }).0
    }

    /// Gives back cached memory of the other pools of the budget; `None` if there are none.
    fn trim_others(&self, bytes: u64) -> Option<u64> {
        self.ledger.trim_others(self.address(), bytes)
    }

    /// The stages from 2 to 5. Returns the device's error: what an event refuses is told at the
    /// end, since giving memory back may still help.
    fn search_then_device(
        &self,
        request: &PoolRequest<'_, A>,
        progress: &mut Progress,
    ) -> Result<Grant<A>, DeviceError> {
        progress.refused = None;
        let private = request.private.and_then(|id| self.take_private(request, id));
        if let Some(grant) = private {
            return Ok(self.served(|stages| &mut stages.private, grant));
        }
        let found = match self.book.is_blocks() {
            true => self.search_blocks(request, progress.effort),
            false => self.search_arena(request, progress.effort),
        };
        if let Some((stage, grant)) = note(found, &mut progress.refused) {
            self.count_out_of_private(request);
            return Ok(self.served(stage, grant));
        }
        progress.given_back += self.free_deferred_and_excess().0;
        let fresh = self.grow(request).inspect(|_| self.count_out_of_private(request));
        fresh.map(|fresh| self.served(progress.stage, fresh))
    }

    /// Whether free memory may serve a request: not where it goes past a pool without an arena. A
    /// private pool is searched before.
    fn searches(&self, request: &PoolRequest<'_, A>) -> bool {
        request.private.is_none() && (request.class.pooled() || !self.book.is_blocks())
    }

    /// The stages 2 and 3 without an arena.
    fn search_blocks(&self, request: &PoolRequest<'_, A>, effort: Effort) -> Found<A> {
        if !self.searches(request) {
            return Ok(None);
        }
        let gathered = self.gather(request, effort) || effort == Effort::All;
        if gathered && let Some(grant) = self.take_from_book(request) {
            return Ok(Some((|stages| &mut stages.elsewhere, grant)));
        }
        self.search_streams(request, effort)
    }

    /// The stages from 2 to 4 with an arena.
    fn search_arena(&self, request: &PoolRequest<'_, A>, effort: Effort) -> Found<A> {
        if self.book.is_uncached() {
            // What frees left is the device's; a refusal is counted there.
            let _ = self.trim_book(Goal::all(Reason::Bound));
            return Ok(None);
        }
        let mut refused = None;
        // A request without a private pool has just searched them, in stage 1.
        let own_first = request.private.is_some() || effort == Effort::All;
        for coalesced in [false, true] {
            if coalesced && !self.coalesce_book(request, effort) {
                break;
            }
            let own = (own_first || coalesced).then(|| self.take_from_book(request)).flatten();
            let found = match own {
                Some(grant) => Some(((|stages| &mut stages.elsewhere) as Stage, grant)),
                None => note(self.search_streams(request, effort), &mut refused),
            };
            if let Some((stage, grant)) = found {
                let by_coalescing: Stage = |stages| &mut stages.coalesced;
                return Ok(Some((if coalesced { by_coalescing } else { stage }, grant)));
            }
        }
        refused.map_or(Ok(None), Err)
    }

    /// The stages 2 and 3: memory of other streams, and behind events.
    fn search_streams(&self, request: &PoolRequest<'_, A>, effort: Effort) -> Found<A> {
        if let Some(grant) = self.take_others_ready(request, effort) {
            return Ok(Some((|stages| &mut stages.elsewhere, grant)));
        }
        let found = self.take_not_ready(request, effort)?;
        Ok(found.map(|grant| ((|stages| &mut stages.behind_event) as Stage, grant)))
    }

    /// Counts a block of the book that a private pool has from now on.
    fn count_out_of_private(&self, request: &PoolRequest<'_, A>) {
        if let Some(id) = request.private {
            self.privates.count_out(id);
        }
    }

    fn served(&self, stage: Stage, grant: Grant<A>) -> Grant<A> {
        if self.bounds.statistics {
            *stage(&mut self.book.lock().counts.served_by) += 1;
        }
        grant
    }

    /// Another thread holds blocks that come back, to the book or to the device, in a moment: lets
    /// it, and then all cached memory is worth giving back once more.
    fn wait_for_others(&self, progress: &mut Progress) -> bool {
        if progress.patience == 0 || !self.is_in_transit() {
            return false;
        }
        progress.patience -= 1;
        thread::yield_now();
        true
    }

    /// Asks the program to drop something.
    fn ask_program(&self, request: &PoolRequest<'_, A>, progress: &mut Progress) -> bool {
        let Some(call) = self.on_shortage.lock().clone() else { return false };
        if progress.asked == 0 {
            return false;
        }
        progress.asked -= 1;
        progress.stage = |stages| &mut stages.spared;
        call(request.class.bytes)
    }

    /// The error of a request that is refused, counted.
    #[cold]
    pub(crate) fn refuse(&self, short: Short, requested: u64, tag: Tag) -> AllocError {
        let Short { cause, given_back, rounded, stream } = short;
        self.count_refusal();
        let about = About { stream: stream.unwrap_or(0), requested, tag, ..About::default() };
        self.tell(EventKind::Refuse(cause.why), about);
        let error = self.error(cause, requested, rounded, given_back);
        let Some(stream) = stream else { return error };
        error.judged(self.stranded(stream, self.bounds.steal), A::MEMORY.cpu_touches)
    }

    fn count_refusal(&self) {
        if !self.is_forked() {
            self.book.lock().counts.failures += u64::from(self.bounds.statistics);
        }
    }
}

/// Keeps an error for the case that the device refuses too. Returns what was found.
fn note<T>(found: Result<Option<T>, DeviceError>, refused: &mut Option<DeviceError>) -> Option<T> {
    found.unwrap_or_else(|error| {
        *refused = Some(error);
        None
    })
}
