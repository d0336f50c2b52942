//! Memory that is used after its buffer was dropped.
use pool_core::BucketPool;
use pool_sim::SimDevice;

fn main() {
    let pool = BucketPool::new(SimDevice::new());
    let stream = pool.allocator().stream();
    let used = {
        let buffer = pool.allocate(8).unwrap();
        buffer.on(&stream).unwrap()
    };
    pool.allocator().kernel(&stream, &used);
}
