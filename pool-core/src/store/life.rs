//! References to a store: the pointers that keep it alive, and the only unsafe code about its
//! lifetime.
#![expect(unsafe_code, reason = "a buffer must not touch a reference count that threads share")]

use crate::block::record::Record;
use crate::invariant::{self, Scope};
use crate::limits::{Budget, WakeBudget};
use crate::observe::Reason;
use crate::port::DeviceAllocator;
use crate::store::{Store, trim};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::Relaxed;

/// The only owner of an open store. Dropping it closes the store.
///
/// A store lives as long as its owner or any buffer. Each shard counts, under its lock, the buffers
/// that were taken in it less those that were freed into it, and the first shard the owner too. A
/// free of an open store counts in one shard and looks at no other. Once the owner has closed all
/// shards, each free takes all locks and adds up: the thread whose sum is zero frees the store. A
/// closed store lends what it takes from the device to who has a buffer of it (`PoolRef`), by the
/// same counts.
pub(crate) struct Owner<A: DeviceAllocator>(NonNull<Store<A>>);

/// A counted reference to a store, taken out of the record of a block that is freed. Its drop
/// releases it, also by a panic; [`StoreReference::release`] frees the block first.
pub(crate) struct StoreReference<A: DeviceAllocator>(NonNull<Store<A>>);

impl<A: DeviceAllocator> Owner<A> {
    pub(crate) fn new(store: Store<A>) -> Self {
        let mut address = NonNull::from(Box::leak(Box::new(store)));
        // SAFETY: the box was just made, and no other code has its address.
        unsafe { address.as_mut() }.own = AtomicPtr::new(address.as_ptr().cast());
        Self(address)
    }

    #[inline]
    pub(crate) fn store(&self) -> &Store<A> {
        // SAFETY: the box lives until the sum of all counts is zero. The owner's own count, which
        // only `drop` takes back, keeps it above zero.
        unsafe { self.0.as_ref() }
    }
}

impl<A: DeviceAllocator> Store<A> {
    /// The address of this store, for the record of a whole block. It is that of the box, through
    /// which the last buffer frees the store, and not one that was made from `&self`.
    pub(crate) fn own_address(&self) -> Option<NonNull<()>> {
        NonNull::new(self.own.load(Relaxed))
    }
}

/// Returns the store of a block in use.
///
/// # Safety
///
/// [`Handle::set_store`] has set the address in the record, and no [`StoreReference`] was taken
/// since.
#[inline]
pub(crate) unsafe fn store_of<A: DeviceAllocator>(record: &Record<A>) -> &Store<A> {
    // SAFETY: the caller promises what this function asks for.
    let store = unsafe { address_of(record) };
    // SAFETY: this is the address of a store of this type. The buffer is counted in the store, so
    // the store is not freed.
    unsafe { store.as_ref() }
}

/// The address of the store of a block in use.
///
/// # Safety
///
/// As for [`store_of`].
#[inline]
pub(crate) unsafe fn address_of<A: DeviceAllocator>(record: &Record<A>) -> NonNull<Store<A>> {
    // SAFETY: `set_store` has put an address there.
    unsafe { record.store.unwrap_unchecked() }.cast()
}

/// A handle to a store, which has its address beside the count. One that counts keeps the store open.
pub(crate) struct Handle<A: DeviceAllocator> {
    owner: Option<Arc<Owner<A>>>,
    store: NonNull<Store<A>>,
}

impl<A: DeviceAllocator> Handle<A> {
    pub(crate) fn new(owner: Arc<Owner<A>>) -> Self {
        Self { store: owner.0, owner: Some(owner) }
    }

    /// A handle that counts nothing. The store may be closed.
    ///
    /// # Safety
    ///
    /// A counted handle or a buffer keeps the store for as long as this one and its clones live.
    #[inline]
    pub(crate) unsafe fn uncounted(store: NonNull<Store<A>>) -> Self {
        Self { store, owner: None }
    }

    #[inline]
    pub(crate) fn address(&self) -> NonNull<Store<A>> {
        self.store
    }

    #[inline]
    pub(crate) fn store(&self) -> &Store<A> {
        // SAFETY: as in `Owner::store`: a handle that counts keeps the owner alive. What keeps the store
        // of another one, the caller of `uncounted` knows.
        unsafe { self.store.as_ref() }
    }

    /// Stores the reference of a block in its record, so that a buffer is one pointer. The store
    /// has just counted the block as in use.
    #[inline]
    pub(crate) fn set_store(&self, record: &mut Record<A>) {
        record.store = Some(self.store.cast());
    }
}

impl<A: DeviceAllocator> Clone for Handle<A> {
    fn clone(&self) -> Self {
        Self { owner: self.owner.clone(), store: self.store }
    }
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
        store.close();
        _closed = Closed { store: self.0 };
        store.drop_on_shortage();
        let _ = trim::clear(store, Reason::Closed); // no caller is left to be told of a refusal
    }
}

/// The owner's count of a closed store. It is taken back when this is dropped, also by a panic of
/// the allocator.
struct Closed<A: DeviceAllocator> {
    store: NonNull<Store<A>>,
}

impl<A: DeviceAllocator> Drop for Closed<A> {
    fn drop(&mut self) {
        // SAFETY: the owner is still counted. The Rust reference ends before the release.
        let ledger = &unsafe { self.store.as_ref() }.ledger;
        // The budget is woken after the release: memory that the store still has goes back to it
        // then.
        let _woken = WakeBudget(ledger.budget.clone());
        // SAFETY: as above.
        if unsafe { self.store.as_ref() }.is_broken() {
            ledger.note_never_freed();
        }
        // SAFETY: the store is closed, and this is the owner's count.
        unsafe { release_closed(self.store, CountedAs::Owner) };
    }
}

impl<A: DeviceAllocator> StoreReference<A> {
    #[inline]
    pub(crate) fn store(&self) -> &Store<A> {
        // SAFETY: the store counts this reference until `release`, so it is not freed yet.
        unsafe { self.0.as_ref() }
    }

    /// Takes the reference out of a record.
    ///
    /// # Safety
    ///
    /// As for [`store_of`].
    #[inline]
    pub(crate) unsafe fn taken_from(record: &Record<A>) -> Self {
        // This is the pointer from the box, not one made from a `&Store`: the last `StoreReference`
        // frees the store through it, which a pointer from a shared borrow must not do.
        // SAFETY: as the caller promises.
        Self(unsafe { address_of(record) })
    }

    /// Frees the block by `work`, which returns the shard that counts the buffer as freed. Wakes a
    /// request that waits for the memory.
    #[inline]
    pub(crate) fn release(self, work: impl FnOnce(&Store<A>) -> usize) {
        let store = self.0;
        // SAFETY: as in `store`. A panic of `work` drops `self`, which gives the reference up.
        let store_ref = unsafe { store.as_ref() };
        let at = work(store_ref);
        let broken = invariant::take();
        if let Some(what) = broken {
            store_ref.poison(what);
        }
        std::mem::forget(self);
        let mut awaited = store_ref.awaited().map(WakeBudget);
        let mut heap = store_ref.shards.lock(at);
        if heap.closed {
            drop(heap);
            let budget: Budget = store_ref.ledger.budget.clone();
            if broken.is_some() {
                store_ref.ledger.note_never_freed(); // its owner cannot tell any more
            }
            // The budget is woken after the release, as in the owner's drop.
            awaited = Some(WakeBudget(budget));
            // SAFETY: the store is closed, and the buffer's count is this thread's to take back.
            unsafe { release_closed(store, CountedAs::In(at)) };
        } else {
            heap.accounts.live.down(1);
            // The store may be freed as soon as this thread unlocks the shard (`free_plain`).
            drop(heap);
        }
        drop(awaited);
    }
}

impl<A: DeviceAllocator> Drop for StoreReference<A> {
    fn drop(&mut self) {
        Self(self.0).release(|_| 0);
    }
}

/// A count that keeps a closed store alive.
#[derive(Clone, Copy)]
enum CountedAs {
    /// A buffer, in this shard.
    In(usize),
    Owner,
}

/// Takes a count of a closed store back, and frees the store if it was the last.
///
/// # Safety
///
/// The store is closed. The count is the caller's, who does not use the store again.
unsafe fn release_closed<A: DeviceAllocator>(store: NonNull<Store<A>>, count: CountedAs) {
    let sum = {
        // SAFETY: the count keeps the store alive. When it is taken back, the locks of all shards
        // do, which a thread that frees the store must take: the Rust reference is not used after
        // the last of them is unlocked.
        let mut all = unsafe { store.as_ref() }.shards.lock_all();
        match (count, all.get_mut(0)) {
            (CountedAs::Owner, Some(first)) => first.owners -= 1,
            (CountedAs::In(at), _) => all[at].accounts.live.down(1),
            (CountedAs::Owner, None) => {}
        }
        all.iter().map(|heap| heap.accounts.live.signed() + heap.owners).sum::<i64>()
    };
    if sum == 0 {
        // SAFETY: the sum reaches zero once, under all locks, so no other thread has the pointer or
        // will lock a shard. It came from a box in `Owner::new`.
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
unsafe impl<A: DeviceAllocator> Send for Handle<A> where Store<A>: Send + Sync {}
// SAFETY: as for `Owner`.
unsafe impl<A: DeviceAllocator> Sync for Handle<A> where Store<A>: Send + Sync {}
// SAFETY: as for `Owner`.
unsafe impl<A: DeviceAllocator> Send for StoreReference<A> where Store<A>: Send + Sync {}
// SAFETY: as for `Owner`.
unsafe impl<A: DeviceAllocator> Sync for StoreReference<A> where Store<A>: Send + Sync {}
