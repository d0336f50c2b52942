//! An arena as a setting of a pool: how it takes memory from the device and splits it, and what its
//! segments look like. The book does the work.

mod config;
mod map;
mod picture;

pub use config::ArenaConfig;
pub use map::{MemoryMap, RangeMap, RangeState, SegmentMap};
