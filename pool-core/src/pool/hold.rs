//! The pointers that keep a store alive, and the only unsafe code about its life.
#![expect(unsafe_code, reason = "a buffer must not touch a reference count that threads share")]

use crate::block::flags::AWAITED;
use crate::block::record::{Home, Record, RecordOwner};
use crate::budget::Member;
#[cfg(any(loom, shuttle))]
use crate::checker::sync::atomic::AtomicI64;
use crate::device::DeviceAllocator;
use crate::lock::LockGuard;
use crate::pool::store::{BookState, Store};
use std::ptr::NonNull;
#[cfg(not(any(loom, shuttle)))]
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

/// What the owner of an open store holds: more than there can be buffers.
const OPEN: i64 = 1 << 62;

/// The count that a closed store lives by.
///
/// A store lives as long as its owner, or any buffer. While it is open its book, and each thread
/// cache, counts buffers taken less buffers returned. Closing adds these up, and from then on each
/// return counts here. The owner's own hold, [`OPEN`], keeps this count from reaching zero before
/// the sum is in it.
pub(crate) struct Holds(AtomicI64);

impl Holds {
    pub(crate) fn new() -> Self {
        Self(AtomicI64::new(OPEN))
    }
}

/// The one owner of an open store. Dropping it closes the store.
pub(crate) struct Owner<A: DeviceAllocator>(NonNull<Store<A>>);

/// A hold on a store, taken out of the record of a block that comes back. It has no `Drop`: it is
/// given up by [`Claim::end`].
pub(crate) struct Claim<A: DeviceAllocator>(NonNull<Store<A>>);

impl<A: DeviceAllocator> Owner<A> {
    pub(crate) fn new(store: Store<A>) -> Self {
        Self(NonNull::from(Box::leak(Box::new(store))))
    }

    #[inline]
    pub(crate) fn store(&self) -> &Store<A> {
        // SAFETY: the box lives until the count of holds comes to zero, and the owner's hold, given
        // up in `drop` only, keeps it above (`OPEN`).
        unsafe { self.0.as_ref() }
    }

    /// Puts the hold of a block that the store has just counted out into its record, so that a
    /// buffer is one pointer.
    #[inline]
    pub(crate) fn hold_for(&self, record: &mut Record<A>) {
        *record.home.0.get_mut() = self.0.as_ptr().cast();
    }
}

/// The store of a block that is out.
///
/// # Safety
///
/// The home is that of a `Record<A>`, [`Owner::hold_for`] has filled it, and no [`Claim`] was taken
/// since.
#[inline]
pub(crate) unsafe fn store_at<A: DeviceAllocator>(home: &Home) -> &Store<A> {
    let store: *const Store<A> = home.0.load(Relaxed).cast();
    // SAFETY: the address of a store of this type, as the caller says; the hold that came with it
    // is counted there and not given up, so nobody has freed it.
    unsafe { &*store }
}

/// Keeps a block that a buffer gives back in the thread's own cache, which counts the hold. Returns
/// it if the cache cannot, or if any of the flags `passes_cache` is set.
///
/// # Safety
///
/// As for [`store_at`].
#[inline]
pub(crate) unsafe fn put<A: DeviceAllocator>(
    mut record: RecordOwner<A>,
    passes_cache: u8,
) -> Result<(), RecordOwner<A>> {
    let store: *const Store<A> = record.home.0.load(Relaxed).cast();
    // SAFETY: as in `store_at`, up to the end of `put_cached`, which takes the hold.
    let store: &Store<A> = unsafe { &*store };
    let Some(mut cache) = store.caches.enter_own() else { return Err(record) };
    // Read inside of the cache: a request that begins to wait enters it once, so either that finds
    // the block here, or the flag is set.
    if store.flags.any(passes_cache) {
        return Err(record);
    }
    record.dirty = true;
    // From leaving the cache on the store may be gone. No reference into it outlives it here, and
    // the cache is not touched after the write that leaves it (lock/biased.rs).
    store.put_cached(&mut cache, record)
}

impl<A: DeviceAllocator> Drop for Owner<A> {
    fn drop(&mut self) {
        if self.store().is_forked() {
            return; // a thread that is not here any more may hold the locks
        }
        let buffers = self.store().close();
        // Asked after the store is gone: what it still has goes back to the budget then.
        let budget = self.store().ledger.budget.clone();
        release_closed(self.0, OPEN - buffers);
        budget.wake();
    }
}

impl<A: DeviceAllocator> Member for Owner<A>
where
    Store<A>: Send + Sync,
{
    fn send_frees_past_caches(&self, on: bool) {
        let store = self.store();
        if store.is_forked() {
            return; // a thread that is not here any more may hold a cache
        }
        store.flags.set(AWAITED, on);
        if on {
            store.caches.enter_each();
        }
    }

    fn give_back(&self, bytes: u64) -> u64 {
        let store = self.store();
        if store.is_forked() { 0 } else { store.trim_short(bytes) }
    }

    fn address(&self) -> *const () {
        self.store().address()
    }
}

impl<A: DeviceAllocator> Claim<A> {
    #[inline]
    pub(crate) fn store(&self) -> &Store<A> {
        // SAFETY: this claim's hold is counted in the store and is given up when the claim ends,
        // so nobody has freed the store yet.
        unsafe { self.0.as_ref() }
    }

    /// Takes the hold out of a record.
    ///
    /// # Safety
    ///
    /// As for [`store_at`].
    #[inline]
    pub(crate) unsafe fn taken_from(record: &Record<A>) -> Self {
        // The pointer that the box gave, not one made from a reference: the last claim frees the
        // store through it, and a shared reference gives no right to do that.
        let store: *mut Store<A> = record.home.0.load(Relaxed).cast();
        // SAFETY: as the caller says, `hold_for` put an owner's pointer there, which is not null.
        Self(unsafe { NonNull::new_unchecked(store) })
    }

    /// Gives up the hold, in the book that `work` has worked on and returns locked. Wakes a request
    /// that waits for what came free.
    #[inline]
    pub(crate) fn end(
        self,
        work: impl for<'s> FnOnce(&'s Store<A>) -> LockGuard<'s, BookState<A>>,
    ) {
        let mut book = work(self.store());
        let mut awaited = self.store().awaited();
        if book.give_up() {
            // From this unlocking on the store may be gone. No reference into it outlives it here,
            // and the lock is not touched after the write that unlocks it (lock.rs, `unlock`).
            drop(book);
        } else {
            drop(book);
            // As in the owner's drop.
            awaited = Some(self.store().ledger.budget.clone());
            release_closed(self.0, 1);
        }
        if let Some(budget) = awaited {
            budget.wake();
        }
    }
}

/// Gives up holds on a closed store, and frees it if they were the last.
fn release_closed<A: DeviceAllocator>(store: NonNull<Store<A>>, holds: i64) {
    // SAFETY: the caller's own holds are still counted. The reference ends before the count does.
    let count = NonNull::from(&unsafe { store.as_ref() }.holds.0);
    // SAFETY: as above; an atomic may be freed by others as soon as it has changed.
    if unsafe { count.as_ref() }.fetch_sub(holds, AcqRel) == holds {
        // SAFETY: the count comes to zero once, with Acquire ordering after all that the others
        // did; so nobody else has the pointer. It came from a box in `Owner::new`.
        drop(unsafe { Box::from_raw(store.as_ptr()) });
    }
}

// SAFETY: an owner is a pointer to a store, which is Sync: an allocator is Send and Sync, blocks
// are Send, and the rest is atomics and locks. Whichever thread is last frees it, so it must be
// Send too, and is.
unsafe impl<A: DeviceAllocator> Send for Owner<A> where Store<A>: Send + Sync {}
// SAFETY: as above.
unsafe impl<A: DeviceAllocator> Sync for Owner<A> where Store<A>: Send + Sync {}
// SAFETY: as for `Owner`.
unsafe impl<A: DeviceAllocator> Send for Claim<A> where Store<A>: Send + Sync {}
// SAFETY: as for `Owner`.
unsafe impl<A: DeviceAllocator> Sync for Claim<A> where Store<A>: Send + Sync {}
