//! Point-cloud tiles: tile n + 1 loads on one stream while tile n computes on another.
//! `cargo run --release --features cuda --example cuda_tiles`
#![expect(clippy::print_stdout, reason = "an example tells what it did")]

#[path = "shared/kernels.rs"]
#[expect(dead_code, reason = "this program uses one of them")]
mod kernels;

use bucketpool::config::preset;
use bucketpool::cuda::{CudaAllocator, CudaDevice, CudaPinnedAllocator, PinnedBytes};
use bucketpool::{ArenaConfig, BucketPool, MIB};
use kernels::{Kernel, Kernels};
use std::error::Error;

const TILES: u8 = 100;

fn main() -> Result<(), Box<dyn Error>> {
    let device = CudaDevice::new(0)?;
    let kernels = Kernels::load(&device)?;
    let streams = [device.context().new_stream()?, device.context().new_stream()?];
    let [load, compute] = [device.stream(&streams[0])?, device.stream(&streams[1])?];
    let vram = preset::tile_pipeline(CudaAllocator::on(device.clone())).build();
    // Staging memory is cut from large pieces: page-locking is slow, and powers of two waste half.
    let staging = BucketPool::builder(CudaPinnedAllocator::on(device))
        .arena(ArenaConfig::segments(64 * MIB))
        .build();

    let mut results = Vec::new();
    for tile in 0..TILES {
        let points = 200_000 + u32::from(tile) % 8 * 7_919;
        let bytes = u64::from(points) * 12;
        let mut source = staging.allocate(bytes)?;
        source.bytes_mut()?.fill(tile);
        let positions = vram.allocate_on(&load, bytes)?;
        streams[0].memcpy_htod(&*source.read_on(&load)?, &mut &*positions.on(&load)?)?;
        // `source` goes back here, and serves again once its copy is seen done.

        let features = vram.allocate_on(&compute, bytes)?;
        let (from, to) = (positions.read_on(&compute)?, features.on(&compute)?); // after the copy
        let (to_at, from_at) = (to.as_ptr(), from.as_ptr());
        let add = Kernel::Add { to: to_at, from: from_at, value: 1, count: points * 3 };
        kernels.launch(&streams[1], add)?;
        drop((from, to));

        let back = staging.allocate(bytes)?;
        let (from, to) = (features.read_on(&compute)?, back.on(&compute)?);
        streams[1].memcpy_dtoh(&*from, &mut &*to)?;
        drop((from, to));
        results.push((tile, back));
        if results.len() > 2 {
            check(results.remove(0))?;
        }
    }
    results.into_iter().try_for_each(check)?;
    println!("{TILES} tiles, all right\n{}", vram.stats());
    Ok(())
}

/// Every number is the loaded one, and one more.
fn check(
    (tile, mut back): (u8, bucketpool::PooledBuffer<CudaPinnedAllocator>),
) -> Result<(), Box<dyn Error>> {
    let expected = (u32::from_ne_bytes([tile; 4]) + 1).to_ne_bytes();
    let wrong = back.bytes()?.chunks(4).filter(|number| **number != expected).count();
    if wrong == 0 { Ok(()) } else { Err(format!("tile {tile}: {wrong} wrong numbers").into()) }
}
