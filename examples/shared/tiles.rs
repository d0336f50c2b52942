//! The body that `on_host`, `on_cuda` and `on_wgpu` share: a pipeline over tiles, four arrays each.
#![expect(clippy::print_stdout, reason = "an example tells what it did")]

use bucketpool::{AllocError, DeviceAllocator, preset};

/// Bytes of one point in each array: position, normal, 12 features, 20 neighbours.
const BYTES_PER_POINT: [u64; 4] = [12, 12, 48, 80];

/// Runs ten tiles through a pool over any device.
pub(crate) fn run<A: DeviceAllocator>(device: A) -> Result<(), AllocError> {
    let pool = preset::tile_pipeline(device).build();
    for tile in 0..10 {
        let points = 100_000 + tile * 7_919;
        let arrays: Result<Vec<_>, _> =
            BYTES_PER_POINT.iter().map(|bytes| pool.allocate(points * bytes)).collect();
        drop(arrays?); // here a program would compute
    }
    println!("{}", pool.stats());
    assert!(pool.stats().hit_rate() > 0.5, "tiles share their blocks");
    Ok(())
}
