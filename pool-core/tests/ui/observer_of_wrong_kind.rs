//! An observer that takes no event.
use pool_core::BucketPool;
use pool_sim::SimDevice;
use std::sync::Arc;

fn main() {
    BucketPool::builder(SimDevice::new()).observer(Arc::new("count")).build();
}
