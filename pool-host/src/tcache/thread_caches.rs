//! The list of all thread caches.
//!
//! A new thread takes over a thread cache that an ended thread left, with its counters. A thread
//! cache is never unmapped, so their number is the peak number of threads alive at the same time.

mod stack;

use super::thread_cache::ThreadCache;
use crate::sync::atomic::{
    AtomicPtr, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
};
use crate::virtual_memory;
use stack::Stack;
use std::ptr;

/// The most thread caches that one call looks at.
const LOOKS: usize = 1 << 12;
/// Thread caches without an owner whose slots stay warm for new threads.
const WARM: usize = 16;

/// A linked list of all thread caches, to which they are added and from which none is removed, and stacks
/// of those without an owner.
#[derive(Debug)]
pub(crate) struct ThreadCaches {
    first: AtomicPtr<ThreadCache>,
    /// The thread cache at which the next visit starts; null for the first.
    cursor: AtomicPtr<ThreadCache>,
    /// Those without an owner whose slots are warm; they serve first.
    warm: Stack,
    /// Those without an owner whose slots went back.
    cold: Stack,
    /// Number of thread caches with one.
    owners: AtomicUsize,
    /// Number of owners that made requests lately, as last counted; those that came since count too.
    active: AtomicUsize,
    /// Bytes that all of them may hold.
    rooms: AtomicUsize,
}

impl ThreadCaches {
    /// Creates an empty list.
    pub(crate) const fn new() -> Self {
        Self {
            first: AtomicPtr::new(ptr::null_mut()),
            cursor: AtomicPtr::new(ptr::null_mut()),
            warm: Stack::new(),
            cold: Stack::new(),
            owners: AtomicUsize::new(0),
            active: AtomicUsize::new(0),
            rooms: AtomicUsize::new(0),
        }
    }

    /// Returns a thread cache that only the calling thread owns: a free one, or else a new one.
    ///
    /// `None` if the system has no memory.
    pub(crate) fn enter(&self) -> Option<&'static ThreadCache> {
        let found = self.warm.take().or_else(|| self.cold.take());
        let entered = found.or_else(|| self.add())?;
        entered.in_use.store(true, Relaxed);
        self.owners.fetch_add(1, Relaxed);
        self.active.fetch_add(1, Relaxed);
        Some(entered)
    }

    /// Makes a thread cache that the calling thread owns available to new threads. If many are, the
    /// memory of its slots goes back to the system, unless `keeps`.
    pub(crate) fn leave(&self, local: &ThreadCache, keeps: bool) {
        self.owners.fetch_sub(1, Relaxed);
        // It may have been counted as one that makes no requests.
        let _ = self.active.fetch_update(Relaxed, Relaxed, |active| active.checked_sub(1));
        local.in_use.store(false, Relaxed);
        if keeps || self.warm.len() < WARM {
            self.warm.put(local);
        } else {
            local.forget_slots();
            self.cold.put(local);
        }
    }

    /// Maps a thread cache and adds it to the front of the list.
    #[cold]
    fn add(&self) -> Option<&'static ThreadCache> {
        let local = virtual_memory::zeroed::<ThreadCache>(1)?.first()?;
        let address = ptr::from_ref(local).cast_mut();
        let mut first = self.first.load(Relaxed);
        loop {
            local.next.store(first, Relaxed);
            match self.first.compare_exchange_weak(first, address, AcqRel, Relaxed) {
                Ok(_) => return Some(local),
                Err(other) => first = other,
            }
        }
    }

    /// Makes all thread caches but `own` available to new threads. Called in a forked child, where
    /// the owners of the others do not exist.
    ///
    /// Each of these may hold what it has and no more. A thread cache on which a thread worked during the
    /// fork may be inconsistent, so it stays in use for good. Its blocks are lost to the child, and what it
    /// may hold does not count.
    pub(crate) fn keep_alone(&self, own: &ThreadCache) {
        let others = self.iter().filter(|local| !ptr::eq(*local, own));
        // The parent may have had some that were in a stack no more and had no owner yet.
        self.warm.clear();
        self.cold.clear();
        let mut rooms = own.room_bytes();
        for whole in others.filter(|local| !local.is_torn()) {
            whole.in_use.store(false, Relaxed);
            rooms += whole.fit();
            self.warm.put(whole);
        }
        self.rooms.store(rooms, Relaxed);
        let owners = usize::from(own.in_use.load(Relaxed));
        self.owners.store(owners, Relaxed);
        self.active.store(owners, Relaxed);
    }

    /// Returns how many threads own one.
    pub(crate) fn owners(&self) -> usize {
        self.owners.load(Relaxed)
    }

    /// Counts the owners that have read the clock since `since`, in milliseconds. Returns the bytes that
    /// all thread caches hold.
    pub(crate) fn survey(&self, since: u64) -> usize {
        let (mut active, mut held) = (0, 0);
        for local in self.iter().take(LOOKS) {
            if local.has_room() {
                held += local.bytes();
            }
            let is_active = local.in_use.load(Relaxed) && local.looked_at.load(Relaxed) >= since;
            active += usize::from(is_active);
        }
        self.active.store(active, Relaxed);
        held
    }

    /// Returns how many bytes a thread may hold that may hold `room` bytes now, if all may hold `most`.
    ///
    /// A quarter of that is for all owners in equal parts, of at most `largest`, which each has whatever
    /// others may hold. The rest is for those that ask first: each may have its part of what is left, so
    /// that threads which make no requests leave it to the others.
    pub(crate) fn part_of(&self, most: usize, room: usize, largest: usize) -> usize {
        let own = (most / 4 / self.owners.load(Relaxed).max(1)).min(largest);
        match (most - most / 4).saturating_sub(self.room_bytes()) {
            0 => own,
            left => own.max(room + left / (self.active.load(Relaxed) + 1)),
        }
    }

    /// Returns the bytes that all of them may hold.
    pub(crate) fn room_bytes(&self) -> usize {
        self.rooms.load(Relaxed)
    }

    /// Notes that one of them may hold so many bytes after it could hold so many before.
    pub(crate) fn count_room(&self, before: usize, after: usize) {
        if before != after {
            self.rooms.fetch_add(after.wrapping_sub(before), Relaxed);
        }
    }

    /// Returns the next thread caches that may hold blocks, at most `most`, and each at most once.
    ///
    /// Each call continues where the last one stopped, and looks at no more than [`LOOKS`] thread
    /// caches.
    pub(crate) fn next_with_room(&self, most: usize) -> impl Iterator<Item = &'static ThreadCache> {
        let start = at(&self.cursor);
        let from_cursor = std::iter::successors(start, |local| at(&local.next));
        let stop = start.map_or(ptr::null(), ptr::from_ref);
        let before = self.iter().take_while(move |local| !ptr::eq(*local, stop));
        let looked_at = from_cursor.chain(before).take(LOOKS).inspect(|local| {
            self.cursor.store(local.next.load(Relaxed), Relaxed);
        });
        looked_at.filter(|local| local.has_room()).take(most)
    }

    /// Returns all thread caches, the newest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &'static ThreadCache> {
        let first = at(&self.first);
        std::iter::successors(first, |local| at(&local.next))
    }
}

/// Returns the thread cache that a link points to.
fn at(link: &AtomicPtr<ThreadCache>) -> Option<&'static ThreadCache> {
    #[cfg(test)]
    FOLLOWED.set(FOLLOWED.get() + 1);
    #[expect(unsafe_code, reason = "a list without an allocator")]
    // SAFETY: a link is null, or `add` stored a pointer to a thread cache there, which
    // `virtual_memory::zeroed` initialised and which is never unmapped. `add` published it with
    // Release and this load acquires, so this thread sees it initialised. A thread cache is only
    // accessed through shared references.
    unsafe {
        link.load(Acquire).as_ref()
    }
}

#[cfg(test)]
thread_local! {
    /// How many links of the list of all thread caches this thread has followed.
    pub(crate) static FOLLOWED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}
