//! Buffers: the memory that a program has, its uses on streams, and how it goes back.
#![expect(unsafe_code, reason = "the store of a buffer, and buffers without their type")]

use crate::block::flags::{CLEAN, UsesGuard};
use crate::block::record::{Place, Record, RecordOwner};
use crate::port::{DeviceAllocator, DeviceError, StreamClock, StreamOf, Zeroing};
use crate::store::life::{Handle, address_of, store_of};
use crate::store::{Store, device};
use crate::stream::{Access, LastUses};
use std::fmt;
use std::mem::ManuallyDrop;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::NonNull;

mod detached;
mod freeing;
mod transfer;
mod uses;

pub use detached::Detached;
pub use uses::Use;

/// A block in use, from a [`BucketPool`](crate::BucketPool). Dropping the buffer gives the block
/// back; the drop never fails, and panics only if a call of the allocator does.
///
/// Buffers, pools and devices may be dropped in any order, on any thread: the last one frees what
/// is left. A buffer of host memory derefs to a slice of its bytes. For other memory
/// [`PooledBuffer::on`] returns the type that the device's own calls take.
///
/// A buffer contains what the last user of its block left in it, unless the pool zeroes its blocks
/// ([`ZeroPolicy`](crate::ZeroPolicy)).
#[repr(transparent)]
pub struct PooledBuffer<A: DeviceAllocator> {
    /// The block. Its record contains a counted reference to the store, which the buffer releases
    /// together with the record.
    pub(super) record: ManuallyDrop<RecordOwner<A>>,
}

/// The uses of a buffer that is borrowed alone.
pub(super) type UsesOf<'b, A> =
    UsesGuard<'b, <A as DeviceAllocator>::Clock, &'b mut LastUses<<A as DeviceAllocator>::Clock>>;

impl<A: DeviceAllocator> PooledBuffer<A> {
    /// Makes a buffer, which is a pointer to its record, of a block that a hit has just counted as in use, and that
    /// knows its store.
    #[inline]
    pub(crate) fn again(record: RecordOwner<A>) -> Self {
        debug_assert!(record.store.is_some(), "the block of a hit knows its store");
        Self { record: ManuallyDrop::new(record) }
    }

    /// Makes a buffer of a block that the handle's store has just counted as in use.
    #[inline]
    pub(crate) fn new(handle: &Handle<A>, mut record: RecordOwner<A>) -> Self {
        debug_assert!(record.requested <= record.bytes, "a block is as large as its request");
        handle.set_store(&mut record);
        record.flags.set(CLEAN, false); // the program may write it
        Self { record: ManuallyDrop::new(record) }
    }

    #[inline]
    pub(crate) fn store(&self) -> &Store<A> {
        // SAFETY: `new` filled the store address, and the reference to the store leaves the buffer
        // only together with the record.
        unsafe { store_of(&self.record) }
    }

    /// The address of the store.
    #[inline]
    pub(crate) fn store_address(&self) -> NonNull<Store<A>> {
        // SAFETY: as in `store`.
        unsafe { address_of(&self.record) }
    }

    /// Returns the store, the block and its marks, borrowed side by side.
    #[inline]
    pub(super) fn parts(&mut self) -> (&Store<A>, &mut Place<A>, UsesOf<'_, A>) {
        // SAFETY: as in `store`. The store is no part of the record, and lives as long as the buffer.
        let store = std::ptr::from_ref(unsafe { store_of(&self.record) });
        // SAFETY: as above.
        let store = unsafe { &*store };
        let Record { place, marks, flags, .. } = &mut **self.record;
        (store, place, UsesGuard::new(flags, marks.get_mut()))
    }

    /// Returns the buffer as a pointer without its type, for code in another language. The buffer is
    /// not dropped.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, PooledBuffer, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(SimDevice::new());
    /// let handle = pool.allocate(4096)?.into_raw();
    /// // SAFETY: the handle is of this type, and is used once.
    /// let buffer = unsafe { PooledBuffer::<SimDevice>::from_raw(handle) };
    /// assert_eq!((buffer.size(), pool.stats().deallocations), (4096, 0));
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    #[inline]
    #[must_use = "the buffer is freed by `from_raw` alone"]
    pub fn into_raw(self) -> NonNull<()> {
        // SAFETY: a transparent wrapper of one pointer, which is not null and not dropped.
        unsafe { std::mem::transmute(self) }
    }

    /// Returns the buffer of a pointer from [`PooledBuffer::into_raw`].
    ///
    /// # Safety
    ///
    /// `raw` came from `into_raw` of this type, and no other code uses it.
    #[inline]
    #[must_use]
    pub unsafe fn from_raw(raw: NonNull<()>) -> Self {
        // SAFETY: as in `into_raw`, and as the caller promises.
        unsafe { std::mem::transmute(raw) }
    }

    /// Borrows the buffer of a pointer from [`PooledBuffer::into_raw`].
    ///
    /// # Safety
    ///
    /// `raw` came from `into_raw` of this type.
    #[inline]
    #[must_use]
    pub unsafe fn ref_of_raw(raw: &NonNull<()>) -> &Self {
        // SAFETY: as above; the buffer is a transparent wrapper of the pointer.
        unsafe { &*std::ptr::from_ref(raw).cast() }
    }

    /// Borrows the buffer of a pointer from [`PooledBuffer::into_raw`] exclusively.
    ///
    /// # Safety
    ///
    /// As for [`PooledBuffer::ref_of_raw`].
    #[inline]
    pub unsafe fn mut_of_raw(raw: &mut NonNull<()>) -> &mut Self {
        // SAFETY: as above.
        unsafe { &mut *std::ptr::from_mut(raw).cast() }
    }

    /// Returns the bytes that were requested.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.record.requested
    }

    /// Returns the bytes of the block, after rounding.
    #[must_use]
    pub fn allocated_size(&self) -> u64 {
        self.record.bytes
    }

    /// Returns whether the block is kept for a graph ([`PrivatePool`](crate::PrivatePool)).
    #[must_use]
    pub fn is_private(&self) -> bool {
        self.record.private().is_some()
    }

    /// Returns the kind of the memory.
    #[must_use]
    pub fn kind(&self) -> A::Kind {
        self.record.kind
    }

    /// Returns the allocator that the block came from.
    #[must_use]
    pub fn allocator(&self) -> &A {
        &self.store().allocator
    }

    /// Returns whether its block can serve ([`DeviceAllocator::is_intact`]). Segments are not asked about:
    /// other buffers are in them.
    #[inline]
    pub(crate) fn is_intact(&self) -> bool {
        match &self.record.place {
            Place::Whole(block) => self.allocator().is_intact(block),
            Place::Part(_) => true,
        }
    }

    /// Zeroes the first `bytes` bytes of the block, in the order of `on`. The buffer records it as
    /// a use, unless the zeroes are there when the call returns.
    pub(crate) fn zero(&mut self, bytes: u64, on: &StreamOf<A>) -> Result<(), DeviceError> {
        invariant!(bytes <= self.record.bytes, "only bytes of the block are zeroed");
        let (store, place, mut marks) = self.parts();
        device::zero(store, place, bytes, on)?;
        if A::MEMORY.zeroing != Zeroing::AtOnce {
            let clock = store.allocator.clock();
            marks.end(clock, clock.mark(on), Access::Write);
        }
        Ok(())
    }
}

/// A panic leaves buffers and pools in a consistent state: the pool calls no foreign code while it
/// holds a lock, and a block that it removed from a list for a device call goes back into
/// the list.
impl<A: DeviceAllocator> UnwindSafe for PooledBuffer<A> {}
impl<A: DeviceAllocator> RefUnwindSafe for PooledBuffer<A> {}
impl<A: DeviceAllocator> fmt::Debug for PooledBuffer<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PooledBuffer")
            .field("size", &self.size())
            .field("allocated_size", &self.allocated_size())
            .field("kind", &self.kind())
            .finish_non_exhaustive()
    }
}
