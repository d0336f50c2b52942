//! The full check of a pool's invariants, and simulated threads. For tests only.

use crate::pool::BucketPool;
use crate::port::DeviceAllocator;
use crate::store::{check, spread};

pub use crate::store::{BlockSum, Checked};
pub use crate::sys::thread_number::TestThreads;
#[cfg(any(loom, shuttle))]
pub use crate::sys::thread_number::modelled::set as set_thread_number;

impl<A: DeviceAllocator> BucketPool<A> {
    /// Checks everything that must hold in a pool while no thread is inside it: each list agrees
    /// with its blocks, each figure with a sum over all blocks, every reserved byte is accounted
    /// for, the limits of bytes hold, no free block is in use. Changes nothing.
    ///
    /// Cost: linear in the number of blocks.
    ///
    /// # Panics
    ///
    /// At the first thing that does not hold, with both values; for a broken pool, with what broke.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(SimDevice::new());
    /// let (kept, freed) = (pool.allocate(1000)?, pool.allocate(1000)?);
    /// drop(freed);
    /// let inside = pool.check();
    /// assert_eq!((inside.live.blocks, inside.live.bytes), (1, 1024));
    /// drop(kept);
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    pub fn check(&self) -> Checked {
        let store = self.store();
        if store.is_forked() {
            return Checked::default();
        }
        assert!(
            !store.is_broken(),
            "{}",
            store.fault().map_or_else(String::new, |it| it.to_string())
        );
        check::check(store)
    }
}

impl<A: DeviceAllocator> BucketPool<A> {
    #[doc(hidden)]
    /// Takes shards until there are `count`, or as many as the pool may have, as a pool does in which
    /// threads take turns.
    pub fn take_shards(&self, count: usize) {
        spread::spread_to(self.store(), count);
    }

    #[doc(hidden)]
    /// Breaks an invariant inside of a call of this pool, so that a test sees what follows.
    ///
    /// # Panics
    ///
    /// In a build with debug assertions, as each broken invariant does. The pool is poisoned first.
    pub fn break_invariant(&self) {
        let _watch = self.store().watch();
        invariant!(false, "no test breaks this");
    }
}

/// A lock of a pool that [`BucketPool::with_lock_held`] holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PoolLock {
    /// The lock of the first shard.
    Shard,
    /// The locks of all shards but that with which the calling thread begins, in memory without
    /// streams.
    OtherShards,
    /// The lock of the tick times, from which the pool computes the age of free memory.
    Ticks,
}

impl<A: DeviceAllocator> BucketPool<A> {
    /// Runs `work` while the calling thread holds a lock of the pool, as it does inside of a call.
    /// Other threads that need the lock wait.
    pub fn with_lock_held<R>(&self, held: PoolLock, work: impl FnOnce() -> R) -> R {
        let store = self.store();
        match held {
            PoolLock::Shard => {
                let _state = store.shards.lock(0);
                work()
            }
            PoolLock::OtherShards => {
                let (count, home) = (store.shards.count(), store.shards.home_of_thread());
                let others = (0..count).filter(|at| *at != home);
                let _states: Vec<_> = others.map(|at| store.shards.lock(at)).collect();
                work()
            }
            PoolLock::Ticks => {
                let _ticks = store.ticks.lock();
                work()
            }
        }
    }
}
