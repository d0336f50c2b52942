//! CUDA memory for bucketpool, through [`cudarc`].
//!
//! Builds without a CUDA toolkit and starts without a GPU: the driver is loaded when the first
//! device is opened, and its absence is a [`DeviceError`](pool_core::DeviceError).
//!
//! ```
//! # mod double { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double/stand_in.rs")); }
//! # double::stand_in(); // in the place of the driver
//! # mod bucketpool { pub use pool_core::*; pub mod cuda { pub use pool_cuda::*; } }
//! use bucketpool::{BucketPool, GIB, MIB};
//! use bucketpool::cuda::{CudaAllocator, CudaDevice};
//!
//! let device = CudaDevice::new(0)?;
//! let stream = device.context().new_stream()?;
//! let on = device.stream(&stream)?;
//! let pool = BucketPool::builder(CudaAllocator::on(device)).cached_limit(4 * GIB).build();
//!
//! let buffer = pool.allocate_on(&on, 64 * MIB)?;
//! let view = buffer.on(&on)?;
//! stream.memset_zeros(&mut &*view)?; // cudarc's own copies, fills and launches take the view
//! drop(view);
//! drop(buffer); // serves the stream again at once, and others when they wait for it
//! pool.allocate_on(&on, 60 * MIB)?;
//! assert_eq!((pool.stats().misses, pool.stats().hits), (1, 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

mod abi;
mod adopted;
mod array;
mod block;
mod blocking;
mod capturing;
mod device;
mod driver;
mod events;
mod foreign;
mod forks;
mod graph;
mod graph_pool;
mod handles;
mod memory;
mod outlast;
mod pages;
mod peers;
mod pinned;
mod sizes;
mod stream_ordered;
mod transfer;
mod waiting;

pub use adopted::AdoptedCapture;
pub use array::{OfCuda, TypedView, Vram, into_slice};
pub use block::{CudaBlock, CudaView};
pub use blocking::CudaAllocator;
pub use device::{BorrowedStream, CudaDevice};
pub use events::{CudaDriver, CudaEvent, PoolStream, RawStream};
pub use graph::{CudaCapture, CudaGraph};
pub use graph_pool::GraphPool;
pub use memory::CudaMemory;
pub use pages::{CudaVmmAllocator, Exported, VmmConfig};
pub use peers::{CudaPools, copy_to_peer, use_on_peer};
pub use pinned::{CudaPinnedAllocator, PinnedBlock, PinnedBytes, PinnedRange};
pub use stream_ordered::CudaAsyncAllocator;
pub use transfer::CudaArrival;

/// The cudarc that this crate was built with.
pub use cudarc;
