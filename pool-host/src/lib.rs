//! Host memory for bucketpool: [`HostAllocator`].
#![deny(unsafe_code)]

mod allocator;

pub use allocator::{Alignment, HostAllocator, HostBlock, HostView};
