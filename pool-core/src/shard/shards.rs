//! The shards of a pool, and which of them a request begins with.
#![expect(unsafe_code, reason = "shards are reached by their addresses")]

use crate::block::Key;
use crate::port::{DeviceAllocator, StreamClock};
use crate::shard::Heap;
use crate::sys::atomic::{AtomicU32, Ordering::Acquire, Ordering::Release};
use crate::sys::{Lock, LockGuard, thread_number};
use std::hint;
use std::ops::ControlFlow;
// Not words that a build counts or a checker knows: they are written under the lock of the first shard.
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed};

/// Shards of a pool at most: a power of two.
pub(crate) const MAX_SHARDS: usize = if cfg!(any(loom, shuttle)) { 4 } else { 64 };

/// Tries of a busy home before a thread takes another one: a thread that looks there for blocks is gone
/// by then, and one that stays elsewhere leaves behind all that it warmed.
const MAX_TRIES: u32 = if cfg!(any(loom, shuttle)) { 1 } else { 100 };

/// What others may know without the lock of the shard. It is written under the lock and lies beside it
/// ([`Shard`]), so that a hit writes one cache line for both.
#[derive(Debug, Default)]
pub(crate) struct Published {
    /// Bytes that buffers and private pools have of its ranges.
    used: AtomicU64,
}

impl Published {
    #[inline]
    pub(crate) fn note<A: DeviceAllocator>(&self, heap: &Heap<A>) {
        self.used.store(heap.ranges.used(), Relaxed);
    }
}

/// A shard alone on its cache lines (two of them: processors fetch them in pairs). The word that others
/// read is on that of the lock, which begins `heap`.
#[repr(C, align(128))]
pub(crate) struct Shard<A: DeviceAllocator> {
    /// What it lets the others know.
    pub(crate) published: Published,
    heap: Lock<Heap<A>>,
}

impl<A: DeviceAllocator> Shard<A> {
    /// Locks it ([`Shards::lock`]).
    #[inline]
    pub(crate) fn lock(&self) -> LockGuard<'_, Heap<A>> {
        Shards::entered(self.heap.lock())
    }
}

/// All shards of a pool.
pub(crate) struct Shards<A: DeviceAllocator> {
    /// The shards, and then the same ones in turn: so a number finds its home by a mask.
    table: [AtomicPtr<Shard<A>>; MAX_SHARDS],
    /// How many there are.
    count: AtomicU32,
    /// How many there may be.
    most: usize,
}

/// The number of the shard that a thread or stream with this number begins with.
fn home_of(number: usize, count: usize) -> usize {
    number % MAX_SHARDS % count
}

impl<A: DeviceAllocator> Shards<A> {
    /// One shard, which may become `most`.
    pub(crate) fn new(most: usize, first: Heap<A>) -> Self {
        let first = Self::shard(first);
        let table = std::array::from_fn(|_| AtomicPtr::new(first));
        Self { table, count: AtomicU32::new(1), most: most.clamp(1, MAX_SHARDS) }
    }

    fn shard(heap: Heap<A>) -> *mut Shard<A> {
        let (published, heap) = (Published::default(), Lock::new(heap));
        Box::into_raw(Box::new(Shard { published, heap }))
    }

    /// Adds shards, as `make` makes the heap of each number, until there are `count` or as many as
    /// there may be. The caller has the lock of the first shard, so no two threads do this at once.
    pub(crate) fn grow(&self, count: usize, make: impl Fn(u32) -> Heap<A>) {
        let (before, count) = (self.count.load(Acquire), count.min(self.most));
        for (number, at) in (before..).zip(before as usize..count) {
            self.table[at].store(Self::shard(make(number)), Release);
        }
        if count > before as usize {
            // A request that begins meanwhile finds a shard of before, or one of these.
            for at in count..MAX_SHARDS {
                self.table[at].store(self.table[at % count].load(Acquire), Release);
            }
            self.count.store(u32::try_from(count).unwrap_or(u32::MAX), Release);
        }
    }

    /// How many there are.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.count.load(Acquire) as usize
    }

    /// How many there may be.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Where a request or a whole block that is freed begins.
    pub(crate) fn home<K>(&self, key: &Key<K>) -> usize {
        home_of(Self::number(key), self.count())
    }

    /// Where this thread begins, in memory without streams.
    #[cfg(feature = "check")]
    pub(crate) fn home_of_thread(&self) -> usize {
        home_of(thread_number::home(), self.count())
    }

    /// What decides where a request begins: the thread in memory without streams; else the stream, so that
    /// any number of threads on one stream have one heap.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "any number will do")]
    fn number<K>(key: &Key<K>) -> usize {
        if A::Clock::HAS_STREAMS { key.stream_id as usize } else { thread_number::home() }
    }

    /// The shard where a request begins that waits for its lock.
    #[inline]
    pub(crate) fn home_of<K>(&self, key: &Key<K>) -> &Shard<A> {
        self.get(Self::number(key))
    }

    /// The shard of a number below their count. Any other number finds its home.
    #[inline]
    pub(crate) fn get(&self, at: usize) -> &Shard<A> {
        let shard = self.table[at % MAX_SHARDS].load(Acquire);
        // SAFETY: `shard` made it from a box, which goes with `self`.
        unsafe { &*shard }
    }

    /// Bytes that buffers and private pools have of a shard's ranges, as it let others know last.
    pub(crate) fn used_of(&self, at: usize) -> u64 {
        self.get(at).published.used.load(Relaxed)
    }

    /// Lets others know how much of its ranges a locked shard uses.
    pub(crate) fn publish(&self, heap: &Heap<A>) {
        self.get(heap.number as usize).published.note(heap);
    }

    /// Locks a shard. No device, observer or code of the program is called until the guard goes, and
    /// no other lock of a shard is waited for. Of the clock that is asked which needs no call of the device: marks, their
    /// streams and order (`mark`, `stream_id`, `same_stream`, `later`, `is_later`, `is_ordered`, `is_seen_done`,
    /// `is_submitted`, `has_event`, `is_retired`, `is_obsolete`, `can_order`).
    #[inline]
    pub(crate) fn lock(&self, at: usize) -> LockGuard<'_, Heap<A>> {
        self.get(at).lock()
    }

    /// Begins to count looks at ranges, in a build that does.
    #[inline]
    fn entered(heap: LockGuard<'_, Heap<A>>) -> LockGuard<'_, Heap<A>> {
        #[cfg(all(feature = "check", debug_assertions))]
        heap.ranges.start_visits();
        heap
    }

    /// As [`Shards::lock_home`], if the home is known and no thread is in it.
    #[inline]
    pub(crate) fn try_lock_home<K>(&self, key: &Key<K>) -> Option<LockGuard<'_, Heap<A>>> {
        let number = match A::Clock::HAS_STREAMS {
            true => Self::number(key),
            false => thread_number::known()?.home,
        };
        self.get(number).heap.try_lock().map(Self::entered)
    }

    /// Locks the home of a hit or of a whole block that is freed. In memory without streams, where
    /// the home is locked, this takes the next shard that is not; if that repeats, the thread stays there.
    #[inline]
    pub(crate) fn lock_home<K>(&self, key: &Key<K>) -> LockGuard<'_, Heap<A>> {
        let number = Self::number(key);
        match self.get(number).heap.try_lock() {
            Some(heap) => Self::entered(heap),
            None => self.lock_busy(number),
        }
    }

    #[cold]
    #[inline(never)]
    fn lock_busy(&self, number: usize) -> LockGuard<'_, Heap<A>> {
        for _ in 0..MAX_TRIES {
            hint::spin_loop();
            if let Some(heap) = self.get(number).heap.try_lock() {
                return Self::entered(heap);
            }
        }
        let count = self.count();
        let others = if A::Clock::HAS_STREAMS { 1..1 } else { 1..count };
        let home = home_of(number, count);
        for step in others {
            let other = (home + step) % count;
            if let Some(heap) = self.get(other).heap.try_lock() {
                let next = number.wrapping_add(step);
                thread_number::hop_to(if home_of(next, count) == other { next } else { other });
                return heap;
            }
        }
        self.lock(home)
    }

    /// Locks a shard if no thread is in it.
    pub(crate) fn try_lock(&self, at: usize) -> Option<LockGuard<'_, Heap<A>>> {
        self.get(at).heap.try_lock()
    }

    /// Locks a shard. For a request of the shard `of`, another one only if no thread is in it; without
    /// `of`, any.
    pub(crate) fn lock_for(&self, at: usize, of: Option<usize>) -> Option<LockGuard<'_, Heap<A>>> {
        if of.is_none_or(|home| home == at) { Some(self.lock(at)) } else { self.try_lock(at) }
    }

    /// Looks at the heaps of the other shards until `look` breaks, one after the other: first of those in which no
    /// thread is.
    pub(crate) fn each_other(
        &self,
        at: usize,
        mut look: impl FnMut(&mut Heap<A>) -> ControlFlow<()>,
    ) {
        let mut seen = 1_u64 << at;
        for of in [Some(at), None] {
            for other in (0..self.count()).filter(|other| *other != at) {
                if seen >> other & 1 == 1 {
                    continue;
                }
                let Some(mut heap) = self.lock_for(other, of) else { continue };
                seen |= 1 << other;
                if look(&mut heap).is_break() {
                    return;
                }
            }
        }
    }

    /// Locks all shards, in the order of their numbers.
    pub(crate) fn lock_all(&self) -> Vec<LockGuard<'_, Heap<A>>> {
        let mut all = vec![self.lock(0)]; // no shard is added from now on
        all.extend((1..self.count()).map(|at| self.lock(at)));
        all
    }

    /// Locks all shards if no thread is in any of them. It does not wait.
    pub(crate) fn try_lock_all(&self) -> Option<Vec<LockGuard<'_, Heap<A>>>> {
        let first = self.try_lock(0)?; // no shard is added from now on
        let others = (1..self.count()).map(|at| self.try_lock(at));
        std::iter::once(Some(first)).chain(others).collect()
    }

    /// Whether a thread has the lock of a shard.
    pub(crate) fn is_locked(&self, at: usize) -> bool {
        self.get(at).heap.is_locked()
    }

    /// Whether a thread has the lock of any.
    pub(crate) fn is_any_locked(&self) -> bool {
        (0..self.count()).any(|at| self.is_locked(at))
    }
}

impl<A: DeviceAllocator> Drop for Shards<A> {
    fn drop(&mut self) {
        for at in 0..self.count() {
            // SAFETY: `shard` made it from a box; the first `count` are different ones, and no code uses them
            // any more.
            drop(unsafe { Box::from_raw(*self.table[at].get_mut()) });
        }
    }
}

// SAFETY: the table is the owner of its shards, which are as good as the shards themselves.
unsafe impl<A: DeviceAllocator> Send for Shards<A> where Lock<Heap<A>>: Send {}
// SAFETY: as above.
unsafe impl<A: DeviceAllocator> Sync for Shards<A> where Lock<Heap<A>>: Sync {}
