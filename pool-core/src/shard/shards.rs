//! All shards of a store, and how long the store lives.
//!
//! A store lives as long as its owner, or any buffer. No count is shared while it is open: each
//! shard counts buffers taken less buffers returned. Closing adds these up, and from then on each
//! return counts in one place. The owner's own hold, [`OPEN`], keeps that count from reaching zero
//! before the sum is in it.

use crate::block::record::RecordOwner;
use crate::device::DeviceAllocator;
use crate::lock::{Lock, LockGuard};
use crate::shard::Shard;
use crate::thread_number;
#[cfg(loom)]
use loom::sync::atomic::AtomicI64;
#[cfg(not(loom))]
use std::sync::atomic::AtomicI64;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Shards at most: they are numbered in the bits of a word.
const SHARDS_MOST: usize = 64;
/// What the owner of an open store holds: more than there can be buffers.
const OPEN: i64 = 1 << 62;

pub(crate) struct Shards<A: DeviceAllocator> {
    all: Box<[Line<Lock<Shard<A>>>]>,
    /// A bit for each shard that a thread has worked on.
    in_use: AtomicU64,
    /// [`OPEN`] while the pool is open; from then on, the buffers that are still out.
    holds: AtomicI64,
}

/// A value on cache lines of its own (two of them: processors fetch them in pairs).
#[repr(align(128))]
struct Line<T>(T);

impl<A: DeviceAllocator> Shards<A> {
    pub(crate) fn new(statistics: bool) -> Self {
        let threads = std::thread::available_parallelism().map_or(4, usize::from);
        let shards = (2 * threads).next_power_of_two().min(SHARDS_MOST);
        Self {
            all: (0..shards).map(|_| Line(Lock::new(Shard::new(statistics)))).collect(),
            in_use: AtomicU64::new(0),
            holds: AtomicI64::new(OPEN),
        }
    }

    #[inline]
    fn own_number(&self) -> usize {
        // The last is that of all threads that have none of their own.
        thread_number::get().min(self.all.len() - 1)
    }

    /// This thread's shard.
    #[inline]
    pub(crate) fn own(&self) -> LockGuard<'_, Shard<A>> {
        let at = self.own_number();
        let mut shard = self.all[at].0.lock();
        if !shard.in_use {
            shard.in_use = true;
            self.in_use.fetch_or(1 << at, Relaxed);
        }
        shard
    }

    pub(crate) fn at(&self, at: usize) -> LockGuard<'_, Shard<A>> {
        self.all[at].0.lock()
    }

    /// The numbers of the shards in use.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = usize> + use<A> {
        let in_use = self.in_use.load(Relaxed);
        (0..SHARDS_MOST).filter(move |at| in_use & (1 << at) != 0)
    }

    /// The shards in use, one after the other.
    pub(crate) fn iter(&self) -> impl Iterator<Item = LockGuard<'_, Shard<A>>> {
        self.in_use().map(|at| self.at(at))
    }

    /// The shards in use but this thread's.
    pub(crate) fn others(&self) -> impl Iterator<Item = LockGuard<'_, Shard<A>>> {
        let own = self.own_number();
        self.in_use().filter(move |at| *at != own).map(|at| self.at(at))
    }

    /// The shards in use in which nobody works. For a caller that holds one: waiting for another
    /// could wait for ever.
    pub(crate) fn try_iter(&self) -> impl Iterator<Item = LockGuard<'_, Shard<A>>> {
        self.in_use().filter_map(|at| self.all[at].0.try_lock())
    }

    /// The count of a closed store.
    pub(crate) fn holds(&self) -> &AtomicI64 {
        &self.holds
    }

    /// Nothing is kept from here on. Returns all that is to be given back, and how many buffers
    /// are out.
    pub(crate) fn close(&self) -> (Vec<RecordOwner<A>>, i64) {
        let (mut owed, mut holds) = (Vec::new(), 0);
        for shard in &self.all {
            let mut shard = shard.0.lock();
            shard.closed = true;
            holds += std::mem::take(&mut shard.holds);
            for taken in shard.idle.take_all(|_| true) {
                shard.owe(taken.item);
            }
            owed.append(&mut shard.owed);
        }
        (owed, holds)
    }
}

/// What an owner gives up when so many buffers are out.
pub(crate) fn owners_hold(buffers: i64) -> i64 {
    OPEN - buffers
}
