//! Host memory for bucketpool: [`HostAllocator`], and [`Tcache`], a global allocator that keeps
//! what a program frees.
#![deny(unsafe_code)]
#![cfg_attr(
    any(loom, shuttle),
    allow(dead_code, unused_imports, reason = "the model needs the depot only")
)]

mod allocator;
#[cfg(feature = "ndarray")]
mod array;
#[cfg(all(feature = "allocator-api2", not(loom)))]
mod collections;
mod depot;
mod fork;
mod global;
mod limits;
#[cfg(not(any(loom, shuttle)))]
#[cfg_attr(not(test), expect(dead_code, reason = "the tcache comes to it next"))]
mod pages;
mod pinned;
mod system;
#[cfg(not(loom))]
mod tcache;
mod virtual_memory;

pub use allocator::{Alignment, HostAllocator, HostBlock, HostView};
#[cfg(feature = "ndarray")]
pub use array::{AllocateArray, PooledArray};
#[cfg(all(feature = "allocator-api2", not(loom)))]
pub use collections::InPool;
pub use fork::ProcessClock;
pub use global::{global, global_small_tensors};
pub use pinned::{AtLockLimit, PinnedAllocator, PinnedBlock, PinnedView};
#[cfg(not(loom))]
pub use tcache::{Tcache, TcacheStats};

/// The `allocator-api2` that [`InPool`] is an allocator for.
#[cfg(all(feature = "allocator-api2", not(loom)))]
pub use allocator_api2;
/// The `ndarray` whose views [`PooledArray`] gives.
#[cfg(feature = "ndarray")]
pub use ndarray;
