//! The book of private pools: which streams are bound to one, and the idle blocks of each.
//!
//! Work that is captured into a graph runs again with each launch, at the same addresses. So what a
//! capture allocates comes from a private pool, goes back to it, and serves nobody else for as long
//! as the graph can be launched. All of this is off the hot path: one flag is read there.

use crate::block::flags::{BOUND, Flags};
use crate::block::record::{Record, RecordOwner};
use crate::block::request::Want;
use crate::device::{DeviceAllocator, MarkOf};
use crate::stream::clock::StreamClock;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The number of a private pool: not 0, so that a record has no word for "none".
pub(crate) type PrivateId = std::num::NonZeroU32;

pub(crate) struct Privates<A: DeviceAllocator> {
    /// Whether any stream is bound.
    bound: AtomicBool,
    book: Mutex<PrivateBook<A>>,
}

struct PrivateBook<A: DeviceAllocator> {
    next: PrivateId,
    /// The pool of a stream, by its lane.
    of_lane: HashMap<u64, PrivateId>,
    pools: HashMap<PrivateId, Private<A>>,
}

struct Private<A: DeviceAllocator> {
    /// Newest last.
    idle: Vec<RecordOwner<A>>,
    /// Blocks that somebody has.
    out: usize,
    /// What the memory is behind, besides its own marks: what the captured work was ordered behind,
    /// and the last launch on each stream.
    behind: Vec<MarkOf<A>>,
    /// Its owner is gone: what comes back is anybody's, once the launches are done.
    closed: bool,
}

impl<A: DeviceAllocator> Privates<A> {
    pub(crate) fn new() -> Self {
        let book =
            PrivateBook { next: PrivateId::MIN, of_lane: HashMap::new(), pools: HashMap::new() };
        Self { bound: AtomicBool::new(false), book: Mutex::new(book) }
    }

    /// A new pool.
    pub(crate) fn open(&self) -> PrivateId {
        let book = &mut *self.book.lock();
        let id = book.next;
        book.next = id.saturating_add(1); // no program opens 2^32 of them
        let (idle, behind) = (Vec::new(), Vec::new());
        book.pools.insert(id, Private { idle, out: 0, behind, closed: false });
        id
    }

    /// Binds a stream to a pool; returns false if it is bound already.
    pub(crate) fn bind(&self, lane: u64, id: PrivateId, flags: &Flags) -> bool {
        let book = &mut *self.book.lock();
        let free = !book.of_lane.contains_key(&lane);
        if free {
            book.of_lane.insert(lane, id);
            self.note_bound(book, flags);
        }
        free
    }

    /// Lets go of one stream.
    pub(crate) fn unbind_one(&self, lane: u64, flags: &Flags) {
        let book = &mut *self.book.lock();
        book.of_lane.remove(&lane);
        self.note_bound(book, flags);
    }

    /// Lets go of all streams of a pool.
    pub(crate) fn unbind(&self, id: PrivateId, flags: &Flags) {
        let book = &mut *self.book.lock();
        book.of_lane.retain(|_, of| *of != id);
        self.note_bound(book, flags);
    }

    /// Notes whether any stream is bound, under the lock.
    fn note_bound(&self, book: &PrivateBook<A>, flags: &Flags) {
        let any = !book.of_lane.is_empty();
        self.bound.store(any, Relaxed);
        flags.set(BOUND, any);
    }

    /// Whether a thread has the lock.
    pub(crate) fn is_locked(&self) -> bool {
        self.book.is_locked()
    }

    /// Whether any stream is bound.
    #[inline]
    pub(crate) fn are_bound(&self) -> bool {
        self.bound.load(Relaxed)
    }

    /// The pool that a stream is bound to.
    #[inline]
    pub(crate) fn of(&self, lane: u64) -> Option<PrivateId> {
        // Whoever binds a stream gives the work to it too, on this thread or after this thread.
        if self.are_bound() { self.bound_to(lane) } else { None }
    }

    #[cold]
    fn bound_to(&self, lane: u64) -> Option<PrivateId> {
        self.book.lock().of_lane.get(&lane).copied()
    }

    /// The newest idle block that serves, and that is `ready`.
    pub(crate) fn take(
        &self,
        id: PrivateId,
        want: &Want<'_, A>,
        mut ready: impl FnMut(&mut Record<A>) -> bool,
    ) -> Option<RecordOwner<A>> {
        let book = &mut *self.book.lock();
        let pool = book.pools.get_mut(&id)?;
        let serves = |record: &mut RecordOwner<A>| record.serves(want) && ready(record);
        let at = pool.idle.iter_mut().rposition(serves)?;
        pool.out += 1;
        Some(pool.idle.remove(at))
    }

    /// A block came from elsewhere into the pool and is lent at once.
    pub(crate) fn count_out(&self, id: PrivateId) {
        if let Some(pool) = self.book.lock().pools.get_mut(&id) {
            pool.out += 1;
        }
    }

    /// Keeps a block that comes back; returns it if it is anybody's now.
    pub(crate) fn keep(
        &self,
        clock: &A::Clock,
        mut record: RecordOwner<A>,
    ) -> Option<RecordOwner<A>> {
        let book = &mut *self.book.lock();
        let id = record.private?;
        let Some(pool) = book.pools.get_mut(&id) else { return Some(record) };
        pool.out -= 1;
        if !pool.closed {
            pool.idle.push(record);
            return None;
        }
        record.leave_private(clock, &pool.behind);
        if pool.out == 0 {
            book.pools.remove(&id);
        }
        Some(record)
    }

    /// A block that is out leaves the cache for good, and its pool with it.
    pub(crate) fn release(&self, clock: &A::Clock, record: &mut Record<A>) {
        let book = &mut *self.book.lock();
        let Some(id) = record.private else { return };
        let Some(pool) = book.pools.get_mut(&id) else { return };
        record.leave_private(clock, &pool.behind);
        pool.out -= 1;
        if pool.closed && pool.out == 0 {
            book.pools.remove(&id);
        }
    }

    /// What the memory of a pool is behind, besides its own marks.
    pub(crate) fn behind(&self, id: PrivateId) -> Vec<MarkOf<A>> {
        self.book.lock().pools.get(&id).map(|pool| pool.behind.clone()).unwrap_or_default()
    }

    /// Notes a mark that the memory is behind: the end of a launch.
    pub(crate) fn put_behind(&self, id: PrivateId, clock: &A::Clock, mark: MarkOf<A>) {
        if let Some(pool) = self.book.lock().pools.get_mut(&id) {
            pool.behind.retain(|known| !clock.same_stream(*known, mark));
            pool.behind.push(mark);
        }
    }

    /// Bytes of a pool's idle blocks.
    pub(crate) fn idle_bytes(&self, id: PrivateId) -> u64 {
        let book = self.book.lock();
        book.pools.get(&id).map_or(0, |pool| pool.idle.iter().map(|record| record.bytes).sum())
    }

    /// Bytes of the idle blocks of all pools.
    pub(crate) fn all_idle_bytes(&self) -> u64 {
        let book = self.book.lock();
        let idle = book.pools.values().flat_map(|pool| &pool.idle);
        idle.map(|record| record.bytes).sum()
    }

    /// The owner of a pool goes. Returns its idle blocks, which are anybody's once the launches are
    /// done.
    pub(crate) fn close(
        &self,
        id: PrivateId,
        clock: &A::Clock,
        flags: &Flags,
    ) -> Vec<RecordOwner<A>> {
        self.unbind(id, flags);
        let book = &mut *self.book.lock();
        let Some(pool) = book.pools.get_mut(&id) else { return Vec::new() };
        pool.closed = true;
        let mut idle = std::mem::take(&mut pool.idle);
        for record in &mut idle {
            record.leave_private(clock, &pool.behind);
        }
        if pool.out == 0 {
            book.pools.remove(&id);
        }
        idle
    }
}
