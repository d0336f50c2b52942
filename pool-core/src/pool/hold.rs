//! The pointers that keep a store alive, and the only unsafe code about its life.
#![expect(unsafe_code, reason = "a buffer must not touch a reference count that threads share")]

use crate::block::record::{Home, Record};
use crate::device::DeviceAllocator;
use crate::pool::store::{Locked, Store};
use crate::shard::shards::owners_hold;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

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
        // up in `drop` only, keeps it above (shards.rs, `OPEN`).
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

impl<A: DeviceAllocator> Drop for Owner<A> {
    fn drop(&mut self) {
        if self.store().is_forked() {
            return; // a thread that is not here any more may hold the locks
        }
        let buffers = self.store().close();
        release_closed(self.0, owners_hold(buffers));
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

    /// Gives up the hold, in the part of the store that `work` has worked on and returns locked.
    #[inline]
    pub(crate) fn end(self, work: impl for<'s> FnOnce(&'s Store<A>) -> Locked<'s, A>) {
        let mut part = work(self.store());
        if part.give_up() {
            // From this unlocking on the store may be gone. No reference into it outlives it here,
            // and the lock is not touched after the write that unlocks it (lock.rs, `unlock`).
            drop(part);
        } else {
            drop(part);
            release_closed(self.0, 1);
        }
    }
}

/// Gives up holds on a closed store, and frees it if they were the last.
fn release_closed<A: DeviceAllocator>(store: NonNull<Store<A>>, holds: i64) {
    // SAFETY: the caller's own holds are still counted. The reference ends before the count does.
    let count = NonNull::from(unsafe { store.as_ref() }.shards.holds());
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
