//! The port: the device as traits, which each backend implements.
//!
//! [`DeviceAllocator`] allocates and frees blocks. [`Sliceable`] memory can be split,
//! [`VirtualMemory`] reserves addresses and commits memory to them, [`Transfer`] copies bytes, and
//! [`StreamClock`] orders the device's work. All of them fail with a [`DeviceError`].

mod allocator;
mod clock;
mod error;
mod transfer;

pub use allocator::{
    Allocating, CommitCall, DecommitCall, DeviceAllocator, Handles, Lent, MarkOf, Memory,
    PageCalls, ReleaseCall, Request, Sliceable, StreamOf, VirtualMemory, WholeBlocks, ZeroPolicy,
    Zeroing,
};
pub use clock::{Immediate, Order, StreamClock};
pub use error::{DeviceError, Limit, Why};
pub use transfer::{Arrival, HostMemory, Transfer, TransferLater};
