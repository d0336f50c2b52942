//! A private pool: what a graph's memory is taken from, and stays in while the graph lives.

use crate::block::private::PrivateId;
use crate::device::{DeviceAllocator, MarkOf, StreamOf};
use crate::error::{DeviceError, Why};
use crate::pool::BucketPool;
use crate::stream::clock::{Order, StreamClock};
use std::fmt;

/// Memory of a [`BucketPool`] that is kept for one graph.
///
/// Buffers for a bound stream come from here, from the device where nothing idle serves, and go
/// back to here when they are dropped, however late. They serve again in the order of the streams,
/// without an event. When this is dropped, its blocks are the pool's, behind the launches that were
/// noted; and so are buffers that are still alive then, once they are dropped.
///
/// A backend's capture is built on this; `CudaCapture` in `pool-cuda` is one.
///
/// ```
/// # use pool_core as bucketpool;
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
    /// Memory of `pool` for one graph.
    #[must_use]
    pub fn new(pool: &BucketPool<A>) -> Self {
        Self { pool: pool.clone(), id: pool.store().privates.open() }
    }

    /// Buffers for `stream` come from here from now on.
    ///
    /// # Errors
    ///
    /// [`Why::Foreign`] for a stream of another device, [`Why::Other`] for one that is bound
    /// already.
    pub fn bind(&self, stream: &StreamOf<A>) -> Result<(), DeviceError> {
        let clock = self.pool.allocator().clock();
        if let Some(fault) = self.pool.store().fault() {
            return Err(fault);
        }
        if !clock.owns(stream) {
            return Err(DeviceError::new(Why::Foreign, "bind a stream of another device", 0));
        }
        let lane = clock.lane(clock.mark(stream));
        if self.pool.store().privates.bind(lane, self.id, &self.pool.store().flags) {
            return Ok(());
        }
        Err(DeviceError::new(Why::Other, "bind a stream that is bound already", 0))
    }

    /// One stream is bound no more.
    pub fn unbind_one(&self, stream: &StreamOf<A>) {
        let clock = self.pool.allocator().clock();
        let (store, lane) = (self.pool.store(), clock.lane(clock.mark(stream)));
        store.privates.unbind_one(lane, &store.flags);
    }

    /// The capture has ended: no stream is bound any more, and whatever is done with the memory is
    /// ordered behind `after`, launches first of all.
    pub fn end(&self, after: &[MarkOf<A>]) {
        let (clock, privates) = (self.pool.allocator().clock(), &self.pool.store().privates);
        privates.unbind(self.id, &self.pool.store().flags);
        for mark in after {
            privates.put_behind(self.id, clock, *mark);
        }
    }

    /// Lets `work` give a launch to `on`, behind the launches before it. What is done with the
    /// pool's buffers from then on is ordered behind the launch. The other way round, whoever has a
    /// buffer that the graph uses holds a [`Use`](crate::Use) of it on `on` meanwhile.
    ///
    /// # Errors
    ///
    /// [`Why::NotSubmitted`] if it cannot be ordered, what the device said, or what `work` says;
    /// then there was no launch.
    pub fn launch(
        &self,
        on: &StreamOf<A>,
        work: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let (clock, privates) = (self.pool.allocator().clock(), &self.pool.store().privates);
        if let Some(fault) = self.pool.store().fault() {
            return Err(fault);
        }
        if clock.order(on, &privates.behind(self.id))? == Order::NotYet {
            return Err(DeviceError::new(Why::NotSubmitted, "launch a graph", 0));
        }
        work()?;
        privates.put_behind(self.id, clock, clock.mark(on));
        Ok(())
    }

    /// Bytes that lie idle here.
    #[must_use]
    pub fn cached_bytes(&self) -> u64 {
        self.pool.store().privates.idle_bytes(self.id)
    }
}

impl<A: DeviceAllocator> Drop for PrivatePool<A> {
    fn drop(&mut self) {
        let store = self.pool.store();
        if store.is_forked() {
            return;
        }
        for record in store.privates.close(self.id, store.allocator.clock(), &store.flags) {
            drop(store.free_idle_private(record, false));
        }
        store.ledger.budget.wake();
    }
}

impl<A: DeviceAllocator> fmt::Debug for PrivatePool<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrivatePool").field("cached_bytes", &self.cached_bytes()).finish()
    }
}
