//! The search of a request that its own free list does not serve: memory of other streams and other
//! shards, memory behind an event, and neighbours that coalesce.
//!
//! Memory that is not ready is asked about, one block or range after the other, which is in no list meanwhile.

use crate::block::PoolRequest;
use crate::blocks::Effort;
use crate::limits::InTransit;
use crate::observe::{Reason, Stage};
use crate::port::{DeviceAllocator, DeviceError, MarkOf, Order, StreamClock};
use crate::ranges::returnable;
use crate::shard::{Behind, Grant, Heap, MAX_NODES, Search, Taken};
use crate::store::{Goal, Store, bound, steal, trim};
use crate::stream::{Pending, Requester, StealPolicy};

/// Streams that are asked about for one request, unless it would be refused.
const MAX_STREAMS: usize = 16;
/// Streams that are queried before the taker's stream waits for one of them.
const MAX_QUERIED: usize = 2;

/// Memory that the device is asked about. It goes back into its list when this is dropped.
struct Asked<'s, A: DeviceAllocator> {
    store: &'s Store<A>,
    at: usize,
    taken: Option<Taken<A>>,
    /// What it is behind.
    after: Pending<MarkOf<A>>,
    _in_transit: InTransit<'s>,
}

impl<A: DeviceAllocator> Drop for Asked<'_, A> {
    fn drop(&mut self) {
        if let Some(taken) = self.taken.take() {
            let (clock, rules) = (self.store.allocator.clock(), &self.store.settings.rules);
            self.store.shards.lock(self.at).put_back(taken, clock, rules);
        }
    }
}

/// Serves a request with memory that is not ready, without blocking the host: first what a query
/// finds done, then what is behind an event that exists, then behind one that is recorded now. Once
/// memory is short, also with what only a wait of the host makes ready.
///
/// # Errors
///
/// The device's refusal, if nothing could be had.
#[cold]
pub(super) fn find_not_ready<A: DeviceAllocator>(
    store: &Store<A>,
    request: &PoolRequest<'_, A>,
    effort: Effort,
) -> Result<Option<Grant<A>>, DeviceError> {
    let requester = store.requester(request);
    let mut refusal = None;
    if !requester.must_be_done() && requester.steal > StealPolicy::Never {
        // Work that waits for the taker's next kernel must not make the taker wait.
        let known = Requester { steal: StealPolicy::Ordered, ..requester };
        let query = |mark| known.query_done(mark);
        match ask(store, request, &known, (Effort::Bounded, MAX_QUERIED), query) {
            Ok(None) => {}
            Ok(found) => return Ok(found),
            Err(error) => refusal = Some(error),
        }
    }
    let steps = [StealPolicy::Never, StealPolicy::Ordered, StealPolicy::Wait];
    // Where the work must be done, one pass of queries is enough: that of the last policy.
    let last = |step: &StealPolicy| !requester.must_be_done() || *step == requester.steal;
    for steal in steps.into_iter().filter(|step| *step <= requester.steal).filter(last) {
        let step = Requester { steal, ..requester };
        match ask(store, request, &step, (effort, MAX_STREAMS), |mark| step.make_ready(mark)) {
            Ok(None) => {}
            Ok(found) => return Ok(found),
            Err(error) => refusal = refusal.or(Some(error)),
        }
    }
    if effort == Effort::All && requester.steal == StealPolicy::Wait {
        let last = Requester { host_waits: true, ..requester };
        match ask(store, request, &last, (effort, MAX_STREAMS), |mark| last.make_ready(mark)) {
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
fn ask<A: DeviceAllocator>(
    store: &Store<A>,
    request: &PoolRequest<'_, A>,
    requester: &Requester<'_, A::Clock>,
    (effort, streams): (Effort, usize),
    make_ready: impl Fn(MarkOf<A>) -> Result<Order, DeviceError>,
) -> Result<Option<Grant<A>>, DeviceError> {
    let (mut refused, mut refusal) = (Vec::new(), None);
    for at in shards_for(store, request, effort) {
        while effort == Effort::All || refused.len() < streams {
            let asked = take_to_ask(store, at, request, requester, &refused, effort);
            let Some(asked) = asked else { break };
            let mut behind = None;
            for mark in asked.after.marks() {
                let order = make_ready(*mark);
                behind = behind.or((order != Ok(Order::Ordered)).then_some(*mark));
                refusal = refusal.or(order.err());
            }
            if let Some(behind) = behind {
                refused.push(behind);
                continue;
            }
            return Ok(lend_asked(store, request, requester, asked));
        }
    }
    refusal.map_or(Ok(None), Err)
}

/// Takes out a block or a range that may be asked about. Not one behind a point of a stream that
/// was refused, nor behind a later one: each stream is asked about once.
fn take_to_ask<'s, A: DeviceAllocator>(
    store: &'s Store<A>,
    at: usize,
    request: &PoolRequest<'_, A>,
    requester: &Requester<'_, A::Clock>,
    refused: &[MarkOf<A>],
    effort: Effort,
) -> Option<Asked<'s, A>> {
    let clock = requester.clock;
    let may = |mark: MarkOf<A>| {
        !refused.iter().any(|old| clock.is_later(mark, *old)) && requester.may_query(mark)
    };
    let may = |behind: Behind<'_, A::Clock>| behind.all_are(A::MEMORY.cpu_touches, may);
    let search = Search { request, skips_own: false, effort };
    take_out(store, at, &search, may, |heap, mut taken| {
        let (after, in_transit) = (heap.hold(&mut taken), store.leaves(heap));
        Some(Asked { store, at, taken: Some(taken), after, _in_transit: in_transit })
    })
}

/// Lends what the device has made ready.
fn lend_asked<A: DeviceAllocator>(
    store: &Store<A>,
    request: &PoolRequest<'_, A>,
    requester: &Requester<'_, A::Clock>,
    mut asked: Asked<'_, A>,
) -> Option<Grant<A>> {
    let (clock, statistics) = (requester.clock, store.settings.statistics);
    let mark = clock.mark(request.stream);
    let lent = {
        let heap = &mut *store.shards.lock(asked.at);
        let lent = heap.lend_held(asked.taken.take()?, request, mark, statistics);
        store.shards.publish(heap);
        lent
    };
    Some(Grant::new(lent?, request, clock, false))
}

/// The shards that are searched.
#[derive(Clone, Copy)]
enum Reach {
    All,
    /// The home of a request, and shards that nobody uses.
    Idle,
    Home,
}

/// A grant, and the stage that served it.
pub(super) type Found<A> = Result<Option<(Stage, Grant<A>)>, DeviceError>;

/// The shards in which a request is searched, from its home on and round. Where memory is cheap to
/// make, a bounded search leaves shards that are in use alone; for whole blocks see `steal.rs`.
fn shards_for<A: DeviceAllocator>(
    store: &Store<A>,
    request: &PoolRequest<'_, A>,
    effort: Effort,
) -> impl Iterator<Item = usize> {
    let (home, count) = (store.home(request), store.shards.count());
    let reach = match () {
        () if !A::MEMORY.is_cheap || effort == Effort::All || count == 1 => Reach::All,
        () if !store.layout.is_arena() => Reach::Home,
        () if bound::may_grow_alone(store, home, request) => Reach::Idle,
        () => Reach::All,
    };
    (0..count).map(move |step| (home + step) % count).filter(move |at| match reach {
        Reach::All => true,
        Reach::Home => *at == home,
        Reach::Idle => *at == home || is_idle(store, *at),
    })
}

/// Whether nothing of a shard's ranges is lent, and no thread is in it.
fn is_idle<A: DeviceAllocator>(store: &Store<A>, at: usize) -> bool {
    store.shards.used_of(at) == 0 && !store.shards.is_locked(at)
}

/// Whether free memory may serve a request: not where it goes past a pool without an arena.
pub(super) fn searches<A: DeviceAllocator>(store: &Store<A>, request: &PoolRequest<'_, A>) -> bool {
    store.layout.is_arena() || request.class.is_cached()
}

/// The stages 2 to 4. The request's own free list was searched, unless the effort is `All`.
pub(super) fn search<A: DeviceAllocator>(
    store: &Store<A>,
    request: &PoolRequest<'_, A>,
    effort: Effort,
) -> Found<A> {
    if !searches(store, request) {
        return Ok(None);
    }
    if store.layout.uncached {
        // What frees left is the device's; a refusal is counted there.
        let _ = trim::evict(store, Goal::all(Reason::Bound), trim::First::Oldest(None));
        return Ok(None);
    }
    // A request with a private pool has not searched the memory of all.
    let own_first = request.private.is_some() || effort == Effort::All;
    let mut refused = None;
    for coalesced in [false, true] {
        if coalesced && !coalesce(store, request, effort) {
            break;
        }
        let own = if own_first || coalesced { store.hit_any(request) } else { None };
        let found = match own {
            Some(grant) => Some((Stage::Elsewhere, grant)),
            None => note(find_elsewhere(store, request, effort), &mut refused),
        };
        if let Some((stage, grant)) = found {
            return Ok(Some((if coalesced { Stage::Coalesced } else { stage }, grant)));
        }
    }
    refused.map_or(Ok(None), Err)
}

/// The stages 2 and 3: memory of other streams and shards, and behind events.
fn find_elsewhere<A: DeviceAllocator>(
    store: &Store<A>,
    request: &PoolRequest<'_, A>,
    effort: Effort,
) -> Found<A> {
    let home = store.home(request);
    for at in shards_for(store, request, effort) {
        let skips_own = at == home && effort == Effort::Bounded;
        // Without streams the hit has searched its home, or a neighbour if the home was busy. For that case
        // `steal` searches the home last.
        if skips_own && bound::moves_blocks(store) && !A::Clock::HAS_STREAMS {
            continue;
        }
        if let Some(grant) = find_ready(store, at, &Search { request, skips_own, effort }) {
            return Ok(Some((Stage::Elsewhere, grant)));
        }
    }
    if bound::moves_blocks(store) {
        if store.shards.count() == 1 || effort == Effort::All {
            bound::note_needed(store, request);
        } else if let Some(record) = steal::steal(store, request) {
            let grant = Grant::new(record, request, store.allocator.clock(), false);
            return Ok(Some((Stage::Elsewhere, grant)));
        }
    }
    let found = find_not_ready(store, request, effort)?;
    Ok(found.map(|grant| (Stage::BehindEvent, grant)))
}

/// Serves a request with memory of a shard that is ready as it is.
#[cold]
fn find_ready<A: DeviceAllocator>(
    store: &Store<A>,
    at: usize,
    search: &Search<'_, A>,
) -> Option<Grant<A>> {
    let (requester, statistics) = (store.requester(search.request), store.settings.statistics);
    let ready = |behind: Behind<'_, A::Clock>| behind.is_ready(&requester);
    let mark = requester.clock.mark(search.request.stream);
    let lent = take_out(store, at, search, ready, |heap, taken| {
        let lent = heap.lend(taken, search.request, mark, statistics);
        store.shards.publish(heap);
        lent
    });
    Some(Grant::new(lent?, search.request, requester.clock, false))
}

/// Takes free memory of a shard out of which `may` says so, and does `work` with it under the lock. With
/// all effort all ranges are looked at, a portion of them under the lock at a time.
fn take_out<A: DeviceAllocator, R>(
    store: &Store<A>,
    at: usize,
    search: &Search<'_, A>,
    may: impl Fn(Behind<'_, A::Clock>) -> bool,
    work: impl FnOnce(&mut Heap<A>, Taken<A>) -> Option<R>,
) -> Option<R> {
    let mut from = None;
    loop {
        let heap = &mut *store.shards.lock(at);
        match heap.take_out(search, from, &may) {
            Ok(taken) => return work(heap, taken),
            Err(next) => from = Some(next?),
        }
    }
}

/// Coalesces neighbours of several streams that may be waited for. Returns whether that made any
/// range larger.
fn coalesce<A: DeviceAllocator>(
    store: &Store<A>,
    request: &PoolRequest<'_, A>,
    effort: Effort,
) -> bool {
    let mut any = false;
    if store.layout.is_arena() {
        for at in shards_for(store, request, effort) {
            any |= coalesce_in(store, at, request, effort);
        }
    }
    any
}

#[cold]
fn coalesce_in<A: DeviceAllocator>(
    store: &Store<A>,
    at: usize,
    request: &PoolRequest<'_, A>,
    effort: Effort,
) -> bool {
    let (requester, mut any) = (store.requester(request), false);
    // What a capture takes behind no wait, no wait makes whole either.
    let needs_done = !requester.clock.takes_work(request.stream);
    let can = |mark: &MarkOf<A>| {
        let is_done = || requester.is_ready(*mark) || requester.clock.is_seen_done(*mark);
        requester.may_query(*mark)
            && requester.clock.is_submitted(*mark)
            && (!needs_done || is_done())
    };
    let may = |marks: &[MarkOf<A>]| marks.iter().all(can);
    let mut from = {
        let heap = &mut *store.shards.lock(at);
        let wanted = heap.ranges.config.request(&request.key, request.class.bytes);
        if !returnable::may_be_apart(&heap.ranges, &wanted) {
            return false;
        }
        if effort == Effort::Bounded { heap.ranges.cursor } else { 0 }
    };
    loop {
        let heap = &mut *store.shards.lock(at);
        let (coalesced, next) =
            returnable::coalesce_streams(&mut heap.ranges, requester.clock, from, MAX_NODES, may);
        heap.ranges.cursor = next.unwrap_or(0);
        any |= coalesced;
        match next {
            Some(next) if effort == Effort::All => from = next,
            _ => return any,
        }
    }
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
