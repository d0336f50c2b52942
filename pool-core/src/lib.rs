//! One memory pool over any kind of memory, and the port that a kind of memory implements.
//!
//! A [`BucketPool`] keeps freed blocks warm and hands them out again. It runs over a
//! [`DeviceAllocator`] and never looks into a block: bookkeeping is out of band, so CUDA pointers,
//! `wgpu` buffers and host pages run through the same code. ARCHITECTURE.md follows a request
//! through these modules; `store/hit.rs` has the hot paths.
#![deny(unsafe_code)]
#![cfg_attr(any(loom, shuttle), allow(dead_code, reason = "the models give threads their numbers"))]

/// The threads, locks and atomics of a checker, where one runs.
#[cfg(loom)]
extern crate loom as checker;
#[cfg(shuttle)]
extern crate shuttle as checker;

#[macro_use]
mod invariant;

mod block;
mod blocks;
pub mod buffer;
mod by_size;
#[cfg(feature = "check")]
pub mod check;
pub mod error;
pub mod limits;
pub mod observe;
mod pool;
pub mod port;
mod ranges;
mod shard;
pub mod size;
mod store;
pub mod stream;
mod sys;

pub use buffer::PooledBuffer;
pub use error::AllocError;
pub use observe::PoolStats;
pub use pool::BucketPool;
pub use pool::builder::PoolBuilder;
pub use pool::pool_ref::{HandleSettings, PoolRef};
pub use pool::private_pool::PrivatePool;
pub use pool::waiting::AllocateAsync;
pub use port::{
    DeviceAllocator, DeviceError, Limit, StreamClock, StreamOf, Transfer, Why, ZeroPolicy,
};
pub use ranges::arena::ArenaConfig;
pub use size::{BucketPolicy, GIB, KIB, MIB};
#[cfg(pool_counts)]
pub use sys::counts;
pub use sys::process::{forks, is_vfork_child, note_process, stop_asking, watch_forks};
