//! One memory pool over any kind of memory, and the port that a kind of memory implements.
//!
//! A [`BucketPool`] keeps freed blocks warm and hands them out again. It runs over a
//! [`DeviceAllocator`] and never looks into a block: bookkeeping is out of band, so CUDA pointers,
//! `wgpu` buffers and host pages run through the same code. ARCHITECTURE.md follows a request
//! through these modules; `cache.rs` is the hot path.
#![deny(unsafe_code)]
#![cfg_attr(any(loom, shuttle), allow(dead_code, reason = "the models give threads their numbers"))]

/// The threads, locks and atomics of a checker, where one runs.
#[cfg(loom)]
extern crate loom as checker;
#[cfg(shuttle)]
extern crate shuttle as checker;

mod block;
mod book;
mod budget;
mod cache;
#[cfg(feature = "check")]
pub mod check;
#[cfg(pool_counts)]
pub mod counts;
mod device;
mod error;
mod fork;
#[cfg(not(any(loom, shuttle)))]
mod lock;
#[cfg(any(loom, shuttle))]
#[path = "lock/modelled.rs"]
mod lock;
mod observe;
mod policy;
mod pool;
mod size;
mod stats;
mod stream;
mod sync;
mod thread_number;

pub use book::arena::{ArenaConfig, MemoryMap, RangeMap, RangeState, SegmentMap};
pub use budget::{Budget, Pressure};
pub use device::transfer::{Arrival, Transfer, TransferLater};
pub use device::zero::ZeroPolicy;
pub use device::{
    Allocating, CommitCall, DecommitCall, DeviceAllocator, Handles, MarkOf, Memory, PageCalls,
    ReleaseCall, Request, Sliceable, StreamOf, VirtualMemory, WholeBlocks, Zeroing,
};
pub use error::config::ConfigError;
pub use error::figures::{Figures, Verdict};
pub use error::{AllocError, DeviceError, Why};
pub use fork::{forks, watch_forks};
pub use observe::tag::tag_name;
pub use observe::{EventKind, Observer, PoolEvent, Reason};
pub use policy::BucketPolicy;
pub use policy::limit::{CachedLimit, FullBucket};
pub use policy::retention::Retention;
pub use policy::text::{BadPolicy, PolicyForm};
pub use pool::BucketPool;
pub use pool::buffer::{Detached, PooledBuffer, Use};
pub use pool::builder::PoolBuilder;
pub use pool::guards::{Damage, Misuse};
pub use pool::host_memory::HostMemory;
pub use pool::private_pool::PrivatePool;
pub use pool::waiting::AllocateAsync;
pub use size::{BadShare, BadSize, Bytes, GIB, KIB, MIB, ShareText, SizeText};
pub use stats::device_stats::{DeviceStats, Stat, StatArray};
pub use stats::{PoolStats, PoolStatsSnapshot, Stages};
pub use stream::clock::{Immediate, Order, StreamClock};
pub use stream::order::StealPolicy;
pub use stream::timeline::{EventDriver, Mark, Stream, Timeline};
