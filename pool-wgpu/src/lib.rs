//! wgpu buffers for bucketpool.
//!
//! A stream is a [`Scope`]: the commands of one encoder at a time, which [`Scope::submit`] ends. A
//! buffer that is dropped while its scope is open serves nobody but that scope until it is
//! submitted; so it cannot reach somebody whose work is submitted first. The queue's own writes are
//! a stream of their own, the default one.
//!
//! wgpu promises that a buffer reads as zeroes, and keeps the promise once for each buffer. So a
//! pool over it clears a block before it hands it out again, unless it is built with
//! `ZeroPolicy::Never`. The clearing is submitted with the scope, ahead of its commands.
//!
//! What the CPU writes and reads goes through [`Uploads`], [`FrameData`] and [`ReadBacks`]; buffers
//! that can be mapped are in no pool. [`WgpuSlabs`] are for an arena to cut.
//!
//! Only a borrowed `&wgpu::Buffer` is lent. `wgpu::Buffer` is `Clone`: a clone that is kept past
//! the drop of its pooled buffer shows what the next owner writes. A debug build finds one once the
//! buffer went back to wgpu ([`WgpuAllocator::kept_clones`]); before that, nothing can.
//!
//! Vulkan is built in, and run in CI. Metal, DX12 and WebGPU are features of the same names, which
//! CI compiles; WebGPU was run over Dawn (`cargo xtask web`), the other two nobody has run. A
//! browser lets nobody wait: request the device there yourself ([`WgpuAllocator::new`]), await
//! results ([`ReadBack`]), and have wgpu's own handler tell the errors of creation, which come too
//! late for a pool to return them.
//!
//! A device that is lost is told by every call here, as soon as wgpu tells: once what was submitted
//! has ended. A driver that fails underneath makes wgpu itself panic, in whatever polls.
//!
//! ```
//! use pool_core::BucketPool;
//! use pool_wgpu::WgpuAllocator;
//!
//! # #[cfg(feature = "noop")] {
//! # let (device, queue) = pool_wgpu::wgpu::Device::noop(&Default::default());
//! let pool = BucketPool::new(WgpuAllocator::new(device, queue));
//! let mut scope = pool.allocator().scope();
//! let buffer = pool.allocate_on(&scope.stream(), 4096)?;
//! {
//!     let on = scope.stream();
//!     let used = buffer.on(&on)?;
//!     scope.encoder().clear_buffer(used.buffer(), used.offset(), None);
//! }
//! scope.submit();
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

mod allocator;
mod clock;
mod gone;
mod groups;
mod readbacks;
mod scope;
mod shared;
mod slabs;
mod uploads;
mod view;

pub use allocator::WgpuAllocator;
pub use clock::{Scopes, WgpuStream};
pub use readbacks::{ReadBack, ReadBacks};
pub use scope::Scope;
pub use slabs::{ReadWrite, Role, SlabView, Uniform, WgpuSlabs};
pub use uploads::{FrameData, Uploads};
pub use view::{Bindable, Usage, WgpuBlock, WgpuView};

/// The wgpu that this crate was built with.
pub use wgpu;
