//! A stack of thread caches without an owner.
//!
//! ```text
//!   top   | changes: 24 bits | number of the page at which the newest begins: 40 bits |
//! ```
//!
//! A thread that takes the newest reads which one is below it, and then exchanges the top. Others may take
//! both and put the first back meanwhile, and what is below it is another one then, or has an owner (the ABA
//! problem of R. K. Treiber, Systems programming: coping with parallelism, 1986). So the top counts its
//! changes. The count begins anew after 16 million of them, all of which would have to fall between the two
//! steps of one thread.

use super::super::barrier;
use super::super::thread_cache::ThreadCache;
use crate::sync::atomic::{
    AtomicPtr, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::ptr;

/// Bits of the top with the page's number: addresses of programs have fewer than 52 bits.
const PAGE_BITS: u32 = 40;
/// Bytes of the least page. A thread cache is a mapping of its own, so it begins at one.
const LEAST_PAGE: usize = 4 << 10;

/// Thread caches without an owner. They stay mapped, so that a thread may read of one which another
/// thread has just taken.
#[derive(Debug)]
pub(super) struct Stack {
    top: AtomicPtr<ThreadCache>,
    /// How many there are. While threads take and put some it is off by theirs.
    len: AtomicUsize,
}

impl Stack {
    pub(super) const fn new() -> Self {
        Self { top: AtomicPtr::new(ptr::null_mut()), len: AtomicUsize::new(0) }
    }

    /// Returns about how many there are.
    pub(super) fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    /// Puts a thread cache, which the caller owns, on top.
    pub(super) fn put(&self, local: &ThreadCache) {
        self.len.fetch_add(1, Relaxed);
        let address = ptr::from_ref(local).cast_mut();
        self.exchange(|top| {
            local.below.store(address_of(top), Relaxed);
            Some(address)
        });
    }

    /// Takes the one on top, which the caller owns from then on.
    pub(super) fn take(&self) -> Option<&'static ThreadCache> {
        let taken = self.exchange(|top| {
            let newest = reference(address_of(top))?;
            Some(newest.below.load(Relaxed))
        });
        let taken = reference(address_of(taken?));
        // A child that a signal handler forked in between has cleared the stack.
        let _ = self.len.fetch_update(Relaxed, Relaxed, |len| len.checked_sub(1));
        taken
    }

    /// Exchanges the top for what `next` returns for it. Returns the top that was, or `None` if `next` does.
    fn exchange(
        &self,
        next: impl Fn(*mut ThreadCache) -> Option<*mut ThreadCache>,
    ) -> Option<*mut ThreadCache> {
        // Acquire: the thread sees what the last owner did, and which one is below it.
        let mut top = self.top.load(Acquire);
        loop {
            let new = marked(next(top)?, changes_of(top).wrapping_add(1));
            barrier::switch();
            // Release: the next owner sees what this thread did.
            match self.top.compare_exchange(top, new, Release, Acquire) {
                Ok(_) => return Some(top),
                Err(other) => top = other,
            }
        }
    }

    /// Forgets all, in a forked child, which has one thread.
    pub(super) fn clear(&self) {
        self.len.store(0, Relaxed);
        self.top.store(ptr::null_mut(), Relaxed);
    }
}

/// Returns the number of changes that a top has counted.
fn changes_of(top: *mut ThreadCache) -> usize {
    top.addr() >> PAGE_BITS
}

/// Returns the address that a top has; null if the stack is empty.
fn address_of(top: *mut ThreadCache) -> *mut ThreadCache {
    top.map_addr(|word| (word & ((1 << PAGE_BITS) - 1)) * LEAST_PAGE)
}

/// Returns a top with this address and this number of changes.
fn marked(address: *mut ThreadCache, changes: usize) -> *mut ThreadCache {
    address.map_addr(|address| (address / LEAST_PAGE) | (changes << PAGE_BITS))
}

/// Returns the thread cache at an address that a stack has.
fn reference(address: *mut ThreadCache) -> Option<&'static ThreadCache> {
    #[expect(unsafe_code, reason = "a list without an allocator")]
    // SAFETY: the address is null, or that of a thread cache which `put` got as a reference. Each comes from
    // `ThreadCaches::add`, which initialised it before it had an owner, and it is never unmapped. Threads
    // access it through shared references only.
    unsafe {
        address.as_ref()
    }
}
