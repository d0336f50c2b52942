//! References to a store: the pointers that keep it alive, and the only unsafe code about its
//! lifetime.
#![expect(unsafe_code, reason = "a buffer must not touch a reference count that threads share")]

#[cfg(any(loom, shuttle))]
use crate::checker::sync::atomic::AtomicI64;
use crate::heap::block::flags::AWAITED;
use crate::heap::block::record::{Record, RecordOwner, StoreAddress};
use crate::heap::store::{BookState, Store};
use crate::invariant::{self, Scope};
use crate::limits::{Member, WakeBudget};
use crate::port::{DeviceAllocator, Why};
use crate::sys::LockGuard;
#[cfg(not(any(loom, shuttle)))]
use crate::sys::atomic::AtomicI64;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

/// The count that stands for the owner of an open store: more than there can be buffers.
const OPEN: i64 = 1 << 62;

/// The reference count of a store.
///
/// A store lives as long as its owner or any buffer. While it is open, its book and each thread
/// cache count the buffers taken minus the buffers returned. Closing the store adds these counts to
/// this one, and from then on each return subtracts from it. The owner's own count, [`OPEN`], keeps
/// it above zero until the sum is added.
pub(crate) struct ReferenceCount(AtomicI64);

impl ReferenceCount {
    pub(crate) fn new() -> Self {
        Self(AtomicI64::new(OPEN))
    }
}

/// The only owner of an open store. Dropping it closes the store.
pub(crate) struct Owner<A: DeviceAllocator>(NonNull<Store<A>>);

/// A counted reference to a store, taken out of the record of a block that is freed. Its drop
/// releases it, also by a panic; [`StoreReference::release`] does so in a book that is locked
/// already.
pub(crate) struct StoreReference<A: DeviceAllocator>(NonNull<Store<A>>);

impl<A: DeviceAllocator> Owner<A> {
    pub(crate) fn new(store: Store<A>) -> Self {
        Self(NonNull::from(Box::leak(Box::new(store))))
    }

    #[inline]
    pub(crate) fn store(&self) -> &Store<A> {
        // SAFETY: the box lives until the reference count is zero. The owner's own count, which
        // only `drop` subtracts, keeps it above zero (`OPEN`).
        unsafe { self.0.as_ref() }
    }

    /// Stores the reference of a block in its record, so that a buffer is one pointer. The store
    /// has just counted the block as in use.
    #[inline]
    pub(crate) fn set_store(&self, record: &mut Record<A>) {
        *record.store_address.0.get_mut() = self.0.as_ptr().cast();
    }
}

/// Returns the store of a block in use.
///
/// # Safety
///
/// The address is that of a `Record<A>`, [`Owner::set_store`] has filled it, and no
/// [`StoreReference`] was taken since.
#[inline]
pub(crate) unsafe fn store_at<A: DeviceAllocator>(address: &StoreAddress) -> &Store<A> {
    let store: *const Store<A> = address.0.load(Relaxed).cast();
    // SAFETY: this is the address of a store of this type, as the caller promises. The reference
    // that came with it is counted in the store and not released, so the store is not freed.
    unsafe { &*store }
}

/// Keeps a freed block in the thread's own cache, which counts the returned reference. Returns the
/// block if the cache cannot keep it, or if any of the flags `bypass_flags` is set.
///
/// # Safety
///
/// As for [`store_at`].
#[inline]
pub(crate) unsafe fn put<A: DeviceAllocator>(
    mut record: RecordOwner<A>,
    bypass_flags: u8,
) -> Result<(), RecordOwner<A>> {
    let store: *const Store<A> = record.store_address.0.load(Relaxed).cast();
    // SAFETY: as in `store_at`, up to the end of `put_cached`, which takes the reference.
    let store: &Store<A> = unsafe { &*store };
    let Some(mut cache) = store.caches.enter_own() else { return Err(record) };
    // The flags are read inside the cache: a request that begins to wait enters each cache once
    // after it sets its flag. Either it finds the block in the cache, or this read sees the flag.
    if store.flags.any(bypass_flags) {
        return Err(record);
    }
    record.unzeroed = true;
    // The store may be freed as soon as this thread leaves the cache. No reference into the store
    // outlives that here, and the cache is not accessed after the write that leaves it
    // (lock/biased.rs).
    store.put_cached(&mut cache, record)
}

impl<A: DeviceAllocator> Drop for Owner<A> {
    fn drop(&mut self) {
        let store = self.store();
        if store.is_forked() {
            return; // a thread that does not exist in this process may hold the locks
        }
        if store.is_broken() {
            store.drop_on_shortage();
            store.ledger.note_never_freed();
            return;
        }
        let _scope = Scope::enter(); // for the last free of the memory, after the store's own calls
        // Declared first, so that a panic of the allocator drops it last: the store may be freed.
        let _closed;
        let _watch = store.watch();
        _closed = Closed { store: self.0, references: OPEN - store.close() };
        store.give_all_back();
    }
}

/// References to a closed store. They are released when it is dropped, also by a panic of the
/// allocator.
struct Closed<A: DeviceAllocator> {
    store: NonNull<Store<A>>,
    references: i64,
}

impl<A: DeviceAllocator> Drop for Closed<A> {
    fn drop(&mut self) {
        // SAFETY: the references are still counted. The Rust reference ends before the release.
        let ledger = &unsafe { self.store.as_ref() }.ledger;
        // The budget is woken after the release: memory that the store still has goes back to it
        // then.
        let _woken = WakeBudget(ledger.budget.clone());
        // SAFETY: as above.
        if unsafe { self.store.as_ref() }.is_broken() {
            ledger.note_never_freed();
        }
        release_closed(self.store, self.references);
    }
}

impl<A: DeviceAllocator> Member for Owner<A>
where
    Store<A>: Send + Sync,
{
    fn set_cache_bypass(&self, on: bool) {
        let store = self.store();
        if store.is_unusable() {
            return; // a thread that does not exist in this process may hold a cache
        }
        store.flags.set(AWAITED, on);
        if on {
            store.caches.enter_each();
        }
    }

    fn trim_short(&self, bytes: u64) -> u64 {
        let store = self.store();
        if store.is_unusable() {
            return 0;
        }
        let _watch = store.watch();
        store.trim_short(bytes)
    }

    fn lost_bytes(&self) -> u64 {
        let store = self.store();
        match store.fault() {
            Some(fault) if fault.why == Why::Forked => 0,
            Some(fault) if fault.why == Why::Broken => store.ledger.reserved(),
            _ => store.lost_bytes(),
        }
    }

    fn returned_blocks(&self) -> u64 {
        let store = self.store();
        if store.is_unusable() { 0 } else { store.returned_blocks() }
    }

    fn address(&self) -> *const () {
        self.store().address()
    }
}

impl<A: DeviceAllocator> StoreReference<A> {
    #[inline]
    pub(crate) fn store(&self) -> &Store<A> {
        // SAFETY: the store counts this reference until `give_up`, so it is not freed yet.
        unsafe { self.0.as_ref() }
    }

    /// Takes the reference out of a record.
    ///
    /// # Safety
    ///
    /// As for [`store_at`].
    #[inline]
    pub(crate) unsafe fn taken_from(record: &Record<A>) -> Self {
        // This is the pointer from the box, not one made from a `&Store`: the last `StoreReference`
        // frees the store through it, which a pointer from a shared borrow must not do.
        let store: *mut Store<A> = record.store_address.0.load(Relaxed).cast();
        // SAFETY: as the caller promises, `set_store` put an owner's pointer there, which is not
        // null.
        Self(unsafe { NonNull::new_unchecked(store) })
    }

    /// Releases the reference, in the book that `work` has changed and returns locked. Wakes a
    /// request that waits for the freed memory.
    #[inline]
    pub(crate) fn release(
        self,
        work: impl for<'s> FnOnce(&'s Store<A>) -> LockGuard<'s, BookState<A>>,
    ) {
        let store = self.0;
        // SAFETY: as in `store`. A panic of `work` drops `self`, which gives the reference up.
        let store_ref = unsafe { store.as_ref() };
        let mut book = work(store_ref);
        if let Some(what) = invariant::take() {
            store_ref.poison(what);
            if book.closed {
                store_ref.ledger.note_never_freed(); // its owner cannot tell any more
            }
        }
        std::mem::forget(self);
        let mut awaited = store_ref.awaited().map(WakeBudget);
        if book.give_up() {
            // The store may be freed as soon as this thread unlocks the book. No reference into the
            // store outlives that here, and the lock is not accessed after the write that unlocks
            // it (lock.rs, `unlock`).
            drop(book);
        } else {
            drop(book);
            // The budget is woken after the release, as in the owner's drop.
            awaited = Some(WakeBudget(store_ref.ledger.budget.clone()));
            release_closed(store, 1);
        }
        drop(awaited);
    }
}

impl<A: DeviceAllocator> Drop for StoreReference<A> {
    fn drop(&mut self) {
        Self(self.0).release(|store| store.book.lock());
    }
}

/// Releases references to a closed store, and frees the store if they were the last.
fn release_closed<A: DeviceAllocator>(store: NonNull<Store<A>>, references: i64) {
    // SAFETY: the caller's own references are still counted. The Rust reference to the store ends
    // before the count changes.
    let count = NonNull::from(&unsafe { store.as_ref() }.references.0);
    // SAFETY: as above; other threads may free an atomic as soon as it has changed.
    if unsafe { count.as_ref() }.fetch_sub(references, AcqRel) == references {
        // SAFETY: the count reaches zero once, with Acquire ordering after all accesses of the
        // other threads, so no other thread has the pointer. It came from a box in `Owner::new`.
        let store = unsafe { Box::from_raw(store.as_ptr()) };
        if store.is_broken() {
            Box::leak(store); // its records do not tell what may go back to the device
        }
    }
}

// SAFETY: an owner is a pointer to a store, which is Sync: an allocator is Send and Sync, blocks
// are Send, and the rest is atomics and locks. The last thread frees the store, which can be any
// thread, so the store must be Send too, and is.
unsafe impl<A: DeviceAllocator> Send for Owner<A> where Store<A>: Send + Sync {}
// SAFETY: as above.
unsafe impl<A: DeviceAllocator> Sync for Owner<A> where Store<A>: Send + Sync {}
// SAFETY: as for `Owner`.
unsafe impl<A: DeviceAllocator> Send for StoreReference<A> where Store<A>: Send + Sync {}
// SAFETY: as for `Owner`.
unsafe impl<A: DeviceAllocator> Sync for StoreReference<A> where Store<A>: Send + Sync {}
