//! Pooled buffers: the type that a program uses, which returns its block when it is dropped.
#![expect(unsafe_code, reason = "moving the block out of a buffer that is being dropped")]

use crate::block::flags::{AWAITED, OBSERVED, ZEROES};
use crate::block::record::{Record, RecordOwner};
use crate::device::{DeviceAllocator, MarkOf, StreamOf, WholeBlocks, Zeroing};
use crate::error::{DeviceError, Why};
use crate::observe::EventKind;
use crate::pool::reference::{Owner, StoreReference, put, store_at};
use crate::pool::store::Store;
use crate::stream::clock::{Order, StreamClock};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::NonNull;

/// A block in use, from a [`BucketPool`](crate::BucketPool). Dropping the buffer gives the block
/// back; the drop never fails and never panics.
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
    record: ManuallyDrop<RecordOwner<A>>,
}

impl<A: DeviceAllocator> PooledBuffer<A> {
    /// Makes a buffer of a block that the owner's store has just counted as in use.
    #[inline]
    pub(crate) fn new(owner: &Owner<A>, mut record: RecordOwner<A>) -> Self {
        owner.set_store(&mut record);
        Self { record: ManuallyDrop::new(record) }
    }

    #[inline]
    fn store(&self) -> &Store<A> {
        // SAFETY: `new` filled the store address, and the reference to the store leaves the buffer
        // only together with the record.
        unsafe { store_at(&self.record.store_address) }
    }

    /// Returns the buffer as a pointer without its type. The buffer is not dropped.
    #[inline]
    pub(crate) fn into_raw(self) -> NonNull<()> {
        // SAFETY: a transparent wrapper of one pointer, which is not null and not dropped.
        unsafe { std::mem::transmute(self) }
    }

    /// Returns the buffer of a pointer from [`PooledBuffer::into_raw`].
    ///
    /// # Safety
    ///
    /// `raw` came from `into_raw` of this type, and no other code uses it.
    #[inline]
    pub(crate) unsafe fn from_raw(raw: NonNull<()>) -> Self {
        // SAFETY: as in `into_raw`, and as the caller promises.
        unsafe { std::mem::transmute(raw) }
    }

    /// Borrows the buffer of a pointer from [`PooledBuffer::into_raw`].
    ///
    /// # Safety
    ///
    /// `raw` came from `into_raw` of this type.
    #[inline]
    pub(crate) unsafe fn of_raw(raw: &NonNull<()>) -> &Self {
        // SAFETY: as above; the buffer is a transparent wrapper of the pointer.
        unsafe { &*std::ptr::from_ref(raw).cast() }
    }

    /// Borrows the buffer of a pointer from [`PooledBuffer::into_raw`] exclusively.
    ///
    /// # Safety
    ///
    /// As for `of_raw`.
    #[inline]
    pub(crate) unsafe fn of_raw_mut(raw: &mut NonNull<()>) -> &mut Self {
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
        self.record.private.is_some()
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

    /// Returns the memory, for work that is given to `stream` while the [`Use`] lives.
    ///
    /// The call orders the stream after the buffer's allocation and after the uses of the buffer
    /// that have ended on other streams, if necessary with waits on the device. When the `Use` is
    /// dropped, the buffer records a mark of the stream, and the block serves no other request
    /// before that mark is done.
    ///
    /// # Errors
    ///
    /// [`Why::Foreign`] if the stream belongs to another device or has ended, [`Why::NotSubmitted`]
    /// if the buffer was allocated for, or used in, work that has not reached the device, or the
    /// error of the device.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core as bucketpool;
    /// use bucketpool::{BucketPool, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(SimDevice::new());
    /// let (load, compute) = (pool.allocator().stream(), pool.allocator().stream());
    /// let tile = pool.allocate_on(&load, 4096)?;
    /// pool.allocator().kernel(&load, &*tile.on(&load)?);
    /// pool.allocator().kernel(&compute, &*tile.on(&compute)?); // waits on the device, not here
    /// assert_eq!(pool.allocator().hazards(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on<'b>(&'b self, stream: &'b StreamOf<A>) -> Result<Use<'b, A>, DeviceError> {
        self.use_until_drop(stream)?; // the drop of the `Use` ends it
        Ok(Use { view: self.view(stream), stream, buffer: self })
    }

    /// Records that `stream` uses the buffer until it is dropped. Makes no device call.
    ///
    /// It is for code that orders its streams itself, as `torch.Tensor.record_stream` is: the
    /// caller orders `stream` after the buffer's allocation and after its earlier uses.
    /// [`PooledBuffer::on`] and [`PooledBuffer::use_until_drop`] do both. When another stream
    /// requests the block after the drop, it waits for `stream` too. In a capture, use
    /// [`PooledBuffer::on`], because only then a launch waits for the buffer's earlier uses.
    ///
    /// # Errors
    ///
    /// [`Why::Foreign`] if the stream belongs to another device or has ended,
    /// [`Why::NotSubmitted`] for a page-locked buffer on a stream under capture, and the reason if
    /// the device is lost.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core as bucketpool;
    /// use bucketpool::{BucketPool, DeviceAllocator, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(SimDevice::new());
    /// let (load, compute) = (pool.allocator().stream(), pool.allocator().stream());
    /// let tile = pool.allocate_on(&load, 4096)?;
    /// pool.allocator().kernel(&load, &*tile.on(&load)?);
    /// let address = tile.on(&compute)?; // orders `compute` after `load`
    /// tile.record_stream(&compute)?;
    /// drop(address);
    /// // A library keeps the address, and gives work to `compute` until the tile is dropped.
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn record_stream(&self, stream: &StreamOf<A>) -> Result<(), DeviceError> {
        self.may_use_on(stream)?;
        self.begin_use(stream);
        Ok(())
    }

    /// Orders `stream` as [`PooledBuffer::on`] does, and records that it uses the buffer until the
    /// drop. It is for code that cannot tell when a use ends.
    ///
    /// # Errors
    ///
    /// As for [`PooledBuffer::on`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core as bucketpool;
    /// use bucketpool::{BucketPool, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(SimDevice::new());
    /// let compute = pool.allocator().stream();
    /// let tile = pool.allocate(4096)?;
    /// tile.use_until_drop(&compute)?; // work that `compute` is given from here on may use it
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn use_until_drop(&self, stream: &StreamOf<A>) -> Result<(), DeviceError> {
        self.order(stream)?;
        self.begin_use(stream);
        Ok(())
    }

    fn begin_use(&self, stream: &StreamOf<A>) {
        let clock = self.allocator().clock();
        self.record.marks.lock().begin(clock, clock.mark(stream));
    }

    /// Returns the memory for the CPU. Blocks the host until all work with the buffer, including
    /// recorded uses, is done.
    ///
    /// # Errors
    ///
    /// The error of the device; [`Why::NotSubmitted`] if the wait would never end.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core as bucketpool;
    /// use bucketpool::{BucketPool, Why, sim::{MappedSim, SimDevice}};
    ///
    /// let device = SimDevice::new();
    /// let pool = BucketPool::new(MappedSim(device.clone()));
    /// let stream = device.stream();
    /// let mut buffer = pool.allocate_on(&stream, 4096)?;
    /// device.kernel(&stream, &*buffer.on(&stream)?);
    /// device.touch(&buffer.on_cpu()?); // the kernel has run
    /// assert_eq!(device.hazards(), 0);
    /// device.lose_after(0);
    /// device.kernel(&stream, &*buffer.on(&stream)?);
    /// assert_eq!(buffer.on_cpu().unwrap_err().why, Why::Lost);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_cpu(&mut self) -> Result<A::View<'_>, DeviceError> {
        let Record { store_address, marks, .. } = &mut **self.record;
        // SAFETY: as in `store`.
        let store: &Store<A> = unsafe { store_at(store_address) };
        let clock = store.allocator.clock();
        if let Some(fault) = clock.fault() {
            return Err(fault);
        }
        let marks = marks.get_mut();
        marks.close(clock);
        let after = marks.after(A::MEMORY.cpu_touches);
        after.marks().iter().try_for_each(|mark| clock.synchronize(*mark))?;
        Ok(self.view(self.allocator().clock().default_stream()))
    }

    /// Returns the memory, for work on `stream`. Records no use.
    #[inline]
    pub(crate) fn view<'b>(&'b self, stream: &StreamOf<A>) -> A::View<'b> {
        self.record.view(self.allocator(), self.record.requested, stream)
    }

    fn may_use_on(&self, stream: &StreamOf<A>) -> Result<(), DeviceError> {
        let clock = self.allocator().clock();
        if let Some(fault) = clock.fault() {
            return Err(fault);
        }
        if !clock.owns(stream) {
            return Err(DeviceError::new(
                Why::Foreign,
                "use on a stream that this device does not have",
                0,
            ));
        }
        if A::MEMORY.cpu_touches && !clock.takes_work(stream) {
            // A graph launch could access the memory at any later time, and the CPU could not know.
            let call = "use memory that the CPU can touch in a capture";
            return Err(DeviceError::new(Why::NotSubmitted, call, 0));
        }
        Ok(())
    }

    fn order(&self, stream: &StreamOf<A>) -> Result<(), DeviceError> {
        self.may_use_on(stream)?;
        let clock = self.allocator().clock();
        let mut behind = self.record.marks.lock().behind(clock, stream, A::MEMORY.cpu_touches);
        if let Some(id) = self.record.private {
            behind.extend(self.store().privates.behind(id));
        }
        if behind.is_empty() || clock.order(stream, &behind)? == Order::Ordered {
            return Ok(());
        }
        Err(DeviceError::new(Why::NotSubmitted, "use on another stream", 0))
    }

    /// Removes the block from the cache for good: it goes back to the device, not to the pool.
    ///
    /// It still comes from the pool's allocator and counts under the pool's limit until it is freed
    /// or taken by [`Detached::into_raw`].
    #[must_use]
    pub fn detach(mut self) -> Detached<A> {
        self.record.pooled = false;
        Detached(self)
    }

    /// Zeroes the first `bytes` bytes of the block, in the order of `on`. The buffer records it as
    /// a use.
    pub(crate) fn zero(&mut self, bytes: u64, on: &StreamOf<A>) -> Result<(), DeviceError> {
        let Record { store_address, part, marks, .. } = &mut **self.record;
        // SAFETY: as in `store`.
        let store: &Store<A> = unsafe { store_at(store_address) };
        store.zero(part, bytes, on)?;
        let clock = store.allocator.clock();
        marks.get_mut().end(clock, clock.mark(on));
        Ok(())
    }

    /// Moves the reference to the store and the record out of the buffer.
    ///
    /// # Safety
    ///
    /// The buffer is not used again, its `Drop` included.
    #[inline]
    unsafe fn take_parts(&mut self) -> (StoreReference<A>, RecordOwner<A>) {
        // SAFETY: the caller promises that the record is not taken a second time.
        let mut record = unsafe { ManuallyDrop::take(&mut self.record) };
        // SAFETY: `new` filled the store address, and the record is taken out once.
        let reference = unsafe { StoreReference::taken_from(&record) };
        record.marks.get_mut().close(reference.store().allocator.clock());
        (reference, record)
    }
}

/// A panic leaves no buffer and no pool in an inconsistent state: the pool calls no foreign code
/// while it holds the book's lock, and puts back what it took out for a device call.
impl<A: DeviceAllocator> UnwindSafe for PooledBuffer<A> {}
impl<A: DeviceAllocator> RefUnwindSafe for PooledBuffer<A> {}

impl<A: DeviceAllocator> Drop for PooledBuffer<A> {
    #[inline]
    fn drop(&mut self) {
        if !self.drop_into_cache(OBSERVED | AWAITED | ZEROES) {
            self.drop_slow();
        }
    }
}

impl<A: DeviceAllocator> PooledBuffer<A> {
    /// Gives the block back to the thread's own cache. Returns false if the cache cannot keep it,
    /// or if any of the flags `passes_cache` is set. Only `drop` calls it.
    #[inline]
    fn drop_into_cache(&mut self, passes_cache: u8) -> bool {
        let (store, record) = (self.store(), &self.record);
        let plain = record.pooled && record.private.is_none() && !store.has_lost_handles();
        if !plain || !self.record.marks.get_mut().are_closed() {
            return false;
        }
        // SAFETY: a buffer is dropped once, and if the cache takes the record, it is not used
        // again.
        let record = unsafe { ManuallyDrop::take(&mut self.record) };
        // SAFETY: `new` filled the store address.
        let Err(record) = (unsafe { put(record, passes_cache) }) else { return true };
        self.record = ManuallyDrop::new(record);
        false
    }

    /// Sets the guard of a buffer that a program receives, if the pool has guards.
    pub(crate) fn guard(&mut self, fresh: bool, zeroed: bool) {
        let store = self.store();
        if let Some(guards) = &store.guards {
            let reused = !fresh && !zeroed && store.book.is_blocks();
            // SAFETY: the buffer is borrowed exclusively, so no code has a slice of its bytes.
            unsafe { guards.lend(&store.allocator, &self.record, reused) };
        }
    }

    /// Checks the guard of a buffer that is freed, if the pool has guards.
    #[cold]
    fn check_guard(&mut self) {
        let store = self.store();
        if let Some(guards) = &store.guards {
            // SAFETY: as in `guard`.
            unsafe { guards.free(&store.allocator, &self.record) };
        }
    }

    /// Notifies the observers that the buffer is freed.
    #[cold]
    fn tell_freed(&mut self) {
        let Record { store_address, marks, .. } = &mut **self.record;
        // SAFETY: as in `store`.
        let store: &Store<A> = unsafe { store_at(store_address) };
        let stream = store.allocator.clock().stream_id(marks.get_mut().own());
        self.store().tell(EventKind::Free, self.record.about(stream));
    }

    /// Zeroes a block that is freed, if the pool zeroes freed blocks. Does so only if no stream can
    /// still read the block and the call is legal anywhere. Returns whether the block is zeroed.
    #[inline]
    fn zero_on_return(&mut self) -> bool {
        if A::MEMORY.zeroing != Zeroing::AtOnce {
            return false;
        }
        let Record { store_address, part, marks, bytes, .. } = &mut **self.record;
        // SAFETY: as in `store`.
        let store: &Store<A> = unsafe { store_at(store_address) };
        if !store.bounds.zero_on_return {
            return false;
        }
        let clock = store.allocator.clock();
        let done = marks.get_mut().all_are(|mark| clock.is_seen_done(mark));
        done && store.zero(part, *bytes, clock.default_stream()).is_ok()
    }

    /// Frees a block that the thread's own cache did not keep. Only `drop` calls it.
    #[inline(never)]
    fn drop_slow(&mut self) {
        if self.store().is_forked() {
            return; // a thread that does not exist in this process may hold the locks
        }
        if self.store().flags.any(OBSERVED) {
            self.tell_freed();
            self.check_guard();
            if self.drop_into_cache(AWAITED | ZEROES) {
                return;
            }
        }
        let zeroed = self.zero_on_return();
        // SAFETY: a buffer is dropped once, and nothing follows in this function.
        let (reference, parts) = unsafe { self.take_parts() };
        reference.release(|store| store.free_to_book(parts, zeroed));
    }
}

impl<A: DeviceAllocator> fmt::Debug for PooledBuffer<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PooledBuffer")
            .field("size", &self.size())
            .field("allocated_size", &self.allocated_size())
            .field("kind", &self.kind())
            .finish_non_exhaustive()
    }
}

/// A use of a buffer on a stream; derefs to the device's view of the buffer. It gives out shared
/// references only: a view that was swapped with that of another use would outlive its own use.
///
/// Its drop takes the mark: the pool waits for all work that was given to the stream while the use
/// lived before the block serves again. If a use is forgotten (`mem::forget`), the drop of the
/// buffer detects it. Until then its stream counts as in use.
pub struct Use<'b, A: DeviceAllocator> {
    view: A::View<'b>,
    stream: &'b StreamOf<A>,
    buffer: &'b PooledBuffer<A>,
}

impl<'b, A: DeviceAllocator> Deref for Use<'b, A> {
    type Target = A::View<'b>;
    fn deref(&self) -> &A::View<'b> {
        &self.view
    }
}

impl<A: DeviceAllocator> Drop for Use<'_, A> {
    fn drop(&mut self) {
        let clock = self.buffer.allocator().clock();
        if !self.buffer.store().is_forked() {
            self.buffer.record.marks.lock().end(clock, clock.mark(self.stream));
        }
    }
}

impl<A: DeviceAllocator> fmt::Debug for Use<'_, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Use").field("buffer", self.buffer).finish_non_exhaustive()
    }
}

/// A block that was removed from the cache. Dropping it gives it back to the device: at once where
/// a drop may do that, else with the pool's next miss or trim. [`Detached::free`] gives it back
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
    /// # use pool_core as bucketpool;
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
            && fault.why == Why::Forked
        {
            return Err(fault);
        }
        if buffer.record.private.is_some() {
            drop(ManuallyDrop::into_inner(buffer));
            return Ok(());
        }
        buffer.tell_freed();
        buffer.check_guard();
        let zeroed = buffer.zero_on_return();
        // SAFETY: the buffer is not dropped and not used again.
        let (reference, record) = unsafe { buffer.take_parts() };
        if !reference.store().book.is_blocks() {
            reference.release(|store| store.free_to_book(record, zeroed));
            return Ok(());
        }
        let refusal = reference.store().free_detached(record);
        reference.release(|store| store.book.lock());
        refusal.map_or(Ok(()), Err)
    }
}

impl<A: WholeBlocks> Detached<A> {
    /// Returns the device's own allocation, for code that frees it with the device's own call.
    ///
    /// The allocation no longer counts under the pool's limit. It may be written once all the marks
    /// are done. If it was kept for a graph, it must live as long as the graph can be launched.
    ///
    /// # Errors
    ///
    /// Returns `self` if the block is a part of a segment, as in a pool with an arena, because the
    /// device cannot free a part. Also returns `self` in a forked child that cannot use the pool.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core as bucketpool;
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
    pub fn into_raw(self) -> Result<(A::Block, Vec<MarkOf<A>>), Self> {
        if !self.0.store().book.is_blocks() || self.0.store().is_forked() {
            return Err(self);
        }
        let mut buffer = ManuallyDrop::new(self.0);
        buffer.tell_freed();
        // SAFETY: the buffer is not dropped and not used again.
        let (reference, mut record) = unsafe { buffer.take_parts() };
        reference.store().privates.release(reference.store().allocator.clock(), &mut record);
        let raw = reference.store().take_raw(record);
        reference.release(|store| store.book.lock());
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
