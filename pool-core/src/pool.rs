//! The pool: the face of the crate.

use crate::buffer::PooledBuffer;
use crate::clock::StreamClock;
use crate::device::{Clearing, DeviceAllocator, StreamOf};
use crate::error::{AllocError, DeviceError, Why};
use crate::hold::Owner;
use crate::layer::{GivenBack, Held, Layer};
use crate::marks::Marks;
use crate::shard::{Key, Want};
use crate::stats::PoolStats;
use crate::store::{Grant, Store};
use crate::zero::ZeroPolicy;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A pool of blocks of one kind of memory: freed blocks stay warm and are handed out again.
///
/// Clones are the same pool. A pool may be dropped before its buffers; what is idle then goes back
/// to the device, and so do the buffers as they are dropped.
///
/// ```
/// use pool_core::{BucketPolicy, BucketPool, MIB, sim::SimDevice};
///
/// let pool = BucketPool::builder(SimDevice::new())
///     .policy(BucketPolicy::PowerOfTwo)
///     .cached_limit(64 * MIB)
///     .build();
/// drop(pool.allocate(3 * MIB)?);
/// let again = pool.allocate(4 * MIB)?; // the same block of 4 MiB
/// assert_eq!((again.size(), pool.stats().hits), (4 * MIB, 1));
/// # Ok::<(), pool_core::AllocError>(())
/// ```
pub struct BucketPool<A: DeviceAllocator> {
    owner: Arc<Owner<A>>,
    zero: ZeroPolicy,
}

impl<A: DeviceAllocator> BucketPool<A> {
    /// A pool of these blocks, which nobody has yet.
    pub(crate) fn over(store: Store<A>, zero: ZeroPolicy) -> Self {
        Self { owner: Arc::new(Owner::new(store)), zero }
    }

    /// The allocator below.
    #[must_use]
    pub fn allocator(&self) -> &A {
        &self.store().allocator
    }

    #[inline]
    pub(crate) fn store(&self) -> &Store<A> {
        self.owner.store()
    }

    /// A buffer of `bytes` bytes for the device's default stream. 0 bytes are fine, and hold the
    /// smallest class.
    ///
    /// # Errors
    ///
    /// [`AllocError`] with the pool's figures: out of memory, over the limit, too large, or
    /// whatever the device said.
    ///
    /// ```
    /// use pool_core::{BucketPool, MIB, Why, sim::SimDevice};
    ///
    /// let pool = BucketPool::builder(SimDevice::new()).reserved_limit(4 * MIB).build();
    /// let error = pool.allocate(5 * MIB).unwrap_err();
    /// assert_eq!((error.why(), error.figures().rounded_bytes), (Why::Limit, 8 * MIB));
    /// ```
    #[inline]
    pub fn allocate(&self, bytes: u64) -> Result<PooledBuffer<A>, AllocError> {
        self.allocate_on(self.allocator().clock().default_stream(), bytes)
    }

    /// A buffer for work on `stream`.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::allocate`], and [`Why::Foreign`] for a stream of another device.
    #[inline]
    pub fn allocate_on(
        &self,
        stream: &StreamOf<A>,
        bytes: u64,
    ) -> Result<PooledBuffer<A>, AllocError> {
        self.allocate_kind(stream, bytes, A::Kind::default())
    }

    /// A buffer whose first `bytes` bytes read as zeroes, whatever the pool's own policy.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::allocate`].
    pub fn allocate_zeroed(&self, bytes: u64) -> Result<PooledBuffer<A>, AllocError> {
        self.lend(self.allocator().clock().default_stream(), bytes, A::Kind::default(), true)
    }

    /// The same for work on `stream`.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::allocate_on`].
    pub fn allocate_zeroed_on(
        &self,
        stream: &StreamOf<A>,
        bytes: u64,
    ) -> Result<PooledBuffer<A>, AllocError> {
        self.lend(stream, bytes, A::Kind::default(), true)
    }

    /// A buffer that starts at a multiple of `alignment` bytes.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::allocate`], and [`Why::Unsupported`] for an alignment that is not a
    /// power of two or that this memory does not offer.
    pub fn allocate_aligned(
        &self,
        bytes: u64,
        alignment: u64,
    ) -> Result<PooledBuffer<A>, AllocError> {
        let kind = self.allocator().aligned(A::Kind::default(), alignment);
        let kind = kind.map_err(|error| self.store().refuse_early(error, bytes))?;
        self.allocate_kind(self.allocator().clock().default_stream(), bytes, kind)
    }

    /// A buffer of a given kind of memory for work on `stream`: the call that all others make.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::allocate_on`].
    #[inline]
    pub fn allocate_kind(
        &self,
        stream: &StreamOf<A>,
        bytes: u64,
        kind: A::Kind,
    ) -> Result<PooledBuffer<A>, AllocError> {
        self.lend(stream, bytes, kind, false)
    }

    #[inline]
    fn lend(
        &self,
        stream: &StreamOf<A>,
        bytes: u64,
        kind: A::Kind,
        zeroed: bool,
    ) -> Result<PooledBuffer<A>, AllocError> {
        let clock = self.allocator().clock();
        // Where clearing runs ahead, the block must be ready ahead too.
        let clears = zeroed || self.zero != ZeroPolicy::Never;
        let ahead = clears && matches!(A::MEMORY.clearing, Clearing::Ahead);
        let on = if ahead { clock.default_stream() } else { stream };
        let want = self.known(stream).and_then(|()| self.want(on, bytes, kind));
        let want = want.map_err(|error| self.store().refuse_early(error, bytes))?;
        let Grant { mut parcel, fresh } = self.store().allocate(&want)?;
        let bytes_to_clear = match self.zero {
            _ if fresh && A::MEMORY.fresh_is_zeroed => 0,
            ZeroPolicy::OnAllocate => parcel.bytes,
            ZeroPolicy::OnReturn if parcel.dirty || fresh => parcel.bytes,
            _ if zeroed => bytes,
            _ => 0,
        };
        *parcel.marks.get_mut() = Marks::new(clock.mark(stream));
        let mut buffer = PooledBuffer::new(&self.owner, parcel);
        if bytes_to_clear > 0
            && let Err(error) = buffer.zero(bytes_to_clear, stream)
        {
            drop(buffer.detach()); // whatever is wrong with it, the next one is another
            return Err(self.store().error(error, bytes, want.class.bytes, 0));
        }
        Ok(buffer)
    }

    #[inline]
    fn known(&self, stream: &StreamOf<A>) -> Result<(), DeviceError> {
        let clock = self.allocator().clock();
        if let Some(fault) = clock.fault() {
            return Err(fault);
        }
        if clock.owns(stream) {
            return Ok(());
        }
        Err(DeviceError::new(
            Why::Foreign,
            "allocate on a stream that this device does not have",
            0,
        ))
    }

    #[inline]
    fn want<'r>(
        &self,
        on: &'r StreamOf<A>,
        requested: u64,
        kind: A::Kind,
    ) -> Result<Want<'r, A>, DeviceError> {
        let (store, clock) = (self.store(), self.allocator().clock());
        let too_large = DeviceError::new(Why::TooLarge, "round up to a size class", 0);
        let class = store.classes.of(requested).ok_or(too_large)?;
        let lane = clock.lane(clock.mark(on));
        let private = store.privates.of(lane);
        if private.is_none() && !clock.takes_work(on) {
            // What a graph uses must not come back before the graph goes.
            let call = "allocate on a stream that another pool's capture has";
            return Err(DeviceError::new(Why::NotSubmitted, call, 0));
        }
        Ok(Want { on, key: Key { kind, lane }, class, requested, private })
    }

    /// Takes idle blocks from the device ahead of time: for each `(bytes, count)`, `count` blocks
    /// of the class of `bytes`.
    ///
    /// # Errors
    ///
    /// [`Why::Limit`] if they do not fit under the cached, the bucket or the reserved limit (a
    /// cached limit that is a share of the peak is 0 before the first allocation),
    /// [`Why::Unsupported`] for a size that goes past the pool, or what the device said. Blocks
    /// taken before that stay.
    ///
    /// ```
    /// use pool_core::{BucketPool, MIB, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(SimDevice::new());
    /// pool.warm_up(&[(4 * MIB, 16)])?;
    /// pool.allocate(3 * MIB)?;
    /// assert_eq!(pool.stats().hit_rate(), 1.0);
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    pub fn warm_up(&self, classes: &[(u64, usize)]) -> Result<(), AllocError> {
        let on = self.allocator().clock().default_stream();
        for (bytes, count) in classes {
            let want = self.known(on).and_then(|()| self.want(on, *bytes, A::Kind::default()));
            let want = want.map(|want| Want { private: None, ..want });
            let warm = want.and_then(|want| self.store().warm_up(&want, *count));
            warm.map_err(|error| self.store().error(error, *bytes, *bytes, 0))?;
        }
        Ok(())
    }

    /// Gives idle blocks back, largest first, until at most `reserved` bytes are taken from the
    /// device or nothing is idle. Returns the bytes given back.
    ///
    /// # Errors
    ///
    /// The first refusal of the device. The other blocks went back all the same; what it refused
    /// is lost, and counted in [`PoolStats::lost_bytes`].
    pub fn shrink_to(&self, reserved: u64) -> Result<u64, AllocError> {
        self.giving_back(|store| store.shrink_to(reserved))
    }

    /// Gives back at least `bytes` idle bytes, oldest first, or all there are. Returns the bytes
    /// given back. `trim(0)` only pays what drops could not.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::shrink_to`].
    pub fn trim(&self, bytes: u64) -> Result<u64, AllocError> {
        self.giving_back(|store| store.trim(bytes))
    }

    /// Gives back all idle blocks, after waiting for the device to finish with them. Returns the
    /// bytes given back. What is behind work that is not submitted stays.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::shrink_to`].
    pub fn clear(&self) -> Result<u64, AllocError> {
        self.giving_back(Store::clear)
    }

    /// Gives back what has been idle for longer than the pool's
    /// [`Retention`](crate::Retention) says, given the time `now`: the caller's own, such as the
    /// time since the program began, so that a test can make it pass. Returns the bytes given back.
    ///
    /// ```
    /// use pool_core::{BucketPool, Retention, sim::SimDevice};
    /// use std::time::Duration;
    ///
    /// let minute = Retention { time: Some(Duration::from_secs(60)), ..Retention::default() };
    /// let pool = BucketPool::builder(SimDevice::new()).retention(minute).build();
    /// drop(pool.allocate(4096)?);
    /// assert_eq!(pool.tick(Duration::from_secs(10))?, 0);
    /// assert_eq!(pool.tick(Duration::from_secs(70))?, 4096);
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::shrink_to`].
    pub fn tick(&self, now: Duration) -> Result<u64, AllocError> {
        self.giving_back(|store| store.tick(now))
    }

    fn giving_back(&self, work: impl Fn(&Store<A>) -> GivenBack) -> Result<u64, AllocError> {
        let store = self.store();
        let (bytes, refusal) = match self.allocator().clock().fault() {
            // What is idle stays: a forked process can do nothing with it, and what a lost device
            // had goes with the pool.
            Some(fault) if fault.why == Why::Forked => (0, Some(fault)),
            fault => {
                let (bytes, refusal) = work(store);
                (bytes, fault.or(refusal))
            }
        };
        refusal.map_or(Ok(bytes), |error| Err(self.store().error(error, 0, 0, bytes)))
    }

    /// What live buffers hold, in bytes, after rounding.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.store().allocated.read(&self.store().tallies().1).0
    }

    /// Bytes that can still be handed out under the reserved limit: what is not reserved, and what
    /// lies idle. `u64::MAX` without a limit.
    #[must_use]
    pub fn available_bytes(&self) -> u64 {
        let store = self.store();
        let free_below = self.allocator().layer().map_or(0, |layer| layer.held().free_bytes);
        match store.reserved_limit() {
            u64::MAX => u64::MAX,
            limit => limit - store.reserved().min(limit) + store.cached_bytes() + free_below,
        }
    }

    /// The sizes that have idle blocks, in bytes, and how many each.
    #[must_use]
    pub fn cached_buffers(&self) -> BTreeMap<u64, usize> {
        let mut buffers = BTreeMap::new();
        for shard in self.store().shards.iter() {
            for (bytes, count) in shard.idle.stacks() {
                *buffers.entry(bytes).or_default() += count;
            }
        }
        buffers
    }

    /// The sizes of blocks that are lent, in bytes, and how many each: what a program that has
    /// cleared its pool still holds.
    #[must_use]
    pub fn outstanding_buffers(&self) -> BTreeMap<u64, usize> {
        let mut lent = self.store().taken();
        for shard in self.store().shards.iter() {
            let owed = shard.owed.iter().map(|parcel| (parcel.bytes, 1));
            for (bytes, count) in shard.idle.stacks().chain(owed) {
                if let Some(lent) = lent.get_mut(&bytes) {
                    *lent = lent.saturating_sub(count);
                }
            }
        }
        lent.retain(|_, count| *count > 0);
        lent
    }

    /// Gives a buffer back; dropping it does the same. It goes to the pool that it came from.
    pub fn deallocate(&self, buffer: PooledBuffer<A>) {
        drop(buffer);
    }

    /// The figures of this moment.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        let store = self.store();
        let mut sum = PoolStats::default();
        for shard in store.shards.iter() {
            sum.add_counts(&shard.counts);
            sum.peak_cached_bytes += shard.idle.peak_bytes();
        }
        let (requested, allocated) = store.tallies();
        let (requested_bytes, requested_peak_bytes) = store.requested.read(&requested);
        let (allocated_bytes, allocated_peak_bytes) = store.allocated.read(&allocated);
        let cached = self.cached_buffers();
        let clock = self.allocator().clock();
        let pending = store.cached_bytes_not(|mark| clock.is_seen_done(mark));
        let held = self.allocator().layer().map_or_else(
            || Held {
                reserved_bytes: store.ledger.reserved(),
                reserved_peak_bytes: store.ledger.peak(),
                ..Held::default()
            },
            Layer::held,
        );
        PoolStats {
            keys: cached.len() as u64,
            cached_buffers: cached.values().map(|count| *count as u64).sum(),
            requested_bytes,
            requested_peak_bytes,
            allocated_bytes,
            allocated_peak_bytes,
            active_bytes: allocated_bytes + pending + held.pending_bytes,
            cached_bytes: store.cached_bytes() + held.free_bytes,
            reserved_bytes: held.reserved_bytes,
            reserved_peak_bytes: held.reserved_peak_bytes,
            lost_bytes: sum.lost_bytes + held.lost_bytes,
            private_bytes: store.privates.all_idle_bytes(),
            ..sum
        }
    }

    /// Sets all counts to 0 and lets the peaks start again from the current bytes.
    pub fn reset_stats(&self) {
        if let Some(layer) = self.allocator().layer() {
            layer.reset_peaks();
        }
        let store = self.store();
        let mut shards: Vec<_> = store.shards.iter().collect();
        let peak = shards.iter().map(|s| s.allocated.peak_so_far(&store.allocated)).max();
        store.forget_peak(peak.unwrap_or(0));
        for shard in &mut shards {
            shard.idle.reset_peak();
            // What is lost stays lost, and reserved.
            shard.counts = PoolStats { lost_bytes: shard.counts.lost_bytes, ..Default::default() };
        }
        store.requested.reset_peak(shards.iter_mut().map(|shard| &mut shard.requested));
        store.allocated.reset_peak(shards.iter_mut().map(|shard| &mut shard.allocated));
        store.ledger.reset_peak();
    }
}

impl<A: DeviceAllocator> Clone for BucketPool<A> {
    fn clone(&self) -> Self {
        Self { owner: self.owner.clone(), zero: self.zero }
    }
}

impl<A: DeviceAllocator> fmt::Debug for BucketPool<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BucketPool").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
