#![doc = include_str!("../README.md")]

pub use pool_core::{
    AllocError, AllocateAsync, Allocating, AnyBuffer, AnyPool, ArenaConfig, Arrival, BadPolicy,
    BadSize, Breakdown, BucketPolicy, BucketPool, Budget, Bytes, CachedLimit, CommitCall,
    ConfigError, Damage, DecommitCall, Detached, DeviceAllocator, DeviceError, DeviceStats,
    EventDriver, EventKind, Figures, FullBucket, GIB, Growth, Handles, HostMemory, Immediate, KIB,
    LeakTracker, LiveBuffer, MIB, Mark, MarkOf, Memory, MemoryMap, Misuse, Observer, Order,
    PageCalls, PolicySpec, PoolBuilder, PoolConfig, PoolEvent, PoolStats, PoolStatsSnapshot,
    PooledArray, PooledBuffer, Pressure, PrivatePool, RangeMap, RangeState, Reason, ReleaseCall,
    Request, RequestCounts, Retention, RmmLog, SegmentMap, Shape, ShareText, SizeText, Sliceable,
    Stages, Stat, StatArray, StealPolicy, Stream, StreamClock, StreamOf, Timeline, Transfer,
    TransferLater, Use, Verdict, VirtualMemory, WholeBlocks, Why, ZeroPolicy, Zeroing, tag_name,
};

#[cfg(pool_counts)]
pub use pool_core::counts;
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

/// Traces: a recorder, and the formats of other tools.
#[cfg(feature = "trace")]
pub mod trace {
    pub use pool_trace::*;
}

#[cfg(any(feature = "sim", feature = "conformance"))]
pub use pool_core::TestThreads;
#[cfg(feature = "conformance")]
pub use pool_core::conformance;
#[cfg(feature = "sim")]
pub use pool_core::sim;
