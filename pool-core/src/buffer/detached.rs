//! Blocks that leave the cache for good.
#![expect(unsafe_code, reason = "moving the block out of a buffer that is not dropped")]

use crate::block::flags::BYPASS;
use crate::buffer::PooledBuffer;
use crate::invariant::Scope;
use crate::port::{DeviceAllocator, DeviceError, MarkOf, WholeBlocks, Why};
use crate::store::free;
use crate::store::hit::OBSERVED;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::panic::resume_unwind;

impl<A: DeviceAllocator> PooledBuffer<A> {
    /// Detaches the buffer from the pool: when it is dropped, its block is freed to the device and
    /// not cached.
    ///
    /// It still comes from the pool's allocator and counts under the pool's limit until it is freed
    /// or taken by [`Detached::into_raw`].
    #[must_use]
    pub fn detach(mut self) -> Detached<A> {
        self.record.flags.set(BYPASS, true);
        Detached(self)
    }
}

/// A buffer that was detached from its pool. Dropping it frees its block to the device: at once if
/// a drop may call the device, else at the pool's next miss or trim. [`Detached::free`] frees it
/// now.
#[derive(Debug)]
pub struct Detached<A: DeviceAllocator>(PooledBuffer<A>);

impl<A: DeviceAllocator> Detached<A> {
    /// Gives the block back to the device now; in a pool with an arena, to the free ranges of its
    /// segment. A block of a [`PrivatePool`](crate::PrivatePool) goes back when that pool is
    /// dropped, because a graph may still use it.
    ///
    /// # Errors
    ///
    /// The error of the device; the block is lost then.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, MIB, Why, sim::{SimCall, SimDevice}};
    ///
    /// let device = SimDevice::new();
    /// let pool = BucketPool::new(device.clone());
    /// pool.allocate(MIB)?.detach().free()?;
    /// assert_eq!((pool.reserved_bytes(), device.held_bytes()), (0, 0));
    /// let detached = pool.allocate(MIB)?.detach();
    /// device.fail(SimCall::Free, 0, 1);
    /// assert_eq!(detached.free().unwrap_err().why, Why::Other);
    /// assert_eq!(pool.stats().lost_bytes, MIB);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn free(self) -> Result<(), DeviceError> {
        let mut buffer = ManuallyDrop::new(self.0);
        if let Some(fault) = buffer.store().fault()
            && matches!(fault.why, Why::Forked | Why::Broken)
        {
            return Err(fault);
        }
        if buffer.record.private().is_some() {
            drop(ManuallyDrop::into_inner(buffer));
            return Ok(());
        }
        if buffer.store().flags.any(OBSERVED) {
            buffer.notify_freed();
            buffer.check_guard();
        }
        let _scope = Scope::enter(); // the release of the reference takes the note of this call
        let zeroed = buffer.zero_on_return();
        // SAFETY: the buffer is not dropped and not used again.
        let (reference, record) = unsafe { buffer.move_out() };
        let mut refusal = None;
        reference.release(|store| {
            if !store.layout.is_arena() {
                let (at, refused) = free::free_detached(store, record);
                refusal = refused;
                return at;
            }
            free::free(store, record, matches!(zeroed, Ok(true)))
        });
        if let Err(panic) = zeroed {
            resume_unwind(panic);
        }
        refusal.map_or(Ok(()), Err)
    }
}

impl<A: DeviceAllocator> Detached<A> {
    /// Returns the device's own allocation, for code that frees it with the device's own call.
    ///
    /// The allocation no longer counts under the pool's limit. The returned marks are its last
    /// uses: it may be written once all of them are done. If it was kept for a graph, it must live
    /// as long as the graph can be launched.
    ///
    /// # Errors
    ///
    /// Returns `self` if the block is a part of a segment, as in a pool with an arena, because the
    /// device cannot free a part. Also returns `self` if the pool is broken, or in a forked child that cannot use it.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{ArenaConfig, BucketPool, DeviceAllocator, MIB, sim::SimDevice};
    ///
    /// let device = SimDevice::new();
    /// let pool = BucketPool::new(device.clone());
    /// let (block, after) = pool.allocate(4096)?.detach().into_raw().unwrap();
    /// assert_eq!(pool.reserved_bytes(), 0);
    /// device.free(block, &after)?; // the caller's own call
    /// let arena = ArenaConfig::segments(2 * MIB);
    /// let pool = BucketPool::builder(device).arena(arena).build();
    /// assert!(pool.allocate(4096)?.detach().into_raw().is_err()); // a part of a segment
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn into_raw(self) -> Result<(A::Block, Vec<MarkOf<A>>), Self>
    where
        A: WholeBlocks,
    {
        if self.0.store().layout.is_arena() || self.0.store().is_unusable() {
            return Err(self);
        }
        let mut buffer = ManuallyDrop::new(self.0);
        if buffer.store().flags.any(OBSERVED) {
            buffer.notify_freed();
        }
        let _scope = Scope::enter(); // as in `free`
        // SAFETY: the buffer is not dropped and not used again.
        let (reference, mut record) = unsafe { buffer.move_out() };
        if let Some(id) = record.private() {
            let store = reference.store();
            let launching = store.privates.launching(id);
            let _launching = launching.lock(); // a launch that is under way has its mark then
            store.privates.release(store.allocator.clock(), &mut record);
        }
        let mut raw = None;
        reference.release(|store| {
            let (at, block) = free::remove_detached(store, record);
            if let Some((block, _)) = &block {
                store.allocator.let_go(block);
            }
            raw = block;
            at
        });
        match raw {
            Some(raw) => Ok(raw),
            None => unreachable!("a live block has a segment"),
        }
    }
}

impl<A: DeviceAllocator> Deref for Detached<A> {
    type Target = PooledBuffer<A>;
    fn deref(&self) -> &PooledBuffer<A> {
        &self.0
    }
}

impl<A: DeviceAllocator> std::ops::DerefMut for Detached<A> {
    fn deref_mut(&mut self) -> &mut PooledBuffer<A> {
        &mut self.0
    }
}
