//! The stages of an allocation, from a hit to out of memory. Each stage finds or frees something
//! and then searches again.
//!
//! 1. the free list of the stream in its shard ([`Store::take_own`]: the hit);
//! 2. memory of other streams and other shards that is ready;
//! 3. memory whose work a query finds done, or behind an event, by one wait on the device;
//! 4. with an arena, neighbours that coalesce, and then 1 to 3 again;
//! 5. the device, after the deferred frees that wait for nothing;
//! 6. 2 to 4 once more, since what another thread has freed meanwhile would be the first to go; then
//!    cached memory given back, oldest first, as many bytes as are missing; then as many of the other
//!    pools of the budget;
//! 7. everything cached of the pool; then of the other pools of the budget;
//! 8. everything cached again: as long as the last search, which holds all locks, finds free memory,
//!    or other threads have some on its way; and each time that the program has spared something
//!    ([`PoolBuilder::on_shortage`](crate::PoolBuilder::on_shortage));
//! 9. an error that says why.
//!
//! After each step of 6, 7 and 8 the stages from 1 to 5 are tried again.

use crate::block::request::PoolRequest;
use crate::blocks::Effort;
#[cfg(any(loom, shuttle))]
use crate::checker::thread;
use crate::error::Figures;
use crate::limits::Shortfall;
use crate::observe::{Reason, Stage};
use crate::port::{DeviceAllocator, DeviceError};
use crate::shard::Grant;
use crate::store::search::note;
use crate::store::{Goal, Store};
use std::cell::Cell;
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
/// How often it searches again because memory is free after its search.
const MAX_REPEATS: u32 = if cfg!(loom) { 2 } else { 64 };
/// How often in a row it sees free memory of which none can be given back.
const MAX_IN_VAIN: u32 = 4;
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
    /// How much other threads had given back before that search.
    pub(crate) returned: Option<u64>,
    /// Buffers that were freed while it waited; `None` if it did not wait.
    pub(crate) freed_meanwhile: Option<u64>,
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
            freed_meanwhile: None,
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

/// How far a request has come.
struct Progress {
    /// Bytes that went back to the device for it.
    given_back: u64,
    /// How often it may still wait, search again, and ask the program.
    waits: u32,
    repeats: u32,
    shortage_calls: u32,
    /// How much other threads had given back before the last trims and search.
    returned: Option<u64>,
    /// Whether the last look under all locks saw free memory, and how often in a row none of that could
    /// be given back.
    saw_free: bool,
    in_vain: u32,
    /// The figures of the pool at the last search, for the error.
    figures: Option<Box<Figures>>,
    /// The counter of a request that the device serves now.
    stage: Stage,
    /// How far shards are searched.
    effort: Effort,
    /// The refusal of an event in the last round.
    refused: Option<DeviceError>,
}

impl<A: DeviceAllocator> Store<A> {
    /// Serves a request.
    #[inline]
    pub(crate) fn allocate(&self, request: &PoolRequest<'_, A>) -> Result<Grant<A>, Short> {
        let is_own = request.private.is_none() && self.searches(request) && !self.shape.uncached;
        let hit = if is_own { self.take_own(request) } else { None };
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
            saw_free: false,
            in_vain: 0,
            figures: None,
            stage: Stage::Device,
            effort: Effort::Bounded,
            refused: None,
        };
        let mut short = match self.search_then_device(request, &mut progress) {
            Ok(grant) => return Ok(grant),
            Err(error) => error,
        };
        // What another thread has freed meanwhile would be the first to go.
        if short.is_out_of_memory()
            && self.could_hold(request.class.bytes)
            && let Some(grant) = self.found(request, &mut progress)
        {
            return Ok(grant);
        }
        let mut trims = [Trim::Missing, Trim::Others, Trim::All, Trim::AllOthers].into_iter();
        while short.is_out_of_memory() {
            // A request above the limit takes no cached memory from those below it.
            let is_hopeless = !self.could_hold(request.class.bytes);
            // Before the trims: what comes back after them may need another one.
            let returned = self.transit().returns_of_others();
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
            let was_in_vain = std::mem::take(&mut progress.saw_free) && given_back == 0;
            progress.in_vain = if was_in_vain { progress.in_vain + 1 } else { 0 };
            progress.given_back += given_back;
            self.calls.lock().num_alloc_retries += 1;
            progress.effort = Effort::All;
            progress.returned = Some(returned);
            short = match self.search_then_device(request, &mut progress) {
                Ok(grant) => return Ok(grant),
                Err(error) => error,
            };
        }
        self.calls.lock().num_ooms += 1;
        let cause = progress.refused.unwrap_or(short);
        let bytes = request.class.bytes;
        let rounded = if self.could_hold(bytes) { bytes } else { self.shape.bytes_to_grow(bytes) };
        let stream = Some(request.key.stream_id);
        let Progress { given_back, figures, returned, .. } = progress;
        let freed_meanwhile = None;
        Err(Short { cause, given_back, rounded, stream, figures, returned, freed_meanwhile })
    }

    /// Whether the limits and the device are large enough for a request of `bytes` bytes alone, in
    /// whole pages where the device has pages.
    pub(crate) fn could_hold(&self, bytes: u64) -> bool {
        let bytes = self.shape.bytes_to_grow(bytes);
        let fits = |total| bytes <= total;
        self.ledger.could_hold(bytes) && self.allocator.total_bytes().is_none_or(fits)
    }

    /// Gives cached memory back for a request. Returns the bytes, or `None` if there is nothing to
    /// try in this step.
    fn trim_for(&self, request: &PoolRequest<'_, A>, trim: Trim, stage: &mut Stage) -> Option<u64> {
        let bytes = self.shape.bytes_to_grow(request.class.bytes);
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
        let home = self.home(request);
        let private = request.private.and_then(|id| self.take_private(request, id));
        if let Some(grant) = private {
            return Ok(self.served(home, Stage::Private, grant));
        }
        if let Some(grant) = self.found(request, progress) {
            return Ok(grant);
        }
        progress.given_back += self.free_before_growing(home, progress.effort).0;
        let fresh = self.grow(request).inspect(|_| self.count_out_of_private(request));
        let fresh = fresh.inspect_err(|_| self.forget_refused(request));
        fresh.map(|fresh| self.served(home, progress.stage, fresh))
    }

    /// The stages from 2 to 4.
    fn found(&self, request: &PoolRequest<'_, A>, progress: &mut Progress) -> Option<Grant<A>> {
        let found = self.search(request, progress.effort);
        let (stage, mut grant) = note(found, &mut progress.refused)?;
        grant.record.join_private(request.private);
        self.count_out_of_private(request);
        Some(self.served(self.home(request), stage, grant))
    }

    /// Counts a shared block that a private pool has from now on.
    fn count_out_of_private(&self, request: &PoolRequest<'_, A>) {
        if let Some(id) = request.private {
            self.privates.count_out(id);
        }
    }

    fn served(&self, at: usize, stage: Stage, grant: Grant<A>) -> Grant<A> {
        if self.bounds.statistics {
            self.shards.lock(at).counts.served_by.count(stage);
        }
        grant
    }

    /// Whether free memory is left after the last search and trims, which another thread has put
    /// there, or will in a moment, for which this waits. If not, notes the figures of the pool.
    fn others_return(
        &self,
        request: &PoolRequest<'_, A>,
        refusal: DeviceError,
        progress: &mut Progress,
    ) -> bool {
        // A request that joins the line is woken by what it would wait for here.
        let waits = !request.joins_line && self.transit().others_have_pieces();
        if waits && progress.waits > 0 {
            let before = progress.returned;
            let is_same = || before == Some(self.transit().returns_of_others());
            while progress.waits > 0 && self.transit().others_have_pieces() && is_same() {
                progress.waits -= 1;
                rest(MAX_WAITS - progress.waits);
            }
            progress.waits = progress.waits.saturating_sub(1);
            return true;
        }
        progress.saw_free = progress.in_vain < MAX_IN_VAIN && self.has_free();
        if progress.repeats > 0 && (progress.saw_free || !progress.is_same(self)) {
            progress.repeats -= 1;
            return true;
        }
        progress.figures = Some(Box::new(self.figures(refusal, Some(request.key.stream_id))));
        false
    }

    /// Asks the program to drop something.
    fn ask_program(&self, request: &PoolRequest<'_, A>, progress: &mut Progress) -> bool {
        let Some(call) = self.on_shortage.lock().clone() else { return false };
        if progress.shortage_calls == 0 {
            return false;
        }
        // What the program requests inside of the call is refused without another.
        let Some(_inside) = InShortage::enter() else { return false };
        progress.shortage_calls -= 1;
        progress.stage = Stage::Spared;
        call(request.class.bytes)
    }
}

#[cfg(not(any(loom, shuttle)))]
thread_local! {
    /// Whether this thread is inside of a call of `on_shortage`.
    static IN_SHORTAGE: Cell<bool> = const { Cell::new(false) };
}
#[cfg(any(loom, shuttle))]
crate::checker::thread_local! {
    static IN_SHORTAGE: Cell<bool> = Cell::new(false);
}

/// A call of the program for a shortage, until the drop.
struct InShortage;

impl InShortage {
    /// `None` if this thread is inside of one.
    fn enter() -> Option<Self> {
        IN_SHORTAGE.with(|inside| !inside.replace(true)).then(|| Self)
    }
}

impl Drop for InShortage {
    fn drop(&mut self) {
        IN_SHORTAGE.with(|inside| inside.set(false));
    }
}

impl Progress {
    /// Whether other threads have given nothing back since the last trims and search began.
    fn is_same<A: DeviceAllocator>(&self, store: &Store<A>) -> bool {
        self.returned == Some(store.transit().returns_of_others())
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
