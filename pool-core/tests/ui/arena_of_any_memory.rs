//! An arena over memory that may not be split.
use pool_core::{ArenaConfig, BucketPool, DeviceAllocator};

fn pool<A: DeviceAllocator>(memory: A) -> BucketPool<A> {
    BucketPool::builder(memory).arena(ArenaConfig::grow()).build()
}

fn main() {
    pool(pool_sim::SimDevice::new());
}
