//! The device of all ports.

use bucketpool::wgpu::WgpuAllocator;
use std::error::Error;

pub(crate) type Failure = Box<dyn Error>;

/// The device that wgpu prefers, or its noop device, which executes copies alone.
pub(crate) fn device(noop: bool) -> Result<WgpuAllocator, Failure> {
    if noop { self::noop() } else { Ok(WgpuAllocator::on_default_adapter()?) }
}

#[cfg(feature = "noop")]
#[expect(clippy::unnecessary_wraps, reason = "without the feature it fails")]
fn noop() -> Result<WgpuAllocator, Failure> {
    use bucketpool::wgpu::wgpu::{Device, DeviceDescriptor};
    let (device, queue) = Device::noop(&DeviceDescriptor::default());
    Ok(WgpuAllocator::new(device, queue))
}

#[cfg(not(feature = "noop"))]
fn noop() -> Result<WgpuAllocator, Failure> {
    Err("`--noop` wants the feature of that name: `--features noop`".into())
}
