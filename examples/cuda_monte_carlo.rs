//! Monte Carlo: pi by random points, in short-lived buffers of 1 MiB on four streams;
//! and the same once more as a graph, whose memory is its own.
//! `cargo run --release --features cuda --example cuda_monte_carlo`
#![expect(clippy::print_stdout, reason = "an example tells what it did")]

#[path = "shared/kernels.rs"]
#[expect(dead_code, reason = "this program uses one of them")]
mod kernels;

use bucketpool::cuda::{CudaAllocator, CudaCapture, CudaDevice, PoolStream};
use bucketpool::{BucketPool, MIB, PooledBuffer};
use kernels::{Kernel, Kernels};
use std::error::Error;

/// Numbers in a buffer, and points of each.
const COUNT: u32 = 1 << 18;
const TRIES: u32 = 1000;

type Pool = BucketPool<CudaAllocator>;

fn throw(
    kernels: &Kernels,
    pool: &Pool,
    on: &PoolStream,
    seed: u32,
) -> Result<PooledBuffer<CudaAllocator>, Box<dyn Error>> {
    let inside = pool.allocate_on(on, MIB)?;
    let used = inside.on(on)?;
    let darts = Kernel::ThrowDarts { inside: used.as_ptr(), seed, tries: TRIES, count: COUNT };
    kernels.launch(on.raw(), darts)?;
    drop(used); // the use ends when its work is given, not before
    Ok(inside)
}

fn pi(inside: &PooledBuffer<CudaAllocator>, on: &PoolStream) -> Result<f64, Box<dyn Error>> {
    let counts = on.raw().clone_dtoh(&*inside.read_on(on)?)?;
    on.raw().synchronize()?;
    let number =
        |bytes: &[u8]| f64::from(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    let sum: f64 = counts.chunks_exact(4).map(number).sum();
    let pi = 4.0 * sum / (f64::from(COUNT) * f64::from(TRIES));
    if (pi - std::f64::consts::PI).abs() < 0.01 {
        Ok(pi)
    } else {
        Err(format!("pi is {pi}").into())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = CudaDevice::new(0)?;
    let kernels = Kernels::load(&device)?;
    let streams: Result<Vec<_>, Box<dyn Error>> =
        (0..4).map(|_| Ok(device.stream(&device.context().new_stream()?)?)).collect();
    let streams = streams?;
    let pool = BucketPool::new(CudaAllocator::on(device));
    let mut last = 0.0;
    for path in 0..100 {
        let on = &streams[path as usize % 4];
        last = pi(&throw(&kernels, &pool, on, path)?, on)?;
    }
    println!("100 paths, the last says {last:.4}\n{}", pool.stats());

    // SAFETY: the kernels use buffers of the capture only.
    let capture = unsafe { CudaCapture::begin(&pool, &streams[0]) }?;
    let result = throw(&kernels, &pool, &streams[0], 7)?;
    let mut graph = capture.end()?;
    for stream in &streams {
        graph.launch(stream, &[&result])?;
        last = pi(&result, stream)?;
    }
    println!("and the graph: {last:.4}");
    Ok(())
}
