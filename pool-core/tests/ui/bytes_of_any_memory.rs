//! A slice of memory that the CPU may not reach.
use pool_array::PooledArray;
use pool_core::{BucketPool, DeviceAllocator};
use pool_core::port::HostMemory;

fn zero<A: DeviceAllocator>(pool: &BucketPool<A>) {
    pool.allocate(8).unwrap().fill(0);
}

fn sum<A: HostMemory>(array: &PooledArray<f32, A>) -> f32 {
    array.sum()
}

fn main() {
    let pool = BucketPool::new(pool_sim::SimDevice::new());
    zero(&pool);
    sum(&PooledArray::new(&pool, 8).unwrap());
}
