//! Tiles through a pool of VRAM: `cargo run --features cuda --example on_cuda`.

#[path = "shared/tiles.rs"]
mod tiles;

use bucketpool::cuda::CudaAllocator;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    Ok(tiles::run(CudaAllocator::new(0)?)?)
}
