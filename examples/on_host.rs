//! Tiles through a pool of host memory: `cargo run --features host --example on_host`.

#[path = "shared/tiles.rs"]
mod tiles;

use bucketpool::host::HostAllocator;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    Ok(tiles::run(HostAllocator::new())?)
}
