//! Private pools: the streams that are bound to each, and its blocks, which are kept whole, with their records,
//! until the graph goes.
//!
//! Work that is captured into a graph runs again with each launch, at the same addresses. Memory
//! that a capture allocates therefore comes from a private pool, goes back to it, and serves no
//! other requests as long as the graph can be launched. None of this is on the hot path, which
//! reads one flag.

use crate::block::flags::CLEAN;
use crate::block::record::{Record, RecordOwner};
use crate::block::{PoolRequest, PrivateId};
use crate::limits::InTransit;
use crate::port::{DeviceAllocator, MarkOf, StreamClock, StreamOf};
use crate::ranges::node::NodeState;
use crate::shard::Grant;
use crate::store::hit::{BOUND, Flags};
use crate::store::{Store, free};
use crate::stream::LastUses;
use crate::sys::Mutex;
use crate::sys::atomic::AtomicBool;
use crate::sys::atomic::Ordering::Relaxed;
use std::collections::HashMap;
use std::sync::Arc;

/// Takes a block of the private pool that the stream is bound to: a hit in stream order.
pub(super) fn find<A: DeviceAllocator>(
    store: &Store<A>,
    request: &PoolRequest<'_, A>,
    id: PrivateId,
) -> Option<Grant<A>> {
    // The graphs of a private pool run one after the other: its memory is behind what they do.
    let requester = store.requester_on(request.on);
    // What the CPU touches, it may touch only when no launch uses it.
    let is_done = |mark: &MarkOf<A>| requester.clock.is_done(*mark) == Ok(true);
    if requester.cpu_touches && !store.privates.behind(id).iter().all(is_done) {
        return None;
    }
    let ready = |record: &mut Record<A>| record.marks.get_mut().is_ready(&requester);
    let mut record = store.privates.take(id, request, ready)?;
    let at = free::shard_of(store, &mut record);
    let heap = &mut *store.shards.lock(at);
    if let Some(part) = record.part() {
        heap.ranges.nodes[part.range].state = NodeState::Live;
    }
    record.requested = request.requested;
    *record.uses_mut() = LastUses::new(requester.clock.mark(request.stream));
    heap.accounts.out(record.bytes, request.requested);
    heap.count_hit(request, record.is_clean(), store.settings.statistics);
    Some(Grant { record, fresh: false })
}

/// Frees a block into the private pool that it belongs to, or into the shards if that is gone.
/// Returns the shard that counts the buffer.
#[cold]
pub(crate) fn free<A: DeviceAllocator>(store: &Store<A>, mut record: RecordOwner<A>) -> usize {
    record.flags.set(CLEAN, false); // a later launch of the graph may write it
    let _in_transit = InTransit::new(store.transit());
    let at = free::shard_of(store, &mut record);
    {
        let heap = &mut *store.shards.lock(at);
        heap.accounts.freed(record.bytes, record.requested);
        if let Some(part) = record.part() {
            heap.ranges.nodes[part.range].state = NodeState::Private;
        }
    }
    match store.privates.keep(store.allocator.clock(), record) {
        Some(anybodys) => free::evict_after_free(store, free::free_shared(store, anybodys, false)),
        None => store.shards.lock(at).not_kept += 1,
    }
    at
}

/// Frees the blocks that lay in a private pool which is gone. All of them are free memory
/// before the device is called, so a panic of the device loses one block at most.
pub(crate) fn free_all<A: DeviceAllocator>(
    store: &Store<A>,
    records: Vec<RecordOwner<A>>,
    in_transit: InTransit<'_>,
) {
    let freed: Vec<_> =
        records.into_iter().map(|record| free::free_shared(store, record, false)).collect();
    drop(in_transit);
    for freed in freed {
        free::evict_after_free(store, freed);
    }
}

pub(crate) type Launching = parking_lot::ReentrantMutex<()>;

pub(crate) struct Privates<A: DeviceAllocator> {
    /// Whether any stream is bound.
    bound: AtomicBool,
    inner: Mutex<PrivateState<A>>,
}

struct PrivateState<A: DeviceAllocator> {
    next: PrivateId,
    /// The pool of each bound stream, by stream id.
    by_stream: HashMap<u64, PrivateId>,
    pools: HashMap<PrivateId, Private<A>>,
}

struct Private<A: DeviceAllocator> {
    /// Cached blocks, the newest last.
    cached: Vec<RecordOwner<A>>,
    /// Number of blocks in use.
    out: usize,
    /// Marks that all memory of the pool is ordered after, besides the marks of each block: those
    /// that the captured work was ordered after, and the last launch on each stream. At most one of
    /// each stream, the latest.
    behind: Vec<MarkOf<A>>,
    launching: Arc<Launching>,
    /// Whether nobody tells of launches: nothing can be ordered in front of them.
    is_untold: bool,
    /// True once the owner was dropped. Blocks that are freed then may serve all requests once the
    /// launches are done.
    closed: bool,
}

impl<A: DeviceAllocator> Privates<A> {
    pub(crate) fn new() -> Self {
        let inner =
            PrivateState { next: PrivateId::MIN, by_stream: HashMap::new(), pools: HashMap::new() };
        Self { bound: AtomicBool::new(false), inner: Mutex::new(inner) }
    }

    /// Opens a pool and returns its number. `is_untold`: whether nobody tells of launches.
    pub(crate) fn open(&self, is_untold: bool) -> PrivateId {
        let inner = &mut *self.inner.lock();
        let id = inner.next;
        inner.next = id.saturating_add(1); // no program opens 2^32 pools
        let (cached, behind, launching) = (Vec::new(), Vec::new(), Arc::default());
        let new = Private { cached, out: 0, behind, launching, is_untold, closed: false };
        inner.pools.insert(id, new);
        id
    }

    /// Binds a stream to a pool; returns false if it is bound already.
    pub(crate) fn bind(&self, stream_id: u64, id: PrivateId, flags: &Flags) -> bool {
        let inner = &mut *self.inner.lock();
        let free = !inner.by_stream.contains_key(&stream_id);
        if free {
            inner.by_stream.insert(stream_id, id);
            self.note_bound(inner, flags);
        }
        free
    }

    /// Unbinds a stream of a pool.
    pub(crate) fn unbind_one(&self, stream_id: u64, id: PrivateId, flags: &Flags) {
        let inner = &mut *self.inner.lock();
        if inner.by_stream.get(&stream_id) == Some(&id) {
            inner.by_stream.remove(&stream_id);
            self.note_bound(inner, flags);
        }
    }

    /// Unbinds all streams of a pool.
    pub(crate) fn unbind(&self, id: PrivateId, flags: &Flags) {
        let inner = &mut *self.inner.lock();
        inner.by_stream.retain(|_, of| *of != id);
        self.note_bound(inner, flags);
    }

    /// Stores whether any stream is bound. The caller holds the lock.
    fn note_bound(&self, inner: &PrivateState<A>, flags: &Flags) {
        let any = !inner.by_stream.is_empty();
        self.bound.store(any, Relaxed);
        flags.set(BOUND, any);
    }

    /// Returns whether a thread holds a lock.
    pub(crate) fn is_locked(&self) -> bool {
        let Some(inner) = self.inner.try_lock() else { return true };
        inner.pools.values().any(|pool| pool.launching.is_locked())
    }

    /// Returns the lock under which a graph is launched, or put in order with its launches. It is
    /// held while the program's code launches, which may launch again on the same thread.
    pub(crate) fn launching(&self, id: PrivateId) -> Arc<Launching> {
        let inner = self.inner.lock();
        inner.pools.get(&id).map(|pool| pool.launching.clone()).unwrap_or_default()
    }

    /// Returns whether any stream is bound.
    #[inline]
    pub(crate) fn are_bound(&self) -> bool {
        self.bound.load(Relaxed)
    }

    /// Returns the pool that a stream is bound to, and whether nobody tells of its launches.
    #[inline]
    pub(crate) fn of(&self, stream_id: u64) -> Option<(PrivateId, bool)> {
        // The thread that binds a stream also gives the work to it: it is this thread, or its work
        // comes after that of this thread.
        if self.are_bound() { self.bound_to(stream_id) } else { None }
    }

    #[cold]
    fn bound_to(&self, stream_id: u64) -> Option<(PrivateId, bool)> {
        let inner = self.inner.lock();
        let id = *inner.by_stream.get(&stream_id)?;
        Some((id, inner.pools.get(&id).is_some_and(|pool| pool.is_untold)))
    }

    /// Takes the newest cached block that serves the request and for which `ready` returns true.
    pub(crate) fn take(
        &self,
        id: PrivateId,
        request: &PoolRequest<'_, A>,
        mut ready: impl FnMut(&mut Record<A>) -> bool,
    ) -> Option<RecordOwner<A>> {
        let inner = &mut *self.inner.lock();
        let pool = inner.pools.get_mut(&id)?;
        let serves = |record: &mut RecordOwner<A>| record.serves(request) && ready(record);
        let at = pool.cached.iter_mut().rposition(serves)?;
        pool.out += 1;
        Some(pool.cached.remove(at))
    }

    /// Counts a block that comes from outside the pool and is in use at once.
    pub(crate) fn count_out(&self, id: PrivateId) {
        if let Some(pool) = self.inner.lock().pools.get_mut(&id) {
            pool.out += 1;
        }
    }

    /// Keeps a block that is freed. Returns the block if its pool is closed, so that it can serve
    /// all requests.
    pub(crate) fn keep(
        &self,
        clock: &A::Clock,
        mut record: RecordOwner<A>,
    ) -> Option<RecordOwner<A>> {
        let inner = &mut *self.inner.lock();
        let id = record.private()?;
        let Some(pool) = inner.pools.get_mut(&id) else {
            record.join_private(None); // the pool went while the request was under way
            return Some(record);
        };
        pool.out -= 1;
        if !pool.closed {
            pool.cached.push(record);
            return None;
        }
        record.leave_private(clock, &pool.behind);
        if pool.out == 0 {
            inner.pools.remove(&id);
        }
        Some(record)
    }

    /// Removes a block in use from its pool and from the cache for good.
    pub(crate) fn release(&self, clock: &A::Clock, record: &mut Record<A>) {
        let inner = &mut *self.inner.lock();
        let Some(id) = record.private() else { return };
        let Some(pool) = inner.pools.get_mut(&id) else { return };
        record.leave_private(clock, &pool.behind);
        pool.out -= 1;
        if pool.closed && pool.out == 0 {
            inner.pools.remove(&id);
        }
    }

    /// Returns the marks that all memory of a pool is ordered after, besides the marks of each
    /// block.
    pub(crate) fn behind(&self, id: PrivateId) -> Vec<MarkOf<A>> {
        self.inner.lock().pools.get(&id).map(|pool| pool.behind.clone()).unwrap_or_default()
    }

    /// Adds a mark that all memory of the pool is ordered after. Keeps the later mark of each stream:
    /// the marks of a capture come in the order in which its work used the buffers.
    pub(crate) fn put_behind(&self, id: PrivateId, clock: &A::Clock, mark: MarkOf<A>) {
        let inner = &mut *self.inner.lock();
        let pool = inner.pools.get_mut(&id).filter(|pool| !pool.is_untold);
        let Some(pool) = pool else { return };
        pool.behind.retain(|known| !clock.is_obsolete(*known));
        match pool.behind.iter_mut().find(|known| clock.same_stream(**known, mark)) {
            Some(known) => *known = clock.later(*known, mark),
            None => pool.behind.push(mark),
        }
    }

    /// Notes a launch on `on`, which was ordered after all marks of the pool: what is behind the
    /// launch is behind them. The caller holds the lock of the launches.
    pub(crate) fn launched(&self, id: PrivateId, clock: &A::Clock, on: &StreamOf<A>) {
        let inner = &mut *self.inner.lock();
        let Some(pool) = inner.pools.get_mut(&id) else { return };
        let is_over = |mark: MarkOf<A>| clock.is_ordered(on, mark) || clock.is_seen_done(mark);
        pool.behind.retain(|known| !is_over(*known));
        pool.behind.push(clock.mark(on));
    }

    /// Returns how many marks the memory of any pool is ordered after, and how many streams are bound.
    #[cfg(feature = "check")]
    pub(crate) fn count_marks_and_streams(&self) -> (usize, usize) {
        let inner = self.inner.lock();
        (inner.pools.values().map(|pool| pool.behind.len()).sum(), inner.by_stream.len())
    }

    /// Returns the bytes of a pool's cached blocks.
    pub(crate) fn idle_bytes(&self, id: PrivateId) -> u64 {
        let inner = self.inner.lock();
        inner.pools.get(&id).map_or(0, |pool| pool.cached.iter().map(|record| record.bytes).sum())
    }

    /// Calls `look` with each cached block of each pool.
    pub(crate) fn each(&self, mut look: impl FnMut(&Record<A>)) {
        let inner = self.inner.lock();
        inner.pools.values().flat_map(|pool| &pool.cached).for_each(|record| look(record));
    }

    /// Returns the bytes of the cached blocks of all pools.
    pub(crate) fn all_idle_bytes(&self) -> u64 {
        let inner = self.inner.lock();
        let cached = inner.pools.values().flat_map(|pool| &pool.cached);
        cached.map(|record| record.bytes).sum()
    }

    /// Closes a pool whose owner is dropped. Returns its cached blocks, which may serve all
    /// requests once the launches are done.
    pub(crate) fn close(
        &self,
        id: PrivateId,
        clock: &A::Clock,
        flags: &Flags,
    ) -> Vec<RecordOwner<A>> {
        self.unbind(id, flags);
        let inner = &mut *self.inner.lock();
        let Some(pool) = inner.pools.get_mut(&id) else { return Vec::new() };
        pool.closed = true;
        let mut cached = std::mem::take(&mut pool.cached);
        for record in &mut cached {
            record.leave_private(clock, &pool.behind);
        }
        if pool.out == 0 {
            inner.pools.remove(&id);
        }
        cached
    }
}
