//! A buffer that is given back twice.
use pool_core::BucketPool;
use pool_sim::SimDevice;

fn main() {
    let pool = BucketPool::new(SimDevice::new());
    let buffer = pool.allocate(8).unwrap();
    pool.deallocate(buffer);
    drop(buffer);
}
