//! Host memory for bucketpool.
//!
//! [`HostAllocator`] and [`PinnedAllocator`] give memory to pools. [`Tcache`] is a global allocator
//! that caches the blocks that a program frees. [`PageHeap`] serves large blocks to an allocator in
//! another language, which frees them by their address alone.
#![deny(unsafe_code)]
#![cfg_attr(
    any(loom, shuttle),
    allow(dead_code, unused_imports, reason = "the model needs the depot only")
)]

mod allocator;
#[cfg(not(loom))]
mod background;
#[cfg(all(feature = "allocator-api2", not(loom)))]
mod collections;
mod depot;
mod fork;
mod global;
mod limits;
#[cfg(not(loom))]
mod page_heap;
#[cfg(not(loom))]
mod pages;
mod pinned;
#[cfg(not(loom))]
mod pressure;
#[cfg(not(any(miri, loom, shuttle)))]
mod process;
#[cfg(any(miri, loom, shuttle))]
#[path = "process/modelled.rs"]
mod process;
#[cfg(not(loom))]
mod settings;
#[cfg(not(loom))]
mod stderr;
mod sync;
mod system;
#[cfg(not(loom))]
mod tcache;
#[cfg(all(feature = "trace", not(any(loom, shuttle))))]
#[doc(hidden)]
pub mod tracing;
#[cfg(not(all(feature = "trace", not(any(loom, shuttle)))))]
#[path = "tracing/absent.rs"]
mod tracing;
mod virtual_memory;

pub use allocator::{Alignment, HostAllocator, HostBlock, HostView};
#[cfg(all(feature = "allocator-api2", not(loom)))]
pub use collections::InPool;
pub use fork::ProcessClock;
pub use global::{global, global_small_tensors};
#[cfg(not(loom))]
pub use page_heap::{PageHeap, PageHeapStats};
pub use pinned::{AtLockLimit, PinnedAllocator, PinnedBlock, PinnedView};
#[cfg(not(loom))]
pub use tcache::{Tcache, TcacheStats};

/// Parses the words of `BUCKETPOOL_HOST`, for the fuzz target of that name.
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub fn fuzz_settings(words: &[u8]) {
    settings::Settings::DEFAULT.with_words(words);
}

/// The `allocator-api2` crate whose `Allocator` [`InPool`] implements.
#[cfg(all(feature = "allocator-api2", not(loom)))]
pub use allocator_api2;
