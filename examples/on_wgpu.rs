//! Tiles through a pool of wgpu buffers: `cargo run --features wgpu --example on_wgpu`.
#![expect(clippy::print_stdout, reason = "an example tells what it did")]

#[path = "shared/tiles.rs"]
mod tiles;

use bucketpool::wgpu::WgpuAllocator;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    println!("{}", tiles::run(WgpuAllocator::on_default_adapter()?)?);
    Ok(())
}
