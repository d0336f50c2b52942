//! A batch of tiles in one buffer: `cargo run --example tile_batch`.
//!
//! Tiles have as many points as it happens, so a buffer for each tile is a request for each tile,
//! and blocks of many sizes. A batch is one request: its tiles lie one behind the other, each
//! aligned for a kernel, and one launch can work on all of them.
#![expect(clippy::print_stdout, reason = "an example tells what it did")]

use bucketpool::config::preset;
use bucketpool::host::HostAllocator;
use bucketpool::{AllocError, BucketPool, DeviceError, PooledBuffer, Transfer};
use std::error::Error;
use std::ops::Range;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Each tile begins at a multiple of this many bytes.
const ALIGNMENT: u64 = 256;
/// A point has three coordinates.
const BYTES_PER_POINT: u64 = 3 * size_of::<f32>() as u64;

/// Tiles in one buffer.
struct TileBatch<A: Transfer> {
    buffer: PooledBuffer<A>,
    /// The bytes of each tile in the buffer.
    tiles: Vec<Range<u64>>,
}

impl<A: Transfer> TileBatch<A> {
    /// Takes memory for tiles of these numbers of points, in one request.
    fn new(pool: &BucketPool<A>, points: &[u64]) -> std::result::Result<Self, AllocError> {
        let mut end = 0_u64;
        let tiles = points.iter().map(|points| {
            let start = end.next_multiple_of(ALIGNMENT);
            end = start + points * BYTES_PER_POINT;
            start..end
        });
        let tiles: Vec<_> = tiles.collect();
        Ok(Self { buffer: pool.allocate(end)?, tiles })
    }

    fn write(&mut self, tile: usize, points: &[u8]) -> std::result::Result<(), DeviceError> {
        self.buffer.write_at(self.tiles[tile].start, points)
    }

    fn read(&self, tile: usize) -> std::result::Result<Vec<u8>, DeviceError> {
        let Range { start, end } = self.tiles[tile];
        let mut points = vec![0; usize::try_from(end - start).unwrap_or(usize::MAX)];
        self.buffer.read_at(start, &mut points)?;
        Ok(points)
    }
}

/// The tiles of one batch: how many points each has.
fn points_of(batch: u64) -> Vec<u64> {
    (0..16).map(|tile| 5_000 + (batch * 7919 + tile * 104_729) % 45_000).collect()
}

fn run<A: Transfer>(memory: A) -> Result<()> {
    let pool = preset::tile_pipeline(memory).name("batches").build();
    for number in 0..50 {
        let points = points_of(number);
        let mut batch = TileBatch::new(&pool, &points)?;
        for (tile, points) in points.iter().enumerate() {
            let bytes = usize::try_from(points * BYTES_PER_POINT)?;
            batch.write(tile, &vec![u8::try_from(tile)?; bytes])?;
        }
        // Here a program would launch one kernel over all tiles.
        for tile in 0..points.len() {
            let own = u8::try_from(tile)?;
            assert!(batch.read(tile)?.iter().all(|byte| *byte == own), "tile {tile} of {number}");
        }
    }
    let stats = pool.stats();
    println!("50 batches of 16 tiles: {} requests\n{stats}", stats.allocations);
    assert_eq!(stats.allocations, 50, "a batch is one request");
    assert!(stats.misses <= 2, "batches are about as large as each other");
    Ok(())
}

fn main() -> Result<()> {
    run(HostAllocator::new())
}
