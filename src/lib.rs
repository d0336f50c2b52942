#![doc = include_str!("../README.md")]

pub use pool_core::{
    AllocError, BucketPolicy, BucketPool, Bytes, CachedLimit, Detached, DeviceAllocator,
    DeviceError, EventDriver, Figures, GIB, HostMemory, Immediate, KIB, MIB, Mark, MarkOf, Memory,
    Order, PoolBuilder, PoolStats, PoolStatsSnapshot, PooledBuffer, Request, Stream, StreamClock,
    StreamOf, Timeline, Use, WholeBlocks, Why, ZeroPolicy,
};

/// Host memory.
#[cfg(feature = "host")]
pub mod host {
    pub use pool_host::{Alignment, HostAllocator, HostBlock, HostView};
}

#[cfg(feature = "conformance")]
pub use pool_core::conformance;
#[cfg(feature = "sim")]
pub use pool_core::sim;
