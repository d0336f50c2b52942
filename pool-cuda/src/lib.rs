//! CUDA memory for bucketpool, through [`cudarc`].
//!
//! Builds without a CUDA toolkit and starts without a GPU: the driver is loaded when the first
//! allocator is made, and its absence is a [`DeviceError`](pool_core::DeviceError).
//!
//! ```no_run
//! use pool_core::{BucketPool, GIB, MIB};
//! use pool_cuda::CudaAllocator;
//!
//! let device = CudaAllocator::new(0)?;
//! let stream = device.context().new_stream()?;
//! let on = device.stream(&stream)?;
//! let pool = BucketPool::builder(device).cached_limit(4 * GIB).build();
//!
//! let buffer = pool.allocate_on(&on, 64 * MIB)?;
//! let view = buffer.on(&on)?;
//! stream.memset_zeros(&mut &*view)?; // cudarc's own copies and fills take the view
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

mod allocator;
mod block;
mod driver;

pub use allocator::CudaAllocator;
pub use block::{CudaBlock, CudaView};
pub use driver::{CudaDriver, CudaEvent, CudaStreamOf};

/// The cudarc that this crate was built with.
pub use cudarc;
