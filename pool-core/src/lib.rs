//! One memory pool over any kind of memory, and the port that a kind of memory implements.
//!
//! A [`BucketPool`] keeps freed blocks warm and hands them out again. It runs over a
//! [`DeviceAllocator`] and never looks into a block: bookkeeping is out of band, so CUDA pointers,
//! `wgpu` buffers and host pages run through the same code. ARCHITECTURE.md follows a request
//! through these modules; `store` is the hot path.
#![deny(unsafe_code)]
#![cfg_attr(loom, allow(dead_code, reason = "the models give threads their numbers"))]

mod arena;
mod book;
mod buffer;
mod builder;
mod cache;
mod clock;
mod device;
mod device_stats;
mod error;
mod gauge;
mod hold;
mod host_memory;
mod idle;
mod limit;
#[cfg(not(loom))]
mod lock;
#[cfg(loom)]
#[path = "lock/modelled.rs"]
mod lock;
mod marks;
#[cfg(all(test, loom))]
mod model;
mod order;
mod policy;
mod pool;
pub mod preset;
mod private;
mod private_pool;
mod record;
mod report;
mod request;
mod retention;
mod shard;
mod shards;
mod size;
mod stages;
mod stats;
mod store;
mod thread_number;
mod timeline;
mod zero;

#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(feature = "sim")]
pub mod sim;

pub use arena::{ArenaConfig, RangeState, SegmentMap};
pub use buffer::{Detached, PooledBuffer, Use};
pub use builder::PoolBuilder;
pub use clock::{Immediate, Order, StreamClock};
pub use device::{
    Allocating, Clearing, CommitCall, DecommitCall, DeviceAllocator, MarkOf, Memory, PageCalls,
    ReleaseCall, Request, Sliceable, StreamOf, VirtualMemory, WholeBlocks,
};
pub use device_stats::{DeviceStats, Stat, StatArray};
pub use error::{AllocError, DeviceError, Figures, Verdict, Why};
pub use host_memory::HostMemory;
pub use limit::CachedLimit;
pub use order::StealPolicy;
pub use policy::BucketPolicy;
pub use pool::BucketPool;
pub use private_pool::PrivatePool;
pub use retention::Retention;
pub use size::{Bytes, GIB, KIB, MIB};
pub use stats::{PoolStats, PoolStatsSnapshot, Stages};
pub use timeline::{EventDriver, Mark, Stream, Timeline};
pub use zero::ZeroPolicy;
