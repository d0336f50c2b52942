//! Private pools: the memory of a graph is taken from a private pool, and stays in it while the
//! graph lives.

use crate::block::PrivateId;
use crate::limits::InTransit;
use crate::pool::BucketPool;
use crate::pool::waiting::WakeAtEnd;
use crate::port::{DeviceAllocator, DeviceError, MarkOf, Order, StreamClock, StreamOf, Why};
use crate::store::captures;
use std::{fmt, mem};

/// The part of a [`BucketPool`]'s memory that is kept for one graph.
///
/// Buffers for a bound stream come from the private pool, or from the device if no cached block
/// serves the request. They go back to the private pool when they are dropped, however late. They
/// are reused in the order of the streams, without an event. When the private pool is dropped, its
/// blocks go to the `BucketPool`, ordered after the recorded launches. Buffers that are still alive
/// then go there when they are dropped.
///
/// A backend builds its capture on this type; an example is `CudaCapture` in `pool-cuda`.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
/// use bucketpool::{BucketPool, MIB, PrivatePool, sim::SimDevice};
///
/// let pool = BucketPool::new(SimDevice::new());
/// let stream = pool.allocator().stream();
/// let private = PrivatePool::new(&pool);
/// private.bind(&stream)?;
/// drop(pool.allocate_on(&stream, MIB)?);
/// private.end(&[]);
/// let other = pool.allocate_on(&stream, MIB)?; // not the same block
/// assert_eq!((private.cached_bytes(), pool.stats().misses), (MIB, 2));
/// drop(private);
/// let same = pool.allocate_on(&stream, MIB)?;
/// assert_eq!(pool.stats().hits, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PrivatePool<A: DeviceAllocator> {
    pool: BucketPool<A>,
    id: PrivateId,
}

impl<A: DeviceAllocator> PrivatePool<A> {
    /// Makes a private pool in `pool` for one graph.
    #[must_use]
    pub fn new(pool: &BucketPool<A>) -> Self {
        Self::open(pool, false)
    }

    /// As [`PrivatePool::new`], for graphs of which nobody tells the launches, so that nothing can be
    /// ordered in front of them: it takes no memory that earlier work may still use, and
    /// [`PrivatePool::end`] notes no marks. The graphs run one after the other, and its owner drops it
    /// behind all of their work. An example is `GraphPool` in `pool-cuda`.
    #[must_use]
    pub fn without_launches(pool: &BucketPool<A>) -> Self {
        Self::open(pool, true)
    }

    fn open(pool: &BucketPool<A>, is_untold: bool) -> Self {
        let store = pool.store();
        // A thread that does not exist in a forked process may hold the lock.
        let id = if store.is_unusable() { PrivateId::MAX } else { store.privates.open(is_untold) };
        Self { pool: pool.clone(), id }
    }

    /// Returns the pool that it is a part of.
    #[must_use]
    pub fn pool(&self) -> &BucketPool<A> {
        &self.pool
    }

    /// Binds a stream: its buffers come from the private pool from now on.
    ///
    /// # Errors
    ///
    /// [`Why::Foreign`] for a stream of another device, [`Why::Other`] for a stream that is bound
    /// already.
    ///
    /// See [`PrivatePool`] for an example.
    pub fn bind(&self, stream: &StreamOf<A>) -> Result<(), DeviceError> {
        let clock = self.pool.allocator().clock();
        if let Some(fault) = self.pool.store().fault() {
            return Err(fault);
        }
        if !clock.owns(stream) {
            return Err(DeviceError::new(Why::Foreign, "bind a stream of another device"));
        }
        let stream_id = clock.stream_id(clock.mark(stream));
        if self.pool.store().privates.bind(stream_id, self.id, &self.pool.store().flags) {
            return Ok(());
        }
        Err(DeviceError::new(Why::Other, "bind a stream that is bound already"))
    }

    /// Unbinds one stream, which may have ended. Does nothing for a stream that is not bound to this
    /// private pool.
    pub fn unbind_one(&self, stream: &StreamOf<A>) {
        let (clock, store) = (self.pool.allocator().clock(), self.pool.store());
        if store.is_unusable() {
            return;
        }
        let mark = clock.mark(stream);
        if clock.owns(stream) || clock.is_retired(mark) {
            let stream_id = clock.stream_id(mark);
            store.privates.unbind_one(stream_id, self.id, &store.flags);
        }
    }

    /// Ends the capture: unbinds all streams, and orders all later work with the memory, launches
    /// included, after `after`, which are marks of this pool's device.
    pub fn end(&self, after: &[MarkOf<A>]) {
        let (clock, store) = (self.pool.allocator().clock(), self.pool.store());
        if store.is_unusable() {
            return;
        }
        let _watch = store.watch();
        let privates = &store.privates;
        privates.unbind(self.id, &store.flags);
        for mark in after {
            privates.put_behind(self.id, clock, *mark);
        }
    }

    /// Orders `on` after the earlier launches of the graph, and calls `work`, which launches the
    /// graph on `on`.
    ///
    /// Later work with the private pool's buffers is ordered after the launch. Launches of one private
    /// pool by several threads run one after the other: `work` of one ends before that of another
    /// begins, and `on` and [`Detached::into_raw`](crate::buffer::Detached::into_raw) of a buffer of
    /// the private pool wait for it too. So `work` may use this private pool, and no other that
    /// another thread launches then; after its launch it uses no buffer of the pool. To order the
    /// launch after earlier work with a buffer that the graph uses, hold a
    /// [`Use`](crate::buffer::Use) of the buffer on `on` during the call.
    ///
    /// # Errors
    ///
    /// [`Why::NotSubmitted`] if the launch cannot be ordered, or if `on` is under capture: the
    /// graph of that capture would use this graph's memory, in launches that are not ordered with
    /// it. Otherwise the error of the device, or the error of `work`. There was no launch then.
    ///
    /// See [`PrivatePool`] for an example.
    pub fn launch(
        &self,
        on: &StreamOf<A>,
        work: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let (clock, privates) = (self.pool.allocator().clock(), &self.pool.store().privates);
        if let Some(fault) = self.pool.store().fault() {
            return Err(fault);
        }
        if !clock.takes_work(on) {
            return Err(DeviceError::new(Why::NotSubmitted, "launch a graph in a capture"));
        }
        clock.takes_memory(on)?; // nor in a capture of another library
        let _watch = self.pool.store().watch();
        let launching = privates.launching(self.id);
        let _launching = launching.lock();
        if clock.order(on, &privates.behind(self.id))? == Order::NotYet {
            return Err(DeviceError::new(Why::NotSubmitted, "launch a graph"));
        }
        let launched = Launched { pool: self, on };
        work().inspect_err(|_| mem::forget(launched))
    }

    /// Returns the bytes of the cached blocks of this private pool; 0 if the pool is broken, or in a
    /// forked child that cannot use it.
    #[must_use]
    pub fn cached_bytes(&self) -> u64 {
        let store = self.pool.store();
        if store.is_unusable() { 0 } else { store.privates.idle_bytes(self.id) }
    }
}

/// Notes a launch when it is dropped, also by a panic behind the launch.
struct Launched<'l, A: DeviceAllocator> {
    pool: &'l PrivatePool<A>,
    on: &'l StreamOf<A>,
}

impl<A: DeviceAllocator> Drop for Launched<'_, A> {
    fn drop(&mut self) {
        let store = self.pool.pool.store();
        store.privates.launched(self.pool.id, store.allocator.clock(), self.on);
    }
}

impl<A: DeviceAllocator> Drop for PrivatePool<A> {
    fn drop(&mut self) {
        let store = self.pool.store();
        if store.is_unusable() {
            return;
        }
        let (_watch, _woken) = (store.watch(), WakeAtEnd(&self.pool));
        let in_transit = InTransit::new(store.transit());
        let records = store.privates.close(self.id, store.allocator.clock(), &store.flags);
        captures::free_all(store, records, in_transit);
    }
}

impl<A: DeviceAllocator> fmt::Debug for PrivatePool<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrivatePool").field("cached_bytes", &self.cached_bytes()).finish()
    }
}
