//! A hit in bucketpool and one in `CubeCL`'s memory management, measured in one run.
//!
//! Measured: on one thread, one free of the oldest live block and one allocation of the same size,
//! while 1, 128, 1000 and 16 000 blocks of 64 KiB are live. After the first round each allocation
//! is served from memory that is already reserved; the bench asserts this.
//!
//! - `bucketpool`: a pool of exact sizes with statistics on, over an arena on the pages of a
//!   simulated device; buffers free themselves on drop.
//! - `CubeCL`: `MemoryManagement::reserve` with its presets `SubSlices` and `ExclusivePages`, over
//!   a storage that hands out numbers and no memory; handles free themselves on drop.
//!
//! Not measured: a device, misses, a mix of sizes, several threads or streams, views of a block.
//! Also not measured: `CubeCL`'s mutex or channel around its memory management, and the cleanup
//! that gives pages back. The measured time of bucketpool includes its lock, its statistics, and a
//! mark of the stream.

use criterion::{Criterion, criterion_group, criterion_main};
use cubecl_ir::MemoryDeviceProperties;
use cubecl_runtime::logging::ServerLogger;
use cubecl_runtime::memory_management::{
    MemoryAllocationMode, MemoryConfiguration, MemoryManagement, MemoryManagementOptions,
};
use cubecl_runtime::server::IoError;
use cubecl_runtime::storage::{ComputeStorage, StorageHandle, StorageId, StorageUtilization};
use pool_core::{ArenaConfig, BucketPool, GIB, KIB};
use pool_sim::SimDevice;
use std::fmt::Debug;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

const BLOCK: u64 = 64 * KIB;
const LIVE: [usize; 4] = [1, 128, 1000, 16_000];
/// Blocks of both contenders start at multiples of this.
const ALIGNMENT: u64 = 512;
/// Largest page, from which `CubeCL` sizes its pools.
///
/// It is a quarter of the device, as `CubeCL` computes it on a GPU of 8 GiB.
const LARGEST_PAGE: u64 = 2 * GIB;

/// A storage that counts its pages and has no memory.
#[derive(Default)]
struct Numbers {
    pages: u64,
}

impl ComputeStorage for Numbers {
    type Resource = ();

    fn alignment(&self) -> usize {
        512
    }

    fn get(&mut self, _handle: &StorageHandle) {}

    fn alloc(&mut self, size: u64) -> Result<StorageHandle, IoError> {
        self.pages += 1;
        Ok(StorageHandle::new(StorageId::new(), StorageUtilization { offset: 0, size }))
    }

    fn dealloc(&mut self, _id: StorageId) {}

    fn flush(&mut self) {}
}

/// Measures a pair with `live` live blocks. `allocate` makes each block; dropping it frees it.
fn pair<B, E: Debug>(
    c: &mut Criterion,
    name: &str,
    live: usize,
    mut allocate: impl FnMut() -> Result<B, E>,
) {
    let mut blocks: Vec<Option<B>> = (0..live).map(|_| allocate().ok()).collect();
    let mut at = 0;
    c.bench_function(&format!("{name}, {live} live"), |b| {
        b.iter(|| {
            blocks[at] = None;
            blocks[at] = black_box(allocate().ok());
            at = if at + 1 == live { 0 } else { at + 1 };
        });
    });
    assert!(blocks.iter().all(Option::is_some), "no request is refused");
}

fn bucketpool(c: &mut Criterion, live: usize) {
    let builder = BucketPool::builder(SimDevice::new()).arena(ArenaConfig::grow());
    let pool = builder.granule(ALIGNMENT).build();
    pair(c, "bucketpool", live, || pool.allocate(black_box(BLOCK)));
    let below = pool.device_stats().unwrap().allocation.all.allocated;
    assert_eq!(below, live as u64, "after the first round each request is a hit in the pool");
}

fn cubecl(c: &mut Criterion, name: &str, live: usize, preset: MemoryConfiguration) {
    let device = MemoryDeviceProperties { max_page_size: LARGEST_PAGE, alignment: ALIGNMENT };
    let options = MemoryManagementOptions::new("main").mode(MemoryAllocationMode::Auto);
    let logger = Arc::new(ServerLogger::default());
    let mut memory =
        MemoryManagement::from_configuration(Numbers::default(), &device, preset, logger, options);
    pair(c, name, live, || memory.reserve(black_box(BLOCK)));
    assert!(memory.storage().pages <= live as u64, "after the first round each request is a hit");
}

fn hits(c: &mut Criterion) {
    for live in LIVE {
        bucketpool(c, live);
        cubecl(c, "CubeCL SubSlices", live, MemoryConfiguration::SubSlices);
        cubecl(c, "CubeCL ExclusivePages", live, MemoryConfiguration::ExclusivePages);
    }
}

fn brief() -> Criterion {
    Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(2))
}

criterion_group! {
    name = benches;
    config = brief();
    targets = hits
}
criterion_main!(benches);
