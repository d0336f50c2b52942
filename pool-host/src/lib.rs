//! Host memory for bucketpool: [`HostAllocator`].
#![deny(unsafe_code)]

mod allocator;
mod virtual_memory;

pub use allocator::{Alignment, HostAllocator, HostBlock, HostView};
