//! A pool over something that is no allocator.
fn main() {
    let _pool = pool_core::BucketPool::new(42_u32);
}
