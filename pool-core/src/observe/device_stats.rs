//! Statistics of a pool with an arena, by the names of `PyTorch`'s caching allocator.

use serde::{Deserialize, Serialize};

/// One figure: its current value, its peak, and the sums of its increases and decreases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stat {
    /// The current value.
    pub current: u64,
    /// The highest value since the last reset of the peaks.
    pub peak: u64,
    /// The sum of all increases since the last reset.
    pub allocated: u64,
    /// The sum of all decreases since the last reset.
    pub freed: u64,
}

impl Stat {
    #[inline]
    pub(crate) fn up(&mut self, by: u64) {
        self.current += by;
        self.peak = self.peak.max(self.current);
        self.allocated = self.allocated.wrapping_add(by);
    }

    #[inline]
    pub(crate) fn down(&mut self, by: u64) {
        self.current -= by;
        self.freed = self.freed.wrapping_add(by);
    }
}

/// A figure for all requests, and for small and large ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StatArray {
    /// All.
    pub all: Stat,
    /// Requests of at most 1 MiB. Only a pool with
    /// [`ArenaConfig::torch`](crate::ArenaConfig::torch) counts blocks separately as small and
    /// large.
    pub small: Stat,
    /// Requests above.
    pub large: Stat,
}

impl StatArray {
    #[inline]
    pub(crate) fn up(&mut self, small: bool, by: u64) {
        self.all.up(by);
        if small { self.small.up(by) } else { self.large.up(by) }
    }

    #[inline]
    pub(crate) fn down(&mut self, small: bool, by: u64) {
        self.all.down(by);
        if small { self.small.down(by) } else { self.large.down(by) }
    }

    fn each(&mut self, change: impl Fn(&mut Stat)) {
        [&mut self.all, &mut self.small, &mut self.large].into_iter().for_each(change);
    }
}

/// The figures of an arena, by the names of `PyTorch`'s `DeviceStats`.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
/// use bucketpool::{ArenaConfig, BucketPool, MIB, sim::SimDevice};
///
/// let pool = BucketPool::builder(SimDevice::new()).arena(ArenaConfig::torch()).build();
/// let _tensor = pool.allocate(4 * MIB)?;
/// let stats = pool.device_stats().unwrap();
/// assert_eq!(stats.reserved_bytes.all.current, 20 * MIB); // the segment; 16 MiB of it are free
/// assert_eq!(stats.inactive_split_bytes.large.current, 16 * MIB);
/// # Ok::<(), pool_core::AllocError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct DeviceStats {
    /// Blocks handed out.
    pub allocation: StatArray,
    /// Segments allocated from the device; 0 in an arena that commits pages.
    pub segment: StatArray,
    /// Blocks handed out, and when read also free ranges that a stream still uses.
    pub active: StatArray,
    /// Free ranges that are not a whole segment. Peak and sums are counted under
    /// [`ArenaConfig::torch`](crate::ArenaConfig::torch) only; elsewhere they show the present.
    pub inactive_split: StatArray,
    /// Bytes handed out, after rounding.
    pub allocated_bytes: StatArray,
    /// Bytes taken from the device.
    pub reserved_bytes: StatArray,
    /// The bytes of `active`.
    pub active_bytes: StatArray,
    /// The bytes of `inactive_split`.
    pub inactive_split_bytes: StatArray,
    /// Bytes asked for.
    pub requested_bytes: StatArray,
    /// Requests that the device refused at first, so that free memory went back and it was asked
    /// again.
    pub num_alloc_retries: u64,
    /// Requests that were refused in the end.
    pub num_ooms: u64,
    /// Times that the host waited for streams, to give memory back.
    pub num_sync_all_streams: u64,
    /// Calls that allocated memory from the device. If each page has a handle of its own
    /// ([`VirtualMemory::handles`](crate::port::VirtualMemory::handles)), each page counts as one
    /// call.
    pub num_device_alloc: u64,
    /// Calls that freed memory to the device, counted in the same way.
    pub num_device_free: u64,
}

impl DeviceStats {
    /// Every figure under the name that `PyTorch`'s `memory_stats` gives it, such as
    /// `allocated_bytes.all.current`.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{ArenaConfig, BucketPool, MIB, sim::SimDevice};
    ///
    /// let pool = BucketPool::builder(SimDevice::new()).arena(ArenaConfig::torch()).build();
    /// let _tensor = pool.allocate(4 * MIB)?;
    /// let named = pool.device_stats().unwrap().named();
    /// let find = |name: &str| named.iter().find(|(other, _)| other == name).map(|(_, n)| *n);
    /// assert_eq!(find("allocated_bytes.all.current"), Some(4 * MIB));
    /// assert_eq!((find("segment.large_pool.peak"), find("num_ooms")), (Some(1), Some(0)));
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    #[must_use]
    pub fn named(&self) -> Vec<(String, u64)> {
        let arrays = [
            ("allocation", &self.allocation),
            ("segment", &self.segment),
            ("active", &self.active),
            ("inactive_split", &self.inactive_split),
            ("allocated_bytes", &self.allocated_bytes),
            ("reserved_bytes", &self.reserved_bytes),
            ("active_bytes", &self.active_bytes),
            ("inactive_split_bytes", &self.inactive_split_bytes),
            ("requested_bytes", &self.requested_bytes),
        ];
        let mut named = Vec::new();
        for (name, array) in arrays {
            let pools =
                [("all", array.all), ("small_pool", array.small), ("large_pool", array.large)];
            for (pool, stat) in pools {
                let Stat { current, peak, allocated, freed } = stat;
                let figures = [
                    ("current", current),
                    ("peak", peak),
                    ("allocated", allocated),
                    ("freed", freed),
                ];
                named.extend(figures.map(|(figure, n)| (format!("{name}.{pool}.{figure}"), n)));
            }
        }
        let counts = [
            ("num_alloc_retries", self.num_alloc_retries),
            ("num_ooms", self.num_ooms),
            ("num_sync_all_streams", self.num_sync_all_streams),
            ("num_device_alloc", self.num_device_alloc),
            ("num_device_free", self.num_device_free),
        ];
        named.extend(counts.map(|(name, count)| (name.to_owned(), count)));
        named
    }

    fn each(&mut self, change: impl Fn(&mut Stat)) {
        let arrays = [
            &mut self.allocation,
            &mut self.segment,
            &mut self.active,
            &mut self.inactive_split,
            &mut self.allocated_bytes,
            &mut self.reserved_bytes,
            &mut self.active_bytes,
            &mut self.inactive_split_bytes,
            &mut self.requested_bytes,
        ];
        for array in arrays {
            array.each(&change);
        }
    }

    /// Lets the peaks start again from the current figures.
    pub(crate) fn reset_peak(&mut self) {
        self.each(|stat| stat.peak = stat.current);
    }

    /// Sets the sums of increases and decreases, and the counts, to 0. Current values and peaks
    /// stay.
    pub(crate) fn reset_accumulated(&mut self) {
        self.each(|stat| (stat.allocated, stat.freed) = (0, 0));
        self.num_alloc_retries = 0;
        self.num_ooms = 0;
        self.num_sync_all_streams = 0;
        self.num_device_alloc = 0;
        self.num_device_free = 0;
    }
}
