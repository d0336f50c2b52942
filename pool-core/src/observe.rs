//! Observation of a pool: events as they happen, statistics, and a map of its memory.

mod device_stats;
pub(crate) mod levels;
mod map;
mod observer;
mod stats;

pub use device_stats::{DeviceStats, Stat, StatArray};
pub(crate) use levels::Accounts;
pub use map::{MemoryMap, RangeMap, RangeState, SegmentMap};
pub use observer::{Damage, EventKind, Misuse, Observer, PoolEvent, Reason, tag_name};
pub(crate) use observer::{EventFields, Observers, Tag};
pub(crate) use stats::Stage;
pub use stats::{PoolStats, PoolStatsSnapshot, Stages};
