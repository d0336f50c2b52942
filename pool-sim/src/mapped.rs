//! Simulated memory that the CPU can touch as well as streams: what page-locked memory is.

use crate::device::SimDevice;
use crate::hooked::{Claims, Hooked};
use pool_core::DeviceAllocator;
use pool_core::port::Memory;

/// Memory of a [`SimDevice`] that the CPU can touch without asking a stream, so that a pool may
/// hand it out only when it has seen the streams done with it.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
/// use bucketpool::{BucketPool, sim::{MappedSim, SimDevice}};
///
/// let device = SimDevice::new();
/// let pool = BucketPool::new(MappedSim::new(device.clone()));
/// let stream = device.stream();
/// let buffer = pool.allocate_on(&stream, 4096)?;
/// device.kernel(&stream, &*buffer.on(&stream)?); // queued, not done
/// drop(buffer);
/// let other = pool.allocate(4096)?;
/// device.touch(&*other.on(&stream)?);
/// assert_eq!((device.hazards(), pool.stats().misses), (0, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type MappedSim = Hooked<SimDevice, CpuTouches>;

/// The claim of memory that the CPU can touch.
#[derive(Clone, Copy, Debug)]
pub struct CpuTouches;

impl Claims<SimDevice> for CpuTouches {
    const MEMORY: Memory = Memory { cpu_touches: true, ..SimDevice::MEMORY };
}
