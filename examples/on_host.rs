//! Tiles through a pool of host memory: `cargo run --features host --example on_host`.
#![expect(clippy::print_stdout, reason = "an example tells what it did")]

#[path = "shared/tiles.rs"]
mod tiles;

use bucketpool::host::HostAllocator;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    println!("{}", tiles::run(HostAllocator::new())?);
    Ok(())
}
