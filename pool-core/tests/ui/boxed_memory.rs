//! A memory that is chosen when the program runs.
use pool_core::DeviceAllocator;
use pool_sim::SimDevice;

fn main() {
    let _memory: Box<dyn DeviceAllocator> = Box::new(SimDevice::new());
}
