//! Two programs that own their encoder and their `submit`, without a pool and with one:
//! `cargo run --release --features wgpu --example engines`.
//!
//! `pipeline_before.rs` and `pipeline_after.rs`, and `boids_before.rs` and `boids_after.rs`, are
//! the same program twice; their difference shows what a program changes. This one runs all four,
//! and fails if a pool changes a byte of what a program computes.
#![expect(clippy::print_stdout, reason = "an example tells what it did")]

mod boids;
mod boids_after;
mod boids_before;
mod gpu;
mod pipeline;
mod pipeline_after;
mod pipeline_before;

use bucketpool::wgpu::wgpu::{Device, Queue};
use gpu::Failure;

/// A program: what it computes, and with a pool how many buffers it made.
type Program = fn(&Device, &Queue) -> Result<Vec<u8>, Failure>;

fn main() -> Result<(), Failure> {
    let (device, queue) = gpu::device()?;
    let programs: [(&str, Program, Program); 2] = [
        ("pipeline", pipeline_before::run, pipeline_after::run),
        ("boids", boids_before::run, boids_after::run),
    ];
    for (name, before, after) in programs {
        let (before, after) = (before(&device, &queue)?, after(&device, &queue)?);
        let differs = before.iter().zip(&after).position(|(a, b)| a != b);
        if before.len() != after.len() || differs.is_some() {
            return Err(format!("{name}: byte {differs:?} differs with a pool").into());
        }
        let some = before.iter().filter(|byte| **byte != 0).count();
        if some * 4 < before.len() {
            return Err(format!("{name}: nothing was computed").into());
        }
        println!("{name}: {} bytes, the same without a pool and with one", before.len());
    }
    Ok(())
}
