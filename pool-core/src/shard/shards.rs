//! The shards of a pool, and which of them a request begins with.

use crate::block::request::Key;
use crate::port::DeviceAllocator;
use crate::shard::State;
use crate::shard::published::Published;
use crate::sys::atomic::{AtomicU32, Ordering::Acquire, Ordering::Release};
use crate::sys::{Lock, LockGuard, thread_number};
use std::hint;
use std::sync::OnceLock;

/// Shards of a pool at most.
pub(crate) const MAX_SHARDS: usize = if cfg!(any(loom, shuttle)) { 4 } else { 64 };

/// Tries of a busy home before a thread takes another one: a thread that looks there for blocks is gone
/// by then, and one that stays elsewhere leaves behind all that it warmed.
const TRIES: u32 = if cfg!(any(loom, shuttle)) { 1 } else { 100 };

/// What decides where a request begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Homes {
    /// All begin with the first shard.
    First,
    /// The number of the thread: memory without streams.
    Thread,
    /// The stream, so that any number of threads on one stream have one heap.
    Stream,
}

/// A shard alone on its cache lines (two of them: processors fetch them in pairs). The word that others
/// read is on that of the lock, which begins `state`.
#[repr(C, align(128))]
struct Shard<A: DeviceAllocator> {
    published: Published,
    state: Lock<State<A>>,
}

/// All shards of a pool.
pub(crate) struct Shards<A: DeviceAllocator> {
    first: Box<Shard<A>>,
    /// The others, those that were made before those that were not.
    others: Box<[OnceLock<Box<Shard<A>>>]>,
    /// How many there are.
    count: AtomicU32,
    homes: Homes,
}

impl<A: DeviceAllocator> Shards<A> {
    /// `count` shards, which may become `most`.
    pub(crate) fn new(homes: Homes, most: usize, first: State<A>) -> Self {
        Self {
            first: Self::shard(first),
            others: (1..most.clamp(1, MAX_SHARDS)).map(|_| OnceLock::new()).collect(),
            count: AtomicU32::new(1),
            homes,
        }
    }

    fn shard(state: State<A>) -> Box<Shard<A>> {
        Box::new(Shard { published: Published::default(), state: Lock::new(state) })
    }

    /// Adds shards, as `make` makes the state of each number, until there are `count` or as many as
    /// there may be. The caller has the lock of the first shard, so no two threads do this at once.
    pub(crate) fn grow(&self, count: usize, make: impl Fn(u32) -> State<A>) {
        let mut last = self.count.load(Acquire);
        for at in self.count()..count.min(self.most()) {
            let _ = self.others[at - 1].set(Self::shard(make(last)));
            last += 1;
        }
        self.count.store(last, Release);
    }

    /// How many there are.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.count.load(Acquire) as usize
    }

    /// How many there may be.
    pub(crate) fn most(&self) -> usize {
        self.others.len() + 1
    }

    /// Where a request or a whole block that is freed begins.
    #[inline]
    pub(crate) fn home<K>(&self, key: &Key<K>) -> usize {
        let count = self.count();
        if count == 1 { 0 } else { self.home_of_several(key, count) }
    }

    #[inline(never)]
    #[expect(clippy::cast_possible_truncation, reason = "any number will do")]
    fn home_of_several<K>(&self, key: &Key<K>, count: usize) -> usize {
        let number = match self.homes {
            Homes::First => 0,
            Homes::Thread => thread_number::home(),
            Homes::Stream => key.stream_id as usize,
        };
        number % count
    }

    #[inline]
    fn get(&self, at: usize) -> &Shard<A> {
        let other = at.checked_sub(1).and_then(|at| self.others.get(at)).and_then(OnceLock::get);
        other.unwrap_or(&self.first)
    }

    /// What a shard lets the others know.
    pub(crate) fn published(&self, at: usize) -> &Published {
        &self.get(at).published
    }

    /// Locks a shard. No device, observer or code of the program is called until the guard goes, and
    /// no other lock of a shard is waited for.
    #[inline]
    pub(crate) fn lock(&self, at: usize) -> LockGuard<'_, State<A>> {
        Self::entered(self.get(at).state.lock())
    }

    /// Begins to count looks at ranges, in a build that does.
    #[inline]
    fn entered(state: LockGuard<'_, State<A>>) -> LockGuard<'_, State<A>> {
        #[cfg(all(feature = "check", debug_assertions))]
        state.ranges.start_visits();
        state
    }

    /// Locks the home of a hit or of a whole block that is freed. In memory without streams, where
    /// the home is locked, this takes the next shard that is not; if that repeats, the thread stays there.
    #[inline]
    pub(crate) fn lock_home(&self, at: usize) -> LockGuard<'_, State<A>> {
        match self.get(at).state.try_lock() {
            Some(state) => Self::entered(state),
            None => self.lock_busy(at),
        }
    }

    #[cold]
    #[inline(never)]
    fn lock_busy(&self, at: usize) -> LockGuard<'_, State<A>> {
        for _ in 0..TRIES {
            hint::spin_loop();
            if let Some(state) = self.get(at).state.try_lock() {
                return Self::entered(state);
            }
        }
        let count = self.count();
        let others = if self.homes == Homes::Thread { 1..count } else { 1..1 };
        for step in others {
            if let Some(state) = self.get((at + step) % count).state.try_lock() {
                thread_number::hop_by(step);
                return state;
            }
        }
        self.lock(at)
    }

    /// Locks a shard if no thread is in it.
    pub(crate) fn try_lock(&self, at: usize) -> Option<LockGuard<'_, State<A>>> {
        self.get(at).state.try_lock()
    }

    /// Locks a shard. For a request of the shard `of`, another one only if no thread is in it; without
    /// `of`, any.
    pub(crate) fn lock_for(&self, at: usize, of: Option<usize>) -> Option<LockGuard<'_, State<A>>> {
        if of.is_none_or(|home| home == at) { Some(self.lock(at)) } else { self.try_lock(at) }
    }

    /// Locks all shards, in the order of their numbers.
    pub(crate) fn lock_all(&self) -> Vec<LockGuard<'_, State<A>>> {
        let mut all = vec![self.lock(0)]; // no shard is added from now on
        all.extend((1..self.count()).map(|at| self.lock(at)));
        all
    }

    /// Locks all shards if no thread is in any of them. It does not wait.
    pub(crate) fn try_lock_all(&self) -> Option<Vec<LockGuard<'_, State<A>>>> {
        let first = self.try_lock(0)?; // no shard is added from now on
        let others = (1..self.count()).map(|at| self.try_lock(at));
        std::iter::once(Some(first)).chain(others).collect()
    }

    /// Whether a thread has the lock of a shard.
    pub(crate) fn is_locked(&self, at: usize) -> bool {
        self.get(at).state.is_locked()
    }

    /// Whether a thread has the lock of any.
    pub(crate) fn is_any_locked(&self) -> bool {
        (0..self.count()).any(|at| self.is_locked(at))
    }
}
