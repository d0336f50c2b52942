//! The port: the device as traits, which each backend implements.
//!
//! [`DeviceAllocator`] gives blocks and takes them back. [`Sliceable`] memory can be split,
//! [`VirtualMemory`] has addresses apart from memory, [`Transfer`] copies bytes, and
//! [`StreamClock`] knows the order of the device's work. [`DeviceError`] is what they fail with.

mod allocator;
mod clock;
mod error;
mod host_memory;
mod transfer;
mod zero;

pub use allocator::{
    Allocating, CommitCall, DecommitCall, DeviceAllocator, Handles, MarkOf, Memory, PageCalls,
    ReleaseCall, Request, Sliceable, StreamOf, VirtualMemory, WholeBlocks, Zeroing,
};
pub use clock::{Immediate, Order, StreamClock};
pub use error::{DeviceError, Limit, Why};
pub use host_memory::HostMemory;
pub use transfer::{Arrival, Transfer, TransferLater};
pub use zero::ZeroPolicy;
