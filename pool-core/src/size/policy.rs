//! Size classes: the block size that serves a request. This module is pure arithmetic.

pub(crate) mod text;

use crate::size::units::LARGEST;
use std::num::NonZeroU64;
use std::ops::RangeInclusive;

/// The rule by which requests are rounded to size classes.
///
/// Sizes of classes are multiples of the pool's granule
/// ([`PoolBuilder::granule`](crate::PoolBuilder::granule)). The best policy depends on the sizes
/// that a program requests: `cargo xtask replay` compares policies for a recorded trace.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum BucketPolicy {
    /// A class for each size. No rounding; a block is reused only for requests of its size.
    Exact,
    /// The next power of two. Up to half of a block is unused; few classes, so few misses.
    PowerOfTwo,
    /// The smallest of these classes, in ascending order, that holds the request. A request above
    /// the largest class bypasses the pool. Made by [`BucketPolicy::tiered`].
    Tiered(Vec<u64>),
    /// A class for each size. A request of `s` bytes takes the smallest cached block in
    /// `[s, alpha * s]` without a split. `alpha` below 1 counts as 1.
    Fit {
        /// The largest ratio of block size to request; 2.0 wastes at most half of a block.
        alpha: f64,
    },
}

impl BucketPolicy {
    /// Returns a policy with these classes, in bytes, in any order. Zeroes and duplicates are
    /// dropped. With an empty list all requests bypass the pool.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPolicy, KIB};
    ///
    /// let policy = BucketPolicy::tiered(&[16 * KIB, 4 * KIB]);
    /// assert_eq!(policy, BucketPolicy::Tiered(vec![4 * KIB, 16 * KIB]));
    /// ```
    #[must_use]
    pub fn tiered(classes: &[u64]) -> Self {
        let mut classes: Vec<u64> = classes.iter().copied().filter(|c| *c > 0).collect();
        classes.sort_unstable();
        classes.dedup();
        Self::Tiered(classes)
    }

    /// Returns the granule, in bytes, of a pool with this policy that sets none.
    ///
    /// It is 512 where blocks of different sizes meet in one class (the rounding of CUDA's own
    /// allocator and of `PyTorch`), and 1 where every byte counts. A pool of exact sizes uses the
    /// alignment of its memory, if that is more.
    #[must_use]
    pub fn default_granule(&self) -> u64 {
        match self {
            Self::Exact | Self::Tiered(_) => 1,
            Self::PowerOfTwo | Self::Fit { .. } => 512,
        }
    }
}

/// The size classes of a pool: a policy for one device.
#[derive(Clone, Debug)]
pub(crate) struct SizeClasses {
    policy: BucketPolicy,
    granule: u64,
    /// The device's granule, in bytes.
    device_granule: u64,
    /// The largest block of the device.
    largest: u64,
    /// The request sizes whose blocks are cached.
    window: RangeInclusive<u64>,
    fast: FastPath,
    /// The largest ratio of block size to class size.
    alpha: f64,
}

/// The common policies in few steps. Tests compare them with the general path.
#[derive(Clone, Debug)]
enum FastPath {
    /// The next power of two, from `low` + 1 on, for requests of 1 byte to `last` + 1.
    PowerOfTwo {
        low: NonZeroU64,
        last: u64,
    },
    /// The next multiple of `low` + 1, a power of two, for requests of 1 byte to `last` + 1.
    Multiple {
        low: u64,
        last: u64,
    },
    /// The smallest of a list, for requests of up to `most` bytes. It is a call: no other policy pays for it.
    Tiered {
        tiers: Box<Tiers>,
        most: u64,
    },
    Never,
}

/// The class of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class {
    /// The size of the block that the device allocates for the request.
    pub(crate) bytes: u64,
    /// The largest cached block, in bytes, that may serve the request; 0 if the request bypasses
    /// the pool and its block is not cached. (There is no separate flag for this, because copies of
    /// a struct of three words stall.)
    pub(crate) max_block_bytes: u64,
}

impl SizeClasses {
    pub(crate) fn new(
        policy: BucketPolicy,
        granule: Option<u64>,
        device_granule: u64,
        largest: u64,
    ) -> Self {
        let device_granule = device_granule.max(1);
        let granule = granule.unwrap_or_else(|| policy.default_granule()).max(1);
        // The program can make a list without `tiered`, but the search needs it sorted.
        let policy = match policy {
            BucketPolicy::Tiered(classes) => BucketPolicy::tiered(&classes),
            other => other,
        };
        let fast = FastPath::of(&policy, (granule, device_granule), largest);
        let window = 0..=u64::MAX;
        let alpha = match policy {
            BucketPolicy::Fit { alpha } => alpha,
            _ => 1.0,
        };
        invariant!(granule > 0 && device_granule > 0, "sizes are multiples of some bytes");
        Self { policy, granule, device_granule, largest, window, fast, alpha }
    }

    /// Whether blocks of other sizes than its own class may serve a request.
    pub(crate) fn has_larger_blocks(&self) -> bool {
        self.alpha > 1.0
    }

    /// The largest block that may serve a request of a class of `bytes` bytes.
    pub(crate) fn largest_for(&self, bytes: u64) -> u64 {
        scaled(bytes, self.alpha)
    }

    /// Restricts the classes to a window: requests of other sizes bypass the pool.
    pub(crate) fn within(self, window: RangeInclusive<u64>) -> Self {
        let fast = self.fast.within(&window);
        Self { window, fast, ..self }
    }

    /// Returns the class of a request, or `None` if rounding would exceed [`LARGEST`]. A request of
    /// no bytes gets the smallest class.
    #[inline]
    pub(crate) fn of(&self, requested: u64) -> Option<Class> {
        match self.fast(requested) {
            Some(bytes) if self.alpha <= 1.0 => Some(Class::of_bytes(bytes)),
            Some(bytes) => Some(Class { bytes, max_block_bytes: scaled(bytes, self.alpha) }),
            None => self.slow(requested).inspect(|class| {
                invariant!(class.bytes >= requested, "a block is as large as its request");
                let most = class.max_block_bytes;
                invariant!(!class.is_cached() || most >= class.bytes, "a block fits its own class");
            }),
        }
    }

    /// Returns the bytes of the class of a request, if the quick path can compute it.
    #[inline]
    pub(crate) fn fast(&self, requested: u64) -> Option<u64> {
        let before = requested.wrapping_sub(1); // of no bytes: above all
        match self.fast {
            FastPath::PowerOfTwo { low, last } if before <= last => {
                Some(2 << (low | before).ilog2())
            }
            FastPath::Multiple { low, last } if before <= last => Some((before | low) + 1),
            _ => None,
        }
    }

    /// Returns the bytes of the class of a request for which [`SizeClasses::fast`] returns `None`;
    /// `None` for a bypass. (One function for both costs a hit three instructions.)
    #[inline(never)]
    pub(crate) fn slow_cached(&self, requested: u64) -> Option<u64> {
        match &self.fast {
            FastPath::Tiered { tiers, most } if requested <= *most => tiers.bytes_for(requested),
            _ => self.of_any(requested),
        }
    }

    /// The same, of any policy.
    #[cold]
    #[inline(never)]
    fn of_any(&self, requested: u64) -> Option<u64> {
        self.slow(requested).filter(|class| class.is_cached()).map(|class| class.bytes)
    }

    fn slow(&self, requested: u64) -> Option<Class> {
        let least = requested.max(1);
        if !self.window.contains(&least) {
            let exact = self.rounded(least).filter(|bytes| *bytes <= LARGEST);
            return exact.map(Class::bypass);
        }
        let class = self.rounded_by_policy(least).filter(|class| class.bytes <= LARGEST);
        if class.is_some_and(|class| class.bytes <= self.largest) {
            return class;
        }
        // The class does not exist on this device, but the request itself may fit.
        let exact = self.on_device(least).filter(|bytes| *bytes <= self.largest.min(LARGEST));
        exact.map(Class::bypass).or(class)
    }

    #[inline]
    fn rounded_by_policy(&self, least: u64) -> Option<Class> {
        match &self.policy {
            BucketPolicy::Exact => self.rounded(least).map(Class::of_bytes),
            BucketPolicy::PowerOfTwo => {
                let bytes = least.max(self.granule).checked_next_power_of_two()?;
                self.on_device(bytes).map(Class::of_bytes)
            }
            BucketPolicy::Tiered(classes) => {
                let at = classes.partition_point(|class| *class < least);
                match classes.get(at) {
                    Some(class) => self.rounded(*class).map(Class::of_bytes),
                    None => self.rounded(least).map(Class::bypass),
                }
            }
            BucketPolicy::Fit { alpha } => {
                let bytes = self.rounded(least)?;
                Some(Class { bytes, max_block_bytes: scaled(bytes, *alpha) })
            }
        }
    }

    #[inline]
    fn rounded(&self, bytes: u64) -> Option<u64> {
        self.on_device(rounded_up(bytes, self.granule)?)
    }

    #[inline]
    fn on_device(&self, bytes: u64) -> Option<u64> {
        rounded_up(bytes, self.device_granule)
    }
}

impl FastPath {
    /// Returns the quick path of a policy with the pool's granule and the device's.
    fn of(policy: &BucketPolicy, granules: (u64, u64), largest: u64) -> Self {
        let most = largest.min(LARGEST);
        if let BucketPolicy::Tiered(list) = policy {
            let rounded = |bytes| rounded_up(rounded_up(bytes, granules.0)?, granules.1);
            let tiers = Tiers::new(list, |bytes| rounded(bytes).filter(|bytes| *bytes <= most));
            return tiers
                .most()
                .map_or(Self::Never, |most| Self::Tiered { tiers: Box::new(tiers), most });
        }
        // Powers of two are multiples of each other; other granules take the general path.
        let granule = granules.0.max(granules.1);
        let plain = granules.0.is_power_of_two() && granules.1.is_power_of_two();
        if !plain || most < granule {
            return Self::Never;
        }
        let low = granule - 1;
        match policy {
            BucketPolicy::PowerOfTwo => match NonZeroU64::new(low) {
                Some(low) => Self::PowerOfTwo { low, last: (1 << most.ilog2()) - 1 },
                None => Self::Never, // a class of 1 byte
            },
            BucketPolicy::Exact | BucketPolicy::Fit { .. } => match most - granule {
                0 => Self::Never,
                most => Self::Multiple { low, last: most - 1 },
            },
            BucketPolicy::Tiered(_) => Self::Never,
        }
    }

    fn within(self, window: &RangeInclusive<u64>) -> Self {
        let end = *window.end();
        if *window.start() > 1 || end == 0 {
            return Self::Never;
        }
        match self {
            Self::PowerOfTwo { low, last } => Self::PowerOfTwo { low, last: last.min(end - 1) },
            Self::Multiple { low, last } => Self::Multiple { low, last: last.min(end - 1) },
            Self::Tiered { tiers, most } => Self::Tiered { tiers, most: most.min(end) },
            Self::Never => Self::Never,
        }
    }
}

/// Rounds up to the next multiple, without a division if `multiple` is a power of two.
#[inline]
fn rounded_up(bytes: u64, multiple: u64) -> Option<u64> {
    if multiple.is_power_of_two() {
        return Some(bytes.checked_add(multiple - 1)? & !(multiple - 1));
    }
    bytes.checked_next_multiple_of(multiple)
}

impl Class {
    fn of_bytes(bytes: u64) -> Self {
        Self { bytes, max_block_bytes: bytes }
    }

    fn bypass(bytes: u64) -> Self {
        Self { bytes, max_block_bytes: 0 }
    }

    /// Returns whether blocks of this class are cached.
    #[inline]
    pub(crate) fn is_cached(self) -> bool {
        self.max_block_bytes > 0
    }
}

/// Returns `bytes * alpha`, at least `bytes`; saturates.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float cast saturates, and negative and NaN factors give way to `bytes`"
)]
fn scaled(bytes: u64, alpha: f64) -> u64 {
    ((bytes as f64 * alpha) as u64).max(bytes)
}

#[cfg(test)]
mod tests;

/// A class: the largest request that it serves, and the bytes of its blocks.
#[derive(Clone, Copy, Debug)]
struct Tier {
    most: u64,
    bytes: u64,
}

/// Classes in ascending order.
#[derive(Clone, Debug)]
pub(super) struct Tiers {
    classes: Vec<Tier>,
    /// For each number of bits the first class that serves a request whose predecessor has so many.
    first: [u32; 66],
}

impl Tiers {
    /// The classes of an ascending list as far as `bytes_of` says how many bytes their blocks have.
    pub(super) fn new(list: &[u64], bytes_of: impl Fn(u64) -> Option<u64>) -> Self {
        let tier = |most: &u64| Some(Tier { most: *most, bytes: bytes_of(*most)? });
        let classes: Vec<_> = list.iter().map_while(tier).collect();
        let mut first = [0; 66];
        for (bits, first) in (0..).zip(&mut first) {
            let least = 1_u128 << bits >> 1; // the least number of so many bits
            let below = classes.partition_point(|class| u128::from(class.most) <= least);
            *first = u32::try_from(below).unwrap_or(u32::MAX);
        }
        Self { classes, first }
    }

    /// The bytes of the smallest class that holds a request; `None` if none does.
    #[inline]
    pub(super) fn bytes_for(&self, requested: u64) -> Option<u64> {
        let bits = (u64::BITS - requested.saturating_sub(1).leading_zeros()) as usize;
        let (from, to) = (self.first[bits] as usize, self.first[bits + 1] as usize);
        let mut at = from;
        if from < to {
            at += self.classes.get(from..to)?.partition_point(|class| class.most < requested);
        }
        self.classes.get(at).map(|class| class.bytes)
    }

    /// The largest request that has a class.
    pub(super) fn most(&self) -> Option<u64> {
        self.classes.last().map(|class| class.most)
    }
}
