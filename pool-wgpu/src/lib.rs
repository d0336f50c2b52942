//! wgpu buffers for bucketpool.
//!
//! A stream is a [`Scope`]: the commands of one encoder at a time, which [`Scope::submit`] ends. A
//! buffer that is dropped while its scope is open serves no other scope until that one is
//! submitted; so it cannot reach work that is submitted first. The queue's own writes are the
//! default stream.
//!
//! wgpu promises that a buffer reads as zeroes, and keeps the promise once for each buffer. So a
//! pool over it zeroes a block before it hands it out again, unless it is built with
//! `ZeroPolicy::Never`. The zeroing is submitted with the scope, ahead of its commands.
//!
//! What the CPU writes and reads goes through [`Uploads`], [`FrameData`] and [`ReadBacks`]; buffers
//! that can be mapped are in no pool. [`WgpuSlabs`] are for an arena, which splits them.
//!
//! `wgpu::Buffer` is `Clone`: a clone, as [`Scope::lend`] returns one, or a bind group that is kept
//! past the drop of its pooled buffer shows what the next owner writes. A debug build finds one
//! once the buffer went back to wgpu ([`WgpuAllocator::kept_clones`]); before that, nothing can.
//!
//! Vulkan is built in, and run in CI. Metal, DX12 and WebGPU are features of the same names, which
//! CI compiles; WebGPU was run over Dawn (`cargo xtask web`), the other two were not run. In a
//! browser a program must not block: request the device there yourself ([`WgpuAllocator::new`]),
//! await results ([`ReadBack`]), and have wgpu's own handler tell the errors of creation, which
//! come too late for a pool to return them.
//!
//! wgpu tells of a device that was destroyed in a poll, once what was submitted has ended, and refuses commands
//! without a word until then. The first call here that it refuses so returns `Why::Lost`: the end of a frame,
//! new memory, or a write. It calls [`WgpuAllocator::on_lost`], and every call after it says the same. A driver
//! that fails underneath makes wgpu itself panic, in whatever polls.
//!
//! ```
//! # mod bucketpool { pub use pool_core::*; pub mod wgpu { pub use pool_wgpu::*; } }
//! use bucketpool::BucketPool;
//! use bucketpool::wgpu::WgpuAllocator;
//!
//! # #[cfg(feature = "noop")] {
//! # let (device, queue) = pool_wgpu::wgpu::Device::noop(&Default::default());
//! let pool = BucketPool::new(WgpuAllocator::new(device, queue));
//! let mut scope = pool.allocator().scope();
//! let buffer = pool.allocate_on(&scope.stream(), 4096)?;
//! {
//!     let on = scope.stream();
//!     let used = buffer.on(&on)?;
//!     scope.encoder().clear_buffer(used.buffer()?, used.offset(), None);
//! }
//! scope.submit()?;
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

mod allocator;
mod arrival;
mod bind;
mod binding;
mod clock;
mod eager;
mod frame;
mod groups;
mod growing;
mod idle;
mod leaked;
mod lend;
mod looks;
mod loss;
mod memory;
mod moved;
mod nonces;
mod open;
mod pooled;
mod readback;
mod readbacks;
mod receipts;
mod recording;
mod scope;
mod shared;
mod signals;
mod slabs;
mod staging;
mod texels;
mod textures;
mod transfer;
mod uploads;
mod view;
mod viewed;
mod written;
mod zeroing;

pub use allocator::WgpuAllocator;
pub use clock::{Scopes, WgpuStream};
pub use frame::Frame;
pub use groups::BindGroupStats;
pub use growing::GrowingBuffer;
pub use readback::ReadBack;
pub use readbacks::ReadBacks;
pub use scope::Scope;
pub use slabs::{Index, Indirect, ReadWrite, Role, SlabView, Uniform, Vertex, WgpuSlabs};
pub use staging::InFlight;
pub use textures::{PooledTexture, Textures};
pub use transfer::WgpuArrival;
pub use uploads::{FrameData, Placed, Uploads};
pub use view::{
    Bindable, BindingArray, BindingPart, BufferPart, ToRead, Unpooled, Usage, WgpuBlock, WgpuView,
};

/// The wgpu that this crate was built with.
pub use wgpu;

/// The programs of the page, which run as doc tests.
#[cfg(all(doctest, feature = "noop"))]
#[doc = include_str!("../../docs/wgpu.md")]
mod page {}
