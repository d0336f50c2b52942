#![doc = include_str!("../README.md")]

pub use pool_core::{
    AllocError, Allocating, ArenaConfig, BucketPolicy, BucketPool, Bytes, CachedLimit, Clearing,
    CommitCall, DecommitCall, Detached, DeviceAllocator, DeviceError, DeviceStats, EventDriver,
    Figures, GIB, HostMemory, Immediate, KIB, MIB, Mark, MarkOf, Memory, Order, PageCalls,
    PoolBuilder, PoolStats, PoolStatsSnapshot, PooledBuffer, PrivatePool, RangeState, ReleaseCall,
    Request, Retention, SegmentMap, Sliceable, Stages, Stat, StatArray, StealPolicy, Stream,
    StreamClock, StreamOf, Timeline, Use, Verdict, VirtualMemory, WholeBlocks, Why, ZeroPolicy,
};

pub use pool_core::preset;

/// CUDA: VRAM of a GPU, through cudarc.
#[cfg(feature = "cuda")]
pub mod cuda {
    pub use pool_cuda::*;
}

/// Host memory.
#[cfg(feature = "host")]
pub mod host {
    pub use pool_host::*;
}

/// wgpu buffers.
#[cfg(feature = "wgpu")]
pub mod wgpu {
    pub use pool_wgpu::*;
}

#[cfg(feature = "conformance")]
pub use pool_core::conformance;
#[cfg(feature = "sim")]
pub use pool_core::sim;
