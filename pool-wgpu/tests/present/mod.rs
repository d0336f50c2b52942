//! The devices that are present.
#![allow(dead_code, reason = "each test program takes what it needs")]

use pool_core::{BucketPool, StreamClock as _, ZeroPolicy};
use pool_wgpu::{WgpuAllocator, WgpuStream};
use wgpu::Device;

pub(crate) fn noop_with(required_features: wgpu::Features) -> WgpuAllocator {
    noop_by(&wgpu::DeviceDescriptor { required_features, ..Default::default() })
}

pub(crate) fn noop_by(descriptor: &wgpu::DeviceDescriptor<'_>) -> WgpuAllocator {
    let (device, queue) = Device::noop(descriptor);
    WgpuAllocator::new(device, queue)
}

pub(crate) fn noop() -> WgpuAllocator {
    noop_with(wgpu::Features::empty())
}

/// A real device: lavapipe, a driver on the CPU, in CI.
pub(crate) fn vulkan() -> Option<WgpuAllocator> {
    let vulkan = WgpuAllocator::on_default_adapter();
    if let Err(error) = &vulkan {
        eprintln!("not run: {error}; install mesa-vulkan-drivers and libvulkan1");
    }
    vulkan.ok()
}

/// The noop device, which runs copies and clears, and a real one where there is one.
pub(crate) fn devices() -> impl Iterator<Item = WgpuAllocator> {
    let noop = noop_with(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS);
    [Some(noop), vulkan()].into_iter().flatten()
}

/// A pool that does not zero: the tests overwrite its blocks.
pub(crate) fn uncleared(device: &WgpuAllocator) -> BucketPool<WgpuAllocator> {
    BucketPool::builder(device.clone()).zero(ZeroPolicy::Never).build()
}

/// The queue's own stream.
pub(crate) fn of_the_queue(device: &WgpuAllocator) -> WgpuStream {
    *pool_core::DeviceAllocator::clock(device).default_stream()
}
