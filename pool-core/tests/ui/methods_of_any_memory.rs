//! Methods that need more of a memory than each one offers.
use pool_array::PooledArray;
use pool_config::PoolConfig;
use pool_core::{BucketPool, DeviceAllocator, PooledBuffer};

fn copy<A: DeviceAllocator>(buffer: &mut PooledBuffer<A>) {
    buffer.write_at(0, b"copied").unwrap();
}

fn elements<A: DeviceAllocator>(array: &PooledArray<f32, A>) -> Vec<f32> {
    array.map(|element| 2.0 * element).unwrap();
    array.to_vec().unwrap()
}

fn from_file<A: DeviceAllocator>(memory: A, config: &PoolConfig) {
    config.pool(memory).unwrap();
}

fn whole<A: DeviceAllocator>(buffer: PooledBuffer<A>) {
    let _ = buffer.detach().into_raw();
}

fn guarded<A: DeviceAllocator>(memory: A) {
    BucketPool::builder(memory).guards(|damage| panic!("{damage:?}"));
}

fn main() {}
