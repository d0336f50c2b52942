//! Observation of a pool: events as they happen, statistics, and a map of its memory.

mod damage;
mod device_stats;
pub(crate) mod levels;
mod map;
mod observer;
mod picture;
mod stats;
mod tag;

pub use damage::{Damage, Misuse};
pub use device_stats::{DeviceStats, Stat, StatArray};
pub(crate) use levels::Accounts;
pub use map::{MemoryMap, RangeMap, RangeState, SegmentMap};
pub(crate) use observer::{EventFields, Observers};
pub use observer::{EventKind, Observer, PoolEvent, Reason};
pub(crate) use stats::Stage;
pub use stats::{PoolStats, PoolStatsSnapshot, Stages};
pub(crate) use tag::Tag;
pub use tag::tag_name;
