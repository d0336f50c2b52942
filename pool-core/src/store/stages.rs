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
//! After each step of 6, 7 and 8 the stages up to 5 are tried again. Their order is a value of its own
//! (`attempt.rs`).

use crate::block::request::PoolRequest;
#[cfg(any(loom, shuttle))]
use crate::checker::thread;
use crate::error::Figures;
use crate::limits::Shortfall;
use crate::observe::{Reason, Stage};
use crate::port::{DeviceAllocator, DeviceError};
use crate::shard::Grant;
use crate::store::attempt::{Attempt, MAX_WAITS, Step};
use crate::store::{Goal, Store};
use std::cell::Cell;
#[cfg(not(any(loom, shuttle)))]
use std::{thread, time::Duration};

/// The waits that only yield. Each later one sleeps for [`REST`].
#[cfg(not(any(loom, shuttle)))]
const MAX_YIELDS: u32 = 100;
#[cfg(not(any(loom, shuttle)))]
const REST: Duration = Duration::from_micros(100);

/// Why no stage served a request.
#[derive(Debug)]
pub(crate) struct Unserved {
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

impl Unserved {
    /// A request that is refused before memory is searched.
    pub(crate) fn early(cause: DeviceError, rounded: u64) -> Self {
        let (stream, figures, returned, freed_meanwhile) = (None, None, None, None);
        Self { cause, given_back: 0, rounded, stream, figures, returned, freed_meanwhile }
    }
}

impl<A: DeviceAllocator> Store<A> {
    /// Serves a request.
    pub(crate) fn allocate(&self, request: &PoolRequest<'_, A>) -> Result<Grant<A>, Unserved> {
        let is_own = request.private.is_none() && self.searches(request) && !self.shape.uncached;
        if is_own && let Some(grant) = self.take_own(request) {
            return Ok(grant);
        }
        let mut attempt = Attempt::new(request.joins_line);
        let mut error = match self.find_or_grow(request, &mut attempt) {
            Ok(grant) => return Ok(grant),
            Err(error) => error,
        };
        while error.is_out_of_memory() {
            let fits = self.could_hold(request.class.bytes);
            // Before the step: what comes back after it may need another one.
            let returned = self.transit().returns_of_others();
            let step = attempt.next(fits, self.transit().others_have_pieces());
            let given_back = match step {
                Step::Search => match self.find(request, &mut attempt) {
                    Some(grant) => return Ok(grant),
                    None => None,
                },
                Step::TrimMissing => Some(self.trim_short(self.missing(request).0)),
                Step::TrimOthers => self.trim_others(request, self.missing(request).0),
                Step::TrimAll => Some(self.trim_short(u64::MAX)),
                Step::TrimAllOthers => self.trim_others(request, u64::MAX),
                Step::Await => {
                    self.await_others(&mut attempt);
                    Some(self.trim_all(request))
                }
                Step::Look => {
                    self.look_again(request, error, &mut attempt).then(|| self.trim_all(request))
                }
                Step::Ask => {
                    self.ask_program(request, &mut attempt).then(|| self.trim_all(request))
                }
                Step::Refuse => break,
            };
            let Some(given_back) = given_back else { continue };
            attempt.gave(given_back, returned);
            self.calls.lock().num_alloc_retries += 1;
            error = match self.find_or_grow(request, &mut attempt) {
                Ok(grant) => return Ok(grant),
                Err(error) => error,
            };
        }
        self.calls.lock().num_ooms += 1;
        Err(self.unserved(request, error, attempt))
    }

    /// The stages from 2 to 5. Returns the device's error: what an event refuses is told at the
    /// end, since giving memory back may still help.
    fn find_or_grow(
        &self,
        request: &PoolRequest<'_, A>,
        attempt: &mut Attempt,
    ) -> Result<Grant<A>, DeviceError> {
        attempt.refused = None;
        let home = self.home(request);
        let private = request.private.and_then(|id| self.take_private(request, id));
        if let Some(grant) = private {
            return Ok(self.served(home, Stage::Private, grant));
        }
        if let Some(grant) = self.find(request, attempt) {
            return Ok(grant);
        }
        attempt.given_back += self.free_before_growing(home, attempt.effort).0;
        let grant = self.grow(request).inspect_err(|_| self.forget_refused(request))?;
        self.count_out_of_private(request);
        Ok(self.served(home, attempt.stage, grant))
    }

    /// The stages from 2 to 4.
    fn find(&self, request: &PoolRequest<'_, A>, attempt: &mut Attempt) -> Option<Grant<A>> {
        let found = self.search(request, attempt.effort);
        let (stage, mut grant) = note(found, &mut attempt.refused)?;
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

    /// Whether the limits and the device are large enough for a request of `bytes` bytes alone, in
    /// whole pages where the device has pages.
    pub(crate) fn could_hold(&self, bytes: u64) -> bool {
        let bytes = self.shape.bytes_to_grow(bytes);
        let fits = |total| bytes <= total;
        self.ledger.could_hold(bytes) && self.allocator.total_bytes().is_none_or(fits)
    }

    /// The bytes that must go back for a request, and whether those of other pools of the budget would help:
    /// not a pool that is at its own limit.
    fn missing(&self, request: &PoolRequest<'_, A>) -> (u64, bool) {
        let bytes = self.shape.bytes_to_grow(request.class.bytes);
        let Shortfall { of_pool, of_budget } = self.ledger.shortfall(bytes);
        let missing = match of_pool.max(of_budget) {
            0 => bytes, // the device is short, not a limit
            missing => missing,
        };
        (missing, of_pool == 0 || of_budget > 0)
    }

    /// Gives back at least `bytes` bytes of cached memory, since a request needs them.
    pub(crate) fn trim_short(&self, bytes: u64) -> u64 {
        self.trim(Goal { bytes, reason: Reason::Shortage }).0
    }

    /// Gives back cached memory of the other pools of the budget; `None` if there are none that help.
    fn trim_others(&self, request: &PoolRequest<'_, A>, bytes: u64) -> Option<u64> {
        let (_, others_help) = self.missing(request);
        if others_help { self.ledger.trim_others(self.address(), bytes) } else { None }
    }

    /// Gives all cached memory back, and that of other pools of the budget if it can help. None for a
    /// request that the limits cannot hold, which the program may have raised.
    fn trim_all(&self, request: &PoolRequest<'_, A>) -> u64 {
        if !self.could_hold(request.class.bytes) {
            return 0;
        }
        self.trim_short(u64::MAX) + self.trim_others(request, u64::MAX).unwrap_or(0)
    }

    /// Waits for memory that other threads have on its way.
    fn await_others(&self, attempt: &mut Attempt) {
        let before = attempt.returned;
        let is_same = || before == Some(self.transit().returns_of_others());
        while attempt.waits > 0 && self.transit().others_have_pieces() && is_same() {
            attempt.waits -= 1;
            rest(MAX_WAITS - attempt.waits);
        }
        attempt.waits = attempt.waits.saturating_sub(1);
    }

    /// Whether free memory is left after the last search, which another thread has put there. If not,
    /// notes the figures of the pool.
    fn look_again(
        &self,
        request: &PoolRequest<'_, A>,
        refusal: DeviceError,
        attempt: &mut Attempt,
    ) -> bool {
        let free = attempt.may_look() && self.has_free();
        let came_back = attempt.returned != Some(self.transit().returns_of_others());
        let again = attempt.saw(free, came_back);
        if !again {
            let figures = self.figures(refusal, Some(request.key.stream_id));
            attempt.figures = Some(Box::new(figures));
        }
        again
    }

    /// Asks the program to drop something.
    fn ask_program(&self, request: &PoolRequest<'_, A>, attempt: &mut Attempt) -> bool {
        let Some(call) = self.on_shortage.lock().clone() else { return false };
        // What the program requests inside of the call is refused without another.
        let Some(_inside) = InShortage::enter() else { return false };
        let spared = call(request.class.bytes);
        if spared {
            attempt.spared();
        }
        spared
    }

    fn unserved(
        &self,
        request: &PoolRequest<'_, A>,
        error: DeviceError,
        attempt: Attempt,
    ) -> Unserved {
        let bytes = request.class.bytes;
        let Attempt { given_back, figures, returned, refused, .. } = attempt;
        Unserved {
            cause: refused.unwrap_or(error),
            given_back,
            rounded: if self.could_hold(bytes) { bytes } else { self.shape.bytes_to_grow(bytes) },
            stream: Some(request.key.stream_id),
            figures,
            returned,
            freed_meanwhile: None,
        }
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
pub(super) fn note<T>(
    found: Result<Option<T>, DeviceError>,
    refused: &mut Option<DeviceError>,
) -> Option<T> {
    found.unwrap_or_else(|error| {
        *refused = Some(error);
        None
    })
}
