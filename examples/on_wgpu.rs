//! Tiles through a pool of wgpu buffers: `cargo run --features wgpu --example on_wgpu`.

#[path = "shared/tiles.rs"]
mod tiles;

use bucketpool::wgpu::WgpuAllocator;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    Ok(tiles::run(WgpuAllocator::on_default_adapter()?)?)
}
