//! A memory that is chosen when the program runs.
use pool_core::{DeviceAllocator, sim::SimDevice};

fn main() {
    let _memory: Box<dyn DeviceAllocator> = Box::new(SimDevice::new());
}
