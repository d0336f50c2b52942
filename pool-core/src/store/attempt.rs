//! **The stages of an allocation**, from a hit to out of memory: the one place that tells them. Each stage finds or
//! frees something and then searches again. `PoolStats::served_by` counts which one served a request.
//!
//! 1. [`Store::hit_any`]: the free list of the stream in its shard; of an arena also memory that no stream used.
//! 2. [`search`]: memory that is ready, of other streams and other shards.
//! 3. Memory that is not ready, if the `StealPolicy` allows it: of at most two streams a query may find the work
//!    done, else the stream waits on the device behind an event. The host does not block. For memory that the CPU
//!    can touch, one query must find the work done.
//! 4. With an arena: neighbours of several streams coalesce, and 1 to 3 follow again.
//! 5. [`grow`]: deferred frees are executed, what is above the cached limit goes back, and the bytes are reserved under
//!    the limits; then the device is asked. A request without a size class begins here, unless the pool has an arena.
//!
//! If the device or a limit refuses for want of memory, [`Attempt`] says what comes next, and 1 to 5 are tried again
//! after each step, in all shards and with memory that the host must wait for. A request that is larger than the
//! limits alone evicts nothing: of these steps only the call of the program in 8 is left, which may raise the limit.
//!
//! 6. Once more 2 to 4, since what another thread has freed meanwhile would be the first to go. Then [`trim`] gives back
//!    as many cached bytes as are missing, the oldest first; then the other pools of the budget do, if theirs help.
//! 7. All that is cached goes back; then all that the other pools of the budget have.
//! 8. While another thread has memory on its way, in any pool of the budget, the request waits for it, up to
//!    [`MAX_WAITS`] times (about 10 s), unless it joins the line of requests that wait. If a look under all locks
//!    ([`refusal::has_free`]) finds free memory, or some came back since the last step began, all that is cached goes
//!    back, up to [`MAX_REPEATS`] times. Then [`PoolBuilder::on_shortage`](crate::PoolBuilder::on_shortage) is called,
//!    up to [`MAX_ASKS`] times, and the same follows if it returns true.
//! 9. [`refusal::refuse`]: an error with the figures of that moment and a verdict.
//!
//! A request on a stream under capture searches its private pool first, and then memory that needs no wait. A refusal
//! for another reason, such as a lost device, ends the search at once.

use crate::block::PoolRequest;
use crate::blocks::Effort;
#[cfg(any(loom, shuttle))]
use crate::checker::thread;
use crate::error::Figures;
use crate::limits::{InShortage, Shortfall};
use crate::observe::Stage;
use crate::port::{DeviceAllocator, DeviceError};
use crate::shard::Grant;
use crate::store::refusal::Unserved;
use crate::store::{Store, bound, captures, grow, refusal, search, trim};
#[cfg(not(any(loom, shuttle)))]
use std::{thread, time::Duration};

/// How often a request that is about to be refused waits for memory that other threads have on its
/// way. That thread may be in a call of the device that waits for all work, or have no processor.
pub(super) const MAX_WAITS: u32 = if cfg!(loom) { 2 } else { 2000 };
/// How often it searches again because memory is free after its search.
pub(super) const MAX_REPEATS: u32 = if cfg!(loom) { 2 } else { 64 };
/// How often in a row it sees free memory of which none can be given back.
pub(super) const MAX_FAILED: u32 = 4;
/// How often the program is asked to spare something for one request.
pub(super) const MAX_ASKS: u32 = 8;

/// What is done next. Where it could be done, the request searches and asks the device again; else the next step
/// follows at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Search once more: what another thread has freed meanwhile would be the first to go.
    Search,
    /// Give cached memory back, of this pool: as much as is missing.
    TrimMissing,
    /// The same of the other pools of the budget.
    TrimOthers,
    /// Give all cached memory back, of this pool.
    TrimAll,
    /// The same of the other pools of the budget.
    TrimAllOthers,
    /// Wait for memory that other threads have on its way. Then all goes back.
    Await,
    /// Look whether memory is free that came after the search ([`Attempt::saw`]).
    Look,
    /// Ask the program to spare something. Then all goes back.
    Ask,
    Refuse,
}

/// How far a request has come.
pub(super) struct Attempt {
    /// Bytes that went back to the device for it.
    pub(super) given_back: u64,
    /// The counter of a request that the device serves now.
    pub(super) stage: Stage,
    /// How far shards are searched.
    pub(super) effort: Effort,
    /// How much other threads had given back before the last step and search.
    pub(super) returned: Option<u64>,
    /// The figures of the pool at the last search, for the error.
    pub(super) figures: Option<Box<Figures>>,
    /// The refusal of an event in the last search.
    pub(super) refused: Option<DeviceError>,
    /// The step that was taken last.
    last: Option<Step>,
    /// Whether it joins the line of requests that wait, which wakes it when memory arrives.
    joins_line: bool,
    /// How often it may still wait, search again, and ask the program.
    pub(super) waits: u32,
    repeats: u32,
    asks: u32,
    /// Whether the last look saw free memory, and how often in a row none of that could be given back.
    saw_free: bool,
    failed: u32,
}

impl Attempt {
    pub(super) fn new(joins_line: bool) -> Self {
        Self {
            given_back: 0,
            stage: Stage::Device,
            effort: Effort::Bounded,
            returned: None,
            figures: None,
            refused: None,
            last: None,
            joins_line,
            waits: MAX_WAITS,
            repeats: MAX_REPEATS,
            asks: MAX_ASKS,
            saw_free: false,
            failed: 0,
        }
    }

    /// The next step. `fits`: the limits could hold the request; one above them takes no cached memory from
    /// those below it. `on_its_way`: other threads have memory outside of all lists.
    pub(super) fn next(&mut self, fits: bool, on_its_way: bool) -> Step {
        let waits = on_its_way && !self.joins_line && self.waits > 0;
        let step = match self.last {
            _ if !fits && self.last != Some(Step::Ask) => Step::Ask,
            None => Step::Search,
            Some(Step::Search) => Step::TrimMissing,
            Some(Step::TrimMissing) => Step::TrimOthers,
            Some(Step::TrimOthers) => Step::TrimAll,
            Some(Step::TrimAll) => Step::TrimAllOthers,
            Some(Step::TrimAllOthers | Step::Await) if waits => Step::Await,
            Some(Step::TrimAllOthers | Step::Await) => Step::Look,
            Some(Step::Look) => Step::Ask,
            Some(Step::Ask | Step::Refuse) => Step::Refuse,
        };
        let step = if step == Step::Ask && self.asks == 0 { Step::Refuse } else { step };
        match step {
            Step::TrimMissing | Step::TrimOthers => self.stage = Stage::Trimmed,
            Step::TrimAll | Step::TrimAllOthers => self.stage = Stage::Cleared,
            Step::Ask => self.asks -= 1,
            _ => {}
        }
        self.last = Some(step);
        step
    }

    /// Whether a look at free memory is worth its locks: not where none of it can be given back.
    pub(super) fn may_look(&self) -> bool {
        self.failed < MAX_FAILED
    }

    /// After a look. `free`: there is free memory. `came_back`: other threads have given some back since the last
    /// step and search began. Returns whether the request searches again.
    pub(super) fn saw(&mut self, free: bool, came_back: bool) -> bool {
        self.saw_free = free;
        let again = self.repeats > 0 && (free || came_back);
        if again {
            self.repeats -= 1;
            self.last = Some(Step::TrimAllOthers);
        }
        again
    }

    /// After a call of the program, which has spared something: all steps that wait and look are taken anew.
    pub(super) fn spared(&mut self) {
        self.stage = Stage::Spared;
        self.last = Some(Step::TrimAllOthers);
    }

    /// After a step that gave `bytes` bytes back, and before the next search. `returned`: as of before the step.
    pub(super) fn gave(&mut self, bytes: u64, returned: u64) {
        let was_in_vain = std::mem::take(&mut self.saw_free) && bytes == 0;
        self.failed = if was_in_vain { self.failed + 1 } else { 0 };
        self.given_back += bytes;
        self.effort = Effort::All;
        self.returned = Some(returned);
    }
}

/// Serves a request.
pub(crate) fn allocate<A: DeviceAllocator>(
    store: &Store<A>,
    request: &PoolRequest<'_, A>,
) -> Result<Grant<A>, Unserved> {
    let is_own =
        request.private.is_none() && search::searches(store, request) && !store.layout.uncached;
    if is_own && let Some(grant) = store.hit_any(request) {
        return Ok(grant);
    }
    let mut attempt = Attempt::new(request.joins_line);
    let mut error = match find_or_grow(store, request, &mut attempt) {
        Ok(grant) => return Ok(grant),
        Err(error) => error,
    };
    while error.is_out_of_memory() {
        let fits = could_hold(store, request.class.bytes);
        // Before the step: what comes back after it may need another one.
        let returned = store.transit().returns_of_others();
        let step = attempt.next(fits, store.transit().others_have_pieces());
        let given_back = match step {
            Step::Search => match find(store, request, &mut attempt) {
                Some(grant) => return Ok(grant),
                None => None,
            },
            Step::TrimMissing => Some(trim::trim_short(store, missing(store, request))),
            Step::TrimOthers => trim_others(store, request, missing(store, request)),
            Step::TrimAll => Some(trim::trim_short(store, u64::MAX)),
            Step::TrimAllOthers => trim_others(store, request, u64::MAX),
            Step::Await => {
                await_others(store, &mut attempt);
                Some(trim_all(store, request))
            }
            Step::Look => {
                look_again(store, request, error, &mut attempt).then(|| trim_all(store, request))
            }
            Step::Ask => {
                ask_program(store, request, &mut attempt).then(|| trim_all(store, request))
            }
            Step::Refuse => break,
        };
        let Some(given_back) = given_back else { continue };
        attempt.gave(given_back, returned);
        store.calls.lock().num_alloc_retries += 1;
        error = match find_or_grow(store, request, &mut attempt) {
            Ok(grant) => return Ok(grant),
            Err(error) => error,
        };
    }
    store.calls.lock().num_ooms += 1;
    Err(unserved(store, request, error, attempt))
}

/// The stages from 2 to 5. Returns the device's error: what an event refuses is told at the
/// end, since giving memory back may still help.
fn find_or_grow<A: DeviceAllocator>(
    store: &Store<A>,
    request: &PoolRequest<'_, A>,
    attempt: &mut Attempt,
) -> Result<Grant<A>, DeviceError> {
    attempt.refused = None;
    let home = store.home(request);
    let private = request.private.and_then(|id| captures::find(store, request, id));
    if let Some(grant) = private {
        return Ok(served(store, home, Stage::Private, grant));
    }
    if let Some(grant) = find(store, request, attempt) {
        return Ok(grant);
    }
    attempt.given_back += trim::free_before_growing(store, home, attempt.effort).bytes;
    let grant =
        grow::grow(store, request).inspect_err(|_| bound::forget_refused(store, request))?;
    count_out_of_private(store, request);
    Ok(served(store, home, attempt.stage, grant))
}

/// The stages from 2 to 4.
fn find<A: DeviceAllocator>(
    store: &Store<A>,
    request: &PoolRequest<'_, A>,
    attempt: &mut Attempt,
) -> Option<Grant<A>> {
    let found = search::search(store, request, attempt.effort);
    let (stage, mut grant) = search::note(found, &mut attempt.refused)?;
    grant.record.join_private(request.private);
    count_out_of_private(store, request);
    Some(served(store, store.home(request), stage, grant))
}

/// Counts a shared block that a private pool has from now on.
fn count_out_of_private<A: DeviceAllocator>(store: &Store<A>, request: &PoolRequest<'_, A>) {
    if let Some(id) = request.private {
        store.privates.count_out(id);
    }
}

fn served<A: DeviceAllocator>(
    store: &Store<A>,
    at: usize,
    stage: Stage,
    grant: Grant<A>,
) -> Grant<A> {
    if store.settings.statistics {
        store.shards.lock(at).counts.served_by.count(stage);
    }
    grant
}

/// Whether the limits and the device are large enough for a request of `bytes` bytes alone, in
/// whole pages where the device has pages.
pub(crate) fn could_hold<A: DeviceAllocator>(store: &Store<A>, bytes: u64) -> bool {
    let bytes = store.layout.bytes_to_grow(bytes);
    let fits = |total| bytes <= total;
    store.ledger.could_hold(bytes) && store.allocator.total_bytes().is_none_or(fits)
}

/// The bytes that must go back for a request.
fn missing<A: DeviceAllocator>(store: &Store<A>, request: &PoolRequest<'_, A>) -> u64 {
    let bytes = store.layout.bytes_to_grow(request.class.bytes);
    let Shortfall { of_pool, of_budget } = store.ledger.shortfall(bytes);
    match of_pool.max(of_budget) {
        0 => bytes, // the device is short, not a limit
        missing => missing,
    }
}

/// Gives back cached memory of the other pools of the budget; `None` if there are none that help: they
/// do not where this pool alone is at its own limit.
fn trim_others<A: DeviceAllocator>(
    store: &Store<A>,
    request: &PoolRequest<'_, A>,
    bytes: u64,
) -> Option<u64> {
    let needed = store.layout.bytes_to_grow(request.class.bytes);
    let Shortfall { of_pool, of_budget } = store.ledger.shortfall(needed);
    let (no_limit_is_short, help) = (of_pool.max(of_budget) == 0, of_pool == 0 || of_budget > 0);
    if help { store.ledger.trim_others(store.address(), bytes, no_limit_is_short) } else { None }
}

/// Gives all cached memory back, and that of other pools of the budget if it can help. None for a
/// request that the limits cannot hold, which the program may have raised.
fn trim_all<A: DeviceAllocator>(store: &Store<A>, request: &PoolRequest<'_, A>) -> u64 {
    if !could_hold(store, request.class.bytes) {
        return 0;
    }
    trim::trim_short(store, u64::MAX) + trim_others(store, request, u64::MAX).unwrap_or(0)
}

/// Waits for memory that other threads have on its way.
fn await_others<A: DeviceAllocator>(store: &Store<A>, attempt: &mut Attempt) {
    let before = attempt.returned;
    let is_same = || before == Some(store.transit().returns_of_others());
    while attempt.waits > 0 && store.transit().others_have_pieces() && is_same() {
        attempt.waits -= 1;
        rest(MAX_WAITS - attempt.waits);
    }
    attempt.waits = attempt.waits.saturating_sub(1);
}

/// Whether free memory is left after the last search, which another thread has put there. If not,
/// notes the figures of the pool.
fn look_again<A: DeviceAllocator>(
    store: &Store<A>,
    request: &PoolRequest<'_, A>,
    refusal: DeviceError,
    attempt: &mut Attempt,
) -> bool {
    let free = attempt.may_look() && refusal::has_free(store);
    let came_back = attempt.returned != Some(store.transit().returns_of_others());
    let again = attempt.saw(free, came_back);
    if !again {
        let figures = refusal::figures(store, refusal, Some(request.key.stream_id));
        attempt.figures = Some(Box::new(figures));
    }
    again
}

/// Asks the program to drop something.
fn ask_program<A: DeviceAllocator>(
    store: &Store<A>,
    request: &PoolRequest<'_, A>,
    attempt: &mut Attempt,
) -> bool {
    let Some(call) = store.on_shortage.lock().clone() else { return false };
    // What the program requests inside of the call is refused without another.
    let Some(_inside) = InShortage::enter() else { return false };
    let spared = call(request.class.bytes);
    if spared {
        attempt.spared();
    }
    spared
}

fn unserved<A: DeviceAllocator>(
    store: &Store<A>,
    request: &PoolRequest<'_, A>,
    error: DeviceError,
    attempt: Attempt,
) -> Unserved {
    let bytes = request.class.bytes;
    let Attempt { given_back, figures, returned, refused, .. } = attempt;
    Unserved {
        cause: refused.unwrap_or(error),
        given_back,
        rounded: if could_hold(store, bytes) { bytes } else { store.layout.bytes_to_grow(bytes) },
        stream: Some(request.key.stream_id),
        figures,
        returned,
        freed_meanwhile: None,
    }
}

/// How long the wait of a request with this number, from 1, sleeps; `None`: it only lets other threads run.
#[cfg(not(any(loom, shuttle)))]
fn rest_of(number: u32) -> Option<Duration> {
    match number {
        ..=100 => None,
        101..=1000 => Some(Duration::from_micros(100)),
        _ => Some(Duration::from_millis(10)),
    }
}

/// Lets other threads run.
fn rest(number: u32) {
    #[cfg(not(any(loom, shuttle)))]
    if let Some(rest) = rest_of(number) {
        return thread::sleep(rest);
    }
    let _ = number;
    thread::yield_now();
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use Step::{Ask, Await, Look, Refuse, Search, TrimAll, TrimAllOthers, TrimMissing, TrimOthers};

    const TRIMS: [Step; 5] = [Search, TrimMissing, TrimOthers, TrimAll, TrimAllOthers];

    /// The steps of an attempt that never succeeds, where looks and the program say what `look` and `ask` do.
    fn steps(
        joins_line: bool,
        mut now: impl FnMut(Step) -> (bool, bool),
        mut look: impl FnMut() -> bool,
        mut ask: impl FnMut() -> bool,
    ) -> (Vec<Step>, Attempt) {
        let (mut attempt, mut steps) = (Attempt::new(joins_line), Vec::new());
        let mut last = Search;
        while last != Refuse {
            let (fits, on_its_way) = now(last);
            last = attempt.next(fits, on_its_way);
            steps.push(last);
            match last {
                Look => {
                    let free = attempt.may_look() && look();
                    if attempt.saw(free, false) {
                        attempt.gave(0, 0);
                    }
                }
                Ask if ask() => {
                    attempt.spared();
                    attempt.gave(0, 0);
                }
                Await => {
                    attempt.waits -= 1;
                    attempt.gave(0, 0);
                }
                _ => {}
            }
        }
        (steps, attempt)
    }

    fn after_trims(steps: &[Step]) -> &[Step] {
        assert_eq!(steps[..TRIMS.len()], TRIMS);
        &steps[TRIMS.len()..]
    }

    #[test]
    fn a_request_in_vain_takes_each_step_once() {
        let (steps, attempt) = steps(false, |_| (true, false), || false, || false);
        assert_eq!(after_trims(&steps), [Look, Ask, Refuse]);
        assert_eq!((attempt.stage, attempt.effort), (Stage::Cleared, Effort::Bounded));
    }

    #[test]
    fn one_above_the_limits_asks_the_program_alone() {
        let (steps, _) = steps(false, |_| (false, true), || true, || false);
        assert_eq!(steps, [Ask, Refuse]);
    }

    #[test]
    fn a_limit_that_the_program_raises_lets_it_look() {
        let mut asked = 0;
        let now = |last| (last == Ask || last == Look, false);
        let (steps, attempt) = steps(
            false,
            now,
            || false,
            || {
                asked += 1;
                asked == 1
            },
        );
        assert_eq!(steps, [Ask, Look, Ask, Refuse]);
        assert_eq!((attempt.stage, attempt.effort), (Stage::Spared, Effort::All));
    }

    #[test]
    fn what_is_on_its_way_is_awaited_but_by_one_that_joins_the_line() {
        let (steps_of_one, attempt) = steps(false, |_| (true, true), || false, || false);
        let rest = after_trims(&steps_of_one);
        assert_eq!(rest.len(), MAX_WAITS as usize + 3);
        assert!(rest[..MAX_WAITS as usize].iter().all(|step| *step == Await), "{rest:?}");
        assert_eq!(
            (rest[MAX_WAITS as usize..].to_vec(), attempt.waits),
            (vec![Look, Ask, Refuse], 0)
        );
        let (steps, _) = steps(true, |_| (true, true), || false, || false);
        assert_eq!(after_trims(&steps), [Look, Ask, Refuse]);
    }

    /// So long may another thread be in a call of the device, or wait for a processor.
    #[test]
    fn a_request_waits_for_others_for_ten_seconds() {
        let all: Duration = (1..=MAX_WAITS).filter_map(rest_of).sum();
        assert!((10..=11).contains(&all.as_secs()), "{all:?}");
    }

    #[test]
    fn free_memory_that_cannot_be_given_back_is_seen_a_few_times() {
        let (steps, _) = steps(false, |_| (true, false), || true, || false);
        let looks = [Look; 1 + MAX_FAILED as usize];
        assert_eq!(after_trims(&steps), [&looks[..], &[Ask, Refuse]].concat());
    }

    #[test]
    fn what_others_give_back_lets_it_search_a_bounded_number_of_times() {
        let mut attempt = Attempt::new(false);
        let mut again = 0;
        while attempt.saw(false, true) {
            attempt.gave(64, again);
            again += 1;
        }
        assert_eq!((again, attempt.given_back), (u64::from(MAX_REPEATS), 64 * again));
        assert_eq!(attempt.returned, Some(again - 1));
    }

    #[test]
    fn the_program_is_asked_a_bounded_number_of_times() {
        let (steps, attempt) = steps(false, |_| (true, false), || false, || true);
        let asks = [Look, Ask].repeat(MAX_ASKS as usize);
        assert_eq!(after_trims(&steps), [&asks[..], &[Look, Refuse]].concat());
        assert_eq!(attempt.stage, Stage::Spared);
    }
}
