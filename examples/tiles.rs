//! One program, whose memory a cargo feature picks:
//!
//! ```console
//! cargo run --example tiles                      # host memory
//! cargo run --example tiles --features sim       # a simulated device
//! cargo run --example tiles --features cuda      # VRAM
//! cargo run --example tiles --features wgpu      # wgpu buffers
//! ```
//!
//! A library does the same: [`memory`] is the one place that names a backend, and the rest is written
//! once, over any `A: DeviceAllocator`. Where several of the features are on, the last of this list
//! wins.
#![expect(clippy::print_stdout, reason = "an example tells what it did")]

#[path = "shared/tiles.rs"]
mod tiles;

use bucketpool::{DeviceError, Transfer};
use std::error::Error;

#[cfg(all(feature = "cuda", not(feature = "wgpu")))]
fn memory() -> Result<impl Transfer, DeviceError> {
    bucketpool::cuda::CudaAllocator::new(0)
}

#[cfg(feature = "wgpu")]
fn memory() -> Result<impl Transfer, DeviceError> {
    bucketpool::wgpu::WgpuAllocator::on_default_adapter()
}

#[cfg(all(feature = "sim", not(any(feature = "cuda", feature = "wgpu"))))]
fn memory() -> Result<impl Transfer, DeviceError> {
    Ok(bucketpool::sim::SimDevice::new())
}

#[cfg(not(any(feature = "sim", feature = "cuda", feature = "wgpu")))]
fn memory() -> Result<impl Transfer, DeviceError> {
    Ok(bucketpool::host::HostAllocator::new())
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    println!("{}", tiles::run(memory()?)?);
    Ok(())
}
