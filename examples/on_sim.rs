//! Tiles through a pool of simulated memory: `cargo run --features sim --example on_sim`.
#![expect(clippy::print_stdout, reason = "an example tells what it did")]

#[path = "shared/tiles.rs"]
mod tiles;

use bucketpool::sim::SimDevice;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    println!("{}", tiles::run(SimDevice::new())?);
    Ok(())
}
