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
//! 8. everything cached again: once other threads have returned the memory that they had on its
//!    way, as often as memory came back during the last search, and each time that the program has
//!    spared something ([`PoolBuilder::on_shortage`](crate::PoolBuilder::on_shortage));
//! 9. an error that says why.
//!
//! After each step of 6, 7 and 8 the stages from 1 to 5 are tried again.

#[cfg(any(loom, shuttle))]
use crate::checker::thread;
use crate::error::{AllocError, Figures};
use crate::heap::block::request::PoolRequest;
use crate::heap::store::{Effort, Goal, Grant, Returned, Store};
use crate::limits::Shortfall;
use crate::observe::{EventFields, EventKind, Reason, Stage, Tag};
use crate::port::{DeviceAllocator, DeviceError, Why};
#[cfg(not(any(loom, shuttle)))]
use std::{thread, time::Duration};

/// How often a request that is about to be refused waits for memory that other threads have on its
/// way.
const MAX_WAITS: u32 = if cfg!(loom) { 2 } else { 1000 };
/// The waits that only yield. Each later one sleeps for [`REST`].
#[cfg(not(any(loom, shuttle)))]
const MAX_YIELDS: u32 = 100;
#[cfg(not(any(loom, shuttle)))]
const REST: Duration = Duration::from_micros(100);
/// How often it searches again because other threads have returned memory during its search.
const MAX_REPEATS: u32 = if cfg!(loom) { 2 } else { 64 };
/// How often the program is asked to spare something for one request.
const MAX_SHORTAGE_CALLS: u32 = 8;

/// Why no stage served a request.
#[derive(Debug)]
pub(crate) struct Short {
    pub(crate) cause: DeviceError,
    /// Bytes that went back to the device in the attempt.
    pub(crate) given_back: u64,
    /// Bytes of the block that would have served it.
    pub(crate) rounded: u64,
    /// The number of the stream, for a request that was searched for.
    pub(crate) stream: Option<u64>,
    /// The figures of the pool at the search that failed, for a request that lacked memory.
    pub(crate) figures: Option<Box<Figures>>,
    /// How much had come back before that search.
    pub(crate) returned: Option<Returned>,
}

impl Short {
    /// A request that is refused before memory is searched.
    pub(crate) fn early(cause: DeviceError, requested: u64) -> Self {
        Self {
            cause,
            given_back: 0,
            rounded: requested,
            stream: None,
            figures: None,
            returned: None,
        }
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
    /// How often it may still wait, search again, and ask the program.
    waits: u32,
    repeats: u32,
    shortage_calls: u32,
    /// How much had come back to the pools before the last trims and search.
    returned: Option<Returned>,
    /// The figures of the pool at the last search, for the error.
    figures: Option<Box<Figures>>,
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
            waits: MAX_WAITS,
            repeats: MAX_REPEATS,
            shortage_calls: MAX_SHORTAGE_CALLS,
            returned: None,
            figures: None,
            stage: Stage::Device,
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
            let is_hopeless = !self.could_hold(request.class.bytes);
            // Before the trims: what comes back after them may need another one.
            let returned = self.returned();
            let given_back = match trims.next() {
                Some(_) if is_hopeless => None,
                Some(trim) => self.trim_for(request, trim, &mut progress.stage),
                None if !is_hopeless && self.others_return(request, short, &mut progress)
                    || self.ask_program(request, &mut progress) =>
                {
                    // The program may have raised the limit.
                    let fits = self.could_hold(request.class.bytes);
                    Some(if fits { self.trim_all(request, &mut progress.stage) } else { 0 })
                }
                None => break,
            };
            let Some(given_back) = given_back else { continue };
            progress.given_back += given_back;
            self.book.lock().note_retry();
            progress.effort = Effort::All;
            progress.returned = Some(returned);
            short = match self.search_then_device(request, &mut progress) {
                Ok(grant) => return Ok(grant),
                Err(error) => error,
            };
        }
        self.book.lock().note_refusal();
        let cause = progress.refused.unwrap_or(short);
        let bytes = request.class.bytes;
        let rounded = if self.could_hold(bytes) { bytes } else { self.book.bytes_to_grow(bytes) };
        let stream = Some(request.key.stream_id);
        let Progress { given_back, figures, returned, .. } = progress;
        Err(Short { cause, given_back, rounded, stream, figures, returned })
    }

    /// Whether the limits are large enough for a request of `bytes` bytes alone, in whole pages
    /// where the device has pages.
    pub(crate) fn could_hold(&self, bytes: u64) -> bool {
        self.ledger.could_hold(self.book.bytes_to_grow(bytes))
    }

    /// Gives cached memory back for a request. Returns the bytes, or `None` if there is nothing to
    /// try in this step.
    fn trim_for(&self, request: &PoolRequest<'_, A>, trim: Trim, stage: &mut Stage) -> Option<u64> {
        let bytes = self.book.bytes_to_grow(request.class.bytes);
        let Shortfall { of_pool: own, of_budget } = self.ledger.shortfall(bytes);
        let missing = match own.max(of_budget) {
            0 => bytes, // the device is short, not a limit
            missing => missing,
        };
        *stage = match trim {
            Trim::Missing | Trim::Others => Stage::Trimmed,
            Trim::All | Trim::AllOthers => Stage::Cleared,
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

    /// Gives all cached memory back, and that of other pools of the budget if it can help.
    fn trim_all(&self, request: &PoolRequest<'_, A>, stage: &mut Stage) -> u64 {
        let before = *stage;
        let trims = [Trim::All, Trim::AllOthers].map(|trim| self.trim_for(request, trim, stage));
        *stage = before;
        trims.into_iter().flatten().sum()
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
            return Ok(self.served(Stage::Private, grant));
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
        request.private.is_none() && (request.class.is_cached() || !self.book.is_blocks())
    }

    /// The stages 2 and 3 without an arena.
    fn search_blocks(&self, request: &PoolRequest<'_, A>, effort: Effort) -> Found<A> {
        if !self.searches(request) {
            return Ok(None);
        }
        let gathered = self.gather(request, effort) || effort == Effort::All;
        if gathered && let Some(grant) = self.take_from_book(request) {
            return Ok(Some((Stage::Elsewhere, grant)));
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
                Some(grant) => Some((Stage::Elsewhere, grant)),
                None => note(self.search_streams(request, effort), &mut refused),
            };
            if let Some((stage, grant)) = found {
                return Ok(Some((if coalesced { Stage::Coalesced } else { stage }, grant)));
            }
        }
        refused.map_or(Ok(None), Err)
    }

    /// The stages 2 and 3: memory of other streams, and behind events.
    fn search_streams(&self, request: &PoolRequest<'_, A>, effort: Effort) -> Found<A> {
        if let Some(grant) = self.take_others_ready(request, effort) {
            return Ok(Some((Stage::Elsewhere, grant)));
        }
        let found = self.take_not_ready(request, effort)?;
        Ok(found.map(|grant| (Stage::BehindEvent, grant)))
    }

    /// Counts a block of the book that a private pool has from now on.
    fn count_out_of_private(&self, request: &PoolRequest<'_, A>) {
        if let Some(id) = request.private {
            self.privates.count_out(id);
        }
    }

    fn served(&self, stage: Stage, grant: Grant<A>) -> Grant<A> {
        if self.bounds.statistics {
            self.book.lock().counts.served_by.count(stage);
        }
        grant
    }

    /// Whether other threads have returned memory since the last search and the trims before it
    /// began, or do so in a moment, for which this waits. If not, notes the figures of the pool,
    /// which are those of that search.
    fn others_return(
        &self,
        request: &PoolRequest<'_, A>,
        refusal: DeviceError,
        progress: &mut Progress,
    ) -> bool {
        let is_same = |progress: &Progress| progress.returned == Some(self.returned());
        // A request that joins the line is woken by what it would wait for here.
        let waits = !request.joins_line && self.transit().others_have_pieces();
        if waits && progress.waits > 0 {
            while progress.waits > 0 && self.transit().others_have_pieces() && is_same(progress) {
                progress.waits -= 1;
                rest(MAX_WAITS - progress.waits);
            }
            progress.waits = progress.waits.saturating_sub(1);
            return true;
        }
        if is_same(progress) || progress.repeats == 0 {
            progress.figures = Some(Box::new(self.figures(refusal, Some(request.key.stream_id))));
        }
        if is_same(progress) || progress.repeats == 0 {
            return false;
        }
        progress.repeats -= 1;
        true
    }

    /// Asks the program to drop something.
    fn ask_program(&self, request: &PoolRequest<'_, A>, progress: &mut Progress) -> bool {
        let Some(call) = self.on_shortage.lock().clone() else { return false };
        if progress.shortage_calls == 0 {
            return false;
        }
        progress.shortage_calls -= 1;
        progress.stage = Stage::Spared;
        call(request.class.bytes)
    }

    /// The error of a request that is refused, counted.
    #[cold]
    pub(crate) fn refuse(&self, short: Short, requested: u64, tag: Tag) -> AllocError {
        let Short { cause, given_back, rounded, stream, figures, .. } = short;
        self.count_refusal(cause);
        let fields =
            EventFields { stream: stream.unwrap_or(0), requested, tag, ..EventFields::default() };
        self.notify(EventKind::Refuse(cause.why), fields);
        let mut figures = *figures.unwrap_or_else(|| Box::new(self.figures(cause, stream)));
        (figures.requested_bytes, figures.rounded_bytes) = (requested, rounded);
        figures.given_back_bytes = given_back;
        match stream {
            Some(_) => AllocError::judged(figures, cause, A::MEMORY.cpu_touches),
            None => AllocError::new(Figures { cause, ..figures }),
        }
    }

    fn count_refusal(&self, cause: DeviceError) {
        if self.bounds.statistics && !self.is_unusable() {
            let counts = &mut self.book.lock().counts;
            counts.failures += 1;
            counts.timeouts += u64::from(cause.why == Why::TimedOut);
        }
    }

    /// Counts a request that begins to wait.
    pub(crate) fn count_wait(&self) {
        if self.bounds.statistics && !self.is_unusable() {
            self.book.lock().counts.waits += 1;
        }
    }
}

/// Lets other threads run. `waits` counts the calls for one request: later ones sleep, since the
/// other thread may not have a processor.
fn rest(waits: u32) {
    #[cfg(not(any(loom, shuttle)))]
    if waits > MAX_YIELDS {
        return thread::sleep(REST);
    }
    let _ = waits;
    thread::yield_now();
}

/// Keeps an error for the case that the device refuses too. Returns what was found.
fn note<T>(found: Result<Option<T>, DeviceError>, refused: &mut Option<DeviceError>) -> Option<T> {
    found.unwrap_or_else(|error| {
        *refused = Some(error);
        None
    })
}
