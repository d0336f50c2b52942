//! The engine with the pool that such engines have: free buffers by size class, uses and name.

use super::recording::{Call, Failure, Groups, Proxy, STORAGE, Shaders};
use bucketpool::wgpu::wgpu::{
    BindGroupDescriptor, BindGroupEntry, Buffer, BufferDescriptor, BufferUsages,
    CommandEncoderDescriptor, Device, MapMode, PollType, Queue,
};
use std::collections::{HashMap, HashSet};

// lines: begin
/// By which a free buffer is found.
#[derive(Hash, PartialEq, Eq)]
struct Properties {
    size: u64,
    usages: BufferUsages,
    name: &'static str,
}

#[derive(Default)]
struct ResourcePool(HashMap<Properties, Vec<Buffer>>);

impl ResourcePool {
    fn take(&mut self, device: &Device, proxy: &Proxy, usages: BufferUsages) -> Buffer {
        let properties = Properties { size: size_class(proxy.size), usages, name: proxy.name };
        if let Some(buffer) = self.0.get_mut(&properties).and_then(Vec::pop) {
            return buffer;
        }
        device.create_buffer(&BufferDescriptor {
            label: Some(proxy.name),
            size: properties.size,
            usage: usages,
            mapped_at_creation: false,
        })
    }

    fn give(&mut self, buffer: Buffer, name: &'static str) {
        let properties = Properties { size: buffer.size(), usages: buffer.usage(), name };
        self.0.entry(properties).or_default().push(buffer);
    }
}

/// Two classes for each power of two.
fn size_class(size: u64) -> u64 {
    let power = size.max(16).next_power_of_two();
    if size <= power / 4 * 3 { power / 4 * 3 } else { power }
}

pub(crate) struct ByHand {
    device: Device,
    queue: Queue,
    pool: ResourcePool,
    made: HashMap<u32, (Buffer, &'static str)>,
    downloads: HashMap<u32, Buffer>,
}

impl ByHand {
    pub(crate) fn new(device: Device, queue: Queue) -> Self {
        let (pool, made) = (ResourcePool::default(), HashMap::new());
        Self { device, queue, pool, made, downloads: HashMap::new() }
    }

    fn upload(&mut self, proxy: &Proxy, usages: BufferUsages, bytes: &[u8]) {
        let buffer = self.pool.take(&self.device, proxy, usages);
        self.queue.write_buffer(&buffer, 0, bytes);
        self.made.insert(proxy.id, (buffer, proxy.name));
    }

    fn materialize(&mut self, proxy: &Proxy) {
        if !self.made.contains_key(&proxy.id) {
            let buffer = self.pool.take(&self.device, proxy, STORAGE);
            self.made.insert(proxy.id, (buffer, proxy.name));
        }
    }

    pub(crate) fn run(&mut self, shaders: &Shaders, recording: &[Call]) {
        let mut free = HashSet::new();
        let mut encoder = self.device.create_command_encoder(&CommandEncoderDescriptor::default());
        for command in recording {
            match command {
                Call::UploadUniform(proxy, bytes) => {
                    self.upload(proxy, BufferUsages::UNIFORM | BufferUsages::COPY_DST, bytes);
                }
                Call::Upload(proxy, bytes) => self.upload(proxy, STORAGE, bytes),
                Call::Dispatch(shader, groups, bindings) => {
                    for proxy in bindings {
                        self.materialize(proxy);
                    }
                    let resource = |proxy: &Proxy| self.made[&proxy.id].0.as_entire_binding();
                    let entries = (0..).zip(bindings);
                    let entries = entries.map(|(binding, proxy)| BindGroupEntry {
                        binding,
                        resource: resource(proxy),
                    });
                    let entries = entries.collect::<Vec<_>>();
                    let (label, layout) = (None, &shaders.layout);
                    let group = BindGroupDescriptor { label, layout, entries: &entries };
                    let group = self.device.create_bind_group(&group);
                    let groups = match groups {
                        Groups::Count(count) => Groups::Count(*count),
                        Groups::Indirect(proxy) => Groups::Indirect(self.made[&proxy.id].0.clone()),
                    };
                    shaders.dispatch(&mut encoder, *shader, &group, &groups);
                }
                Call::Clear(proxy) => {
                    self.materialize(proxy);
                    encoder.clear_buffer(&self.made[&proxy.id].0, 0, None);
                }
                Call::Download(proxy) => {
                    let to = Proxy { name: "download", ..*proxy };
                    let usages = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
                    let back = self.pool.take(&self.device, &to, usages);
                    let from = &self.made[&proxy.id].0;
                    encoder.copy_buffer_to_buffer(from, 0, &back, 0, proxy.size);
                    self.downloads.insert(proxy.id, back);
                }
                Call::Free(proxy) => drop(free.insert(proxy.id)),
            }
        }
        self.queue.submit([encoder.finish()]);
        for id in free {
            if let Some((buffer, name)) = self.made.remove(&id) {
                self.pool.give(buffer, name);
            }
        }
    }

    pub(crate) fn download(&mut self, proxy: &Proxy) -> Result<Vec<u8>, Failure> {
        let back = self.downloads.remove(&proxy.id).ok_or("nothing was downloaded")?;
        back.map_async(MapMode::Read, .., |_| {});
        self.device.poll(PollType::wait_indefinitely())?;
        let bytes = back.get_mapped_range(..proxy.size)?.to_vec();
        back.unmap();
        self.pool.give(back, "download");
        Ok(bytes)
    }
}
// lines: end
