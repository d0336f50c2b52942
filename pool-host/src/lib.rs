//! Host memory for bucketpool.
//!
//! [`HostAllocator`] and [`PinnedAllocator`] give memory to pools. [`Tcache`] is a global allocator
//! that caches the blocks that a program frees. [`PageHeap`] serves large blocks to an allocator in
//! another language, which frees them by their address alone.
#![deny(unsafe_code)]
#![cfg_attr(
    shuttle,
    allow(dead_code, unused_imports, reason = "the models need the thread caches only")
)]

#[cfg(not(target_os = "linux"))]
compile_error!(
    "pool-host runs on Linux only: take `bucketpool` with `default-features = false` and the \
     features of the memory that you use, such as `wgpu`"
);

mod allocator;
mod background;
mod class;
#[cfg(feature = "allocator-api2")]
mod collections;
mod depot;
mod fork;
mod fresh;
mod global;
mod kernel;
mod limits;
mod page_heap;
mod pages;
mod pinned;
mod pressure;
mod settings;
mod stderr;
mod sync;
mod system;
mod tcache;
#[cfg(all(feature = "trace", not(shuttle)))]
#[doc(hidden)]
pub mod tracing;
#[cfg(not(all(feature = "trace", not(shuttle))))]
#[path = "tracing/absent.rs"]
mod tracing;
// musl unloads nothing, and a program without a dynamic linker has no library.
#[cfg(all(target_env = "gnu", not(any(target_feature = "crt-static", miri))))]
mod unloading;
mod virtual_memory;

pub use allocator::{Alignment, HostAllocator, HostBlock, HostView};
#[cfg(feature = "allocator-api2")]
pub use collections::InPool;
pub use fork::ProcessClock;
pub use global::{global, global_small_tensors};
pub use page_heap::{PageHeap, PageHeapStats};
pub use pinned::{AtLockLimit, PinnedAllocator, PinnedBlock, PinnedView};
pub use tcache::{CHeap, Tcache, TcacheState, TcacheStats};

/// Parses the words of `BUCKETPOOL_HOST`, for the fuzz target of that name.
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub fn fuzz_settings(words: &[u8]) {
    settings::Settings::DEFAULT.with_words(words);
}

/// The `allocator-api2` crate whose `Allocator` [`InPool`] implements.
#[cfg(feature = "allocator-api2")]
pub use allocator_api2;
