//! Tiles through a pool of VRAM: `cargo run --features cuda --example on_cuda`.
#![expect(clippy::print_stdout, reason = "an example tells what it did")]

#[path = "shared/tiles.rs"]
mod tiles;

use bucketpool::cuda::CudaAllocator;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    println!("{}", tiles::run(CudaAllocator::new(0)?)?);
    Ok(())
}
