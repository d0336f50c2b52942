//! A device, pipelines and a read-back, which all programs of this folder share and would have
//! without a pool.

use bucketpool::wgpu::wgpu::{
    Backends, Buffer, BufferDescriptor, BufferUsages, ComputePipeline, ComputePipelineDescriptor,
    Device, DeviceDescriptor, Instance, InstanceDescriptor, MapMode, PipelineCompilationOptions,
    PollType, Queue, RequestAdapterOptions, ShaderModule, ShaderModuleDescriptor, ShaderSource,
};
use std::error::Error;
use std::future::Future;
use std::pin::pin;
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Waker};

pub(crate) type Failure = Box<dyn Error>;

/// The device that wgpu prefers.
pub(crate) fn device() -> Result<(Device, Queue), Failure> {
    let descriptor = InstanceDescriptor {
        backends: Backends::VULKAN,
        ..InstanceDescriptor::new_without_display_handle()
    };
    let instance = Instance::new(descriptor);
    let adapter = now(instance.request_adapter(&RequestAdapterOptions::default()))??;
    Ok(now(adapter.request_device(&DeviceDescriptor::default()))??)
}

/// The value of a future that is ready at once, as those of native devices are.
fn now<T>(future: impl Future<Output = T>) -> Result<T, Failure> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Ok(value),
        Poll::Pending => Err("a native device makes nobody wait".into()),
    }
}

pub(crate) fn shader(device: &Device, source: &'static str) -> ShaderModule {
    let source = ShaderSource::Wgsl(source.into());
    device.create_shader_module(ShaderModuleDescriptor { label: None, source })
}

pub(crate) fn compute(device: &Device, module: &ShaderModule, entry: &str) -> ComputePipeline {
    device.create_compute_pipeline(&ComputePipelineDescriptor {
        label: None,
        layout: None,
        module,
        entry_point: Some(entry),
        compilation_options: PipelineCompilationOptions::default(),
        cache: None,
    })
}

/// Uses of a buffer that shaders compute in.
const COMPUTED: BufferUsages =
    BufferUsages::STORAGE.union(BufferUsages::COPY_SRC).union(BufferUsages::COPY_DST);
/// Uses of a buffer that shaders compute in and that is drawn.
pub(crate) const DRAWN: BufferUsages = COMPUTED.union(BufferUsages::VERTEX);

/// A fresh buffer to compute in.
pub(crate) fn fresh(device: &Device, bytes: u64) -> Buffer {
    buffer(device, bytes, COMPUTED)
}

/// A fresh buffer to compute in and to draw.
pub(crate) fn drawn(device: &Device, bytes: u64) -> Buffer {
    buffer(device, bytes, DRAWN)
}

/// A buffer that the CPU can map.
pub(crate) fn to_read(device: &Device, bytes: u64) -> Buffer {
    buffer(device, bytes, BufferUsages::MAP_READ | BufferUsages::COPY_DST)
}

fn buffer(device: &Device, size: u64, usage: BufferUsages) -> Buffer {
    let (label, mapped_at_creation) = (None, false);
    device.create_buffer(&BufferDescriptor { label, size, usage, mapped_at_creation })
}

/// The bytes of a buffer that the CPU can map, once the work on it is done.
pub(crate) fn shown(device: &Device, mapped: &Buffer) -> Result<Vec<u8>, Failure> {
    let (tell, told) = channel();
    mapped.map_async(MapMode::Read, .., move |done| drop(tell.send(done)));
    device.poll(PollType::wait_indefinitely())?;
    told.recv()??;
    let bytes = mapped.get_mapped_range(..)?.to_vec();
    mapped.unmap();
    Ok(bytes)
}
