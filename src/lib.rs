#![doc = include_str!("../README.md")]

pub use pool_core::{
    AllocError, Allocating, Arena, ArenaBlock, ArenaConfig, BucketPolicy, BucketPool, Bytes,
    CachedLimit, Clearing, Detached, DeviceAllocator, DeviceError, DeviceStats, EventDriver,
    Figures, GIB, GivenBack, Held, HostMemory, Immediate, KIB, Layer, MIB, Mark, MarkOf, Memory,
    Order, PoolBuilder, PoolStats, PoolStatsSnapshot, PooledBuffer, PrivatePool, RangeState,
    Request, Retention, Rungs, SegmentMap, Sliceable, Stat, StatArray, StealPolicy, Stream,
    StreamClock, StreamOf, Terms, Timeline, Use, Verdict, VirtualMemory, WholeBlocks, Why,
    ZeroPolicy,
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
