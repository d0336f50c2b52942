//! The pointers that keep a store alive, and the only unsafe code about its life.
#![expect(unsafe_code, reason = "a buffer must not touch a reference count that threads share")]

use crate::device::DeviceAllocator;
use crate::shards::Released;
use crate::store::Store;
use std::ptr::NonNull;

/// The one owner of an open store. Dropping it closes the store.
pub(crate) struct Owner<A: DeviceAllocator>(NonNull<Store<A>>);

/// A buffer's hold on its store. It has no `Drop`: whoever gives the hold up in the store's
/// counts passes the answer to [`Claim::end`].
pub(crate) struct Claim<A: DeviceAllocator>(NonNull<Store<A>>);

impl<A: DeviceAllocator> Owner<A> {
    pub(crate) fn new(store: Store<A>) -> Self {
        Self(NonNull::from(Box::leak(Box::new(store))))
    }

    #[inline]
    pub(crate) fn store(&self) -> &Store<A> {
        // SAFETY: the box lives until somebody is told `Released::Last`, and the owner's hold,
        // given up in `drop` only, keeps everybody from being told so (shards.rs, `OPEN`).
        unsafe { self.0.as_ref() }
    }

    /// The hold of a block that the store has just counted out.
    #[inline]
    pub(crate) fn claim(&self) -> Claim<A> {
        Claim(self.0)
    }
}

impl<A: DeviceAllocator> Drop for Owner<A> {
    fn drop(&mut self) {
        let released = self.store().close();
        Claim(self.0).end(released);
    }
}

impl<A: DeviceAllocator> Claim<A> {
    #[inline]
    pub(crate) fn store(&self) -> &Store<A> {
        // SAFETY: this claim's hold is counted in the store and is given up when the claim ends,
        // so nobody has been told `Released::Last` yet.
        unsafe { self.0.as_ref() }
    }

    /// The same hold, moved out of a buffer that is not used again.
    pub(crate) fn again(&self) -> Self {
        Self(self.0)
    }

    /// After the hold was given up: frees the store if it was the last.
    #[inline]
    pub(crate) fn end(self, released: Released) {
        if released == Released::Last {
            // SAFETY: `Last` is told once, when the count of all holds has come to zero, with
            // Acquire ordering after all that the others did; so nobody else has the pointer. It
            // came from a box in `Owner::new`.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        }
        // Otherwise the store may be gone by now. The last that this thread did with it was to
        // unlock a shard, and parking_lot's mutex is not touched after the store that unlocks it
        // (parking_lot 0.12.5, raw_mutex.rs, `unlock` and `unlock_slow`).
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
