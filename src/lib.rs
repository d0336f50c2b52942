#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

pub use pool_core::{
    AllocError, AllocateAsync, ArenaConfig, BucketPolicy, BucketPool, DeviceAllocator, DeviceError,
    GIB, HandleSettings, KIB, Limit, MIB, PoolBuilder, PoolRef, PoolStats, PooledBuffer,
    PrivatePool, StreamClock, StreamOf, Transfer, Why, ZeroPolicy,
};

#[cfg(pool_counts)]
pub use pool_core::counts;
pub use pool_core::{buffer, error, limits, observe, port, size, stream};

/// Typed arrays in pooled buffers.
pub mod array {
    pub use pool_array::*;
}

/// Pools that are configured when a program runs: policies as text, presets, files, and pools whose
/// memory is chosen then.
pub mod config {
    pub use pool_config::*;
}

/// CUDA: VRAM of a GPU, through cudarc.
#[cfg(feature = "cuda")]
pub mod cuda {
    pub use pool_cuda::*;
}

/// Host memory.
#[cfg(feature = "host")]
pub mod host {
    /// Elements that the CPU can reach:
    ///
    /// ```
    /// use bucketpool::{BucketPool, Why};
    /// use bucketpool::host::{HostAllocator, PooledArray};
    ///
    /// let pool = BucketPool::new(HostAllocator::new());
    /// let ones = PooledArray::from_elem(&pool, [2, 3], 1.0_f32)?;
    /// let twos = ones.map(|x| x + 1.0)?;
    /// let sums = ones.zip_with(&twos, |a, b| a + b)?;
    /// assert_eq!((sums.sum(), sums.try_clone()?.sum()), (18.0, 18.0));
    ///
    /// let other = PooledArray::from_elem(&pool, [3, 2], 1.0_f32)?;
    /// assert_eq!(ones.zip_with(&other, |a, b| a + b).unwrap_err().why(), Why::ShapeMismatch);
    /// # Ok::<(), bucketpool::AllocError>(())
    /// ```
    pub use pool_array::PooledArray;
    #[cfg(feature = "ndarray")]
    pub use pool_array::ndarray;
    pub use pool_host::*;
}

/// wgpu buffers.
#[cfg(feature = "wgpu")]
pub mod wgpu {
    pub use pool_wgpu::*;
}

/// Traces: a recorder, further observers, and the formats of other tools.
#[cfg(feature = "trace")]
pub mod trace {
    pub use pool_trace::*;
}

/// A simulated device that counts its calls, runs its streams late and fails on demand.
#[cfg(feature = "sim")]
pub mod sim {
    pub use pool_sim::*;
}
#[cfg(feature = "conformance")]
pub use pool_sim::conformance;

/// The full check of a pool, for tests.
#[cfg(any(feature = "sim", feature = "conformance"))]
pub mod check {
    pub use pool_core::check::*;
}

/// The programs of the pages, which compile and run as doc tests.
#[cfg(all(doctest, feature = "sim", feature = "host"))]
mod pages {
    macro_rules! pages {
        ($($name:ident: $path:literal,)*) => {
            $(#[doc = include_str!($path)] mod $name {})*
        };
    }
    pages! {
        coming_from: "../docs/coming-from.md",
        configuration: "../docs/configuration.md",
        policies: "../docs/policies.md",
        services: "../docs/services.md",
        sim: "../docs/sim.md",
        tcache: "../docs/tcache.md",
    }
    #[cfg(feature = "cuda")]
    pages! { cuda: "../docs/cuda.md", }
    #[cfg(feature = "trace")]
    pages! { traces: "../docs/traces.md", }
}
