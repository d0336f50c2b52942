//! The runtime with a memory management as cubecl has one: pages that are cut into slices.

use super::program::{Kernels, Op, Program, Tensor};
use crate::gpu::Failure;
use bucketpool::wgpu::wgpu::util::StagingBelt;
use bucketpool::wgpu::wgpu::{
    BindGroupDescriptor, BindGroupEntry, BindingResource, Buffer, BufferBinding, BufferDescriptor,
    BufferSize, BufferUsages, CommandEncoderDescriptor, Device, MapMode, PollType, Queue,
};
use std::collections::HashMap;
use std::sync::Arc;

// lines: begin
const USAGES: BufferUsages = BufferUsages::STORAGE
    .union(BufferUsages::INDIRECT)
    .union(BufferUsages::COPY_SRC)
    .union(BufferUsages::COPY_DST);
const PAGE: u64 = 1 << 20;
/// Programs that a page without a tensor is kept for.
const KEPT: u64 = 16;

/// A part of a page. It is free where the page alone has the handle.
struct Slice {
    offset: u64,
    bytes: u64,
    handle: Arc<()>,
}

struct Page {
    buffer: Buffer,
    /// They tile the page.
    slices: Vec<Slice>,
    used_at: u64,
}

/// Memory of a tensor.
struct Piece {
    buffer: Buffer,
    offset: u64,
    _handle: Arc<()>,
}

#[derive(Default)]
struct SlicedPages {
    pages: Vec<Page>,
    programs: u64,
}

impl Slice {
    fn is_free(&self) -> bool {
        Arc::strong_count(&self.handle) == 1
    }
}

impl Page {
    /// Joins free neighbours.
    fn merge(&mut self) {
        self.slices.dedup_by(|next, slice| {
            let both = next.is_free() && slice.is_free();
            slice.bytes += if both { next.bytes } else { 0 };
            both
        });
    }

    /// Cuts a piece off the smallest free slice that has room.
    fn take(&mut self, bytes: u64) -> Option<Piece> {
        let fits = |slice: &&Slice| slice.is_free() && slice.bytes >= bytes;
        let best = self.slices.iter().filter(fits).min_by_key(|slice| slice.bytes)?.offset;
        let at = self.slices.iter().position(|slice| slice.offset == best)?;
        let slice = &mut self.slices[at];
        let (offset, rest) = (slice.offset, slice.bytes - bytes);
        slice.bytes = bytes;
        let piece = Piece { buffer: self.buffer.clone(), offset, _handle: slice.handle.clone() };
        if rest > 0 {
            let (offset, handle) = (offset + bytes, Arc::new(()));
            self.slices.insert(at + 1, Slice { offset, bytes: rest, handle });
        }
        Some(piece)
    }
}

impl SlicedPages {
    fn reserve(&mut self, device: &Device, bytes: u64) -> Piece {
        let alignment = u64::from(device.limits().min_storage_buffer_offset_alignment);
        let bytes = bytes.next_multiple_of(alignment);
        loop {
            for page in &mut self.pages {
                let found = page.take(bytes).or_else(|| {
                    page.merge();
                    page.take(bytes)
                });
                if let Some(piece) = found {
                    page.used_at = self.programs;
                    return piece;
                }
            }
            let (size, label) = (PAGE.max(bytes), Some("page"));
            let descriptor =
                BufferDescriptor { label, size, usage: USAGES, mapped_at_creation: false };
            let slices = vec![Slice { offset: 0, bytes: size, handle: Arc::new(()) }];
            let buffer = device.create_buffer(&descriptor);
            self.pages.push(Page { buffer, slices, used_at: self.programs });
        }
    }

    /// Gives pages back that no tensor has used for long.
    fn clean(&mut self) {
        self.programs += 1;
        let old = |page: &Page| page.used_at + KEPT < self.programs;
        self.pages.retain(|page| !old(page) || !page.slices.iter().all(Slice::is_free));
    }
}

pub(crate) struct ByHand {
    device: Device,
    queue: Queue,
    memory: SlicedPages,
    belt: StagingBelt,
    backs: HashMap<u64, Vec<Buffer>>,
    tensors: HashMap<u32, Piece>,
}

impl Piece {
    fn binding(&self, bytes: u64) -> BindingResource<'_> {
        let (buffer, offset, size) = (&self.buffer, self.offset, BufferSize::new(bytes));
        BindingResource::Buffer(BufferBinding { buffer, offset, size })
    }
}

impl ByHand {
    pub(crate) fn new(device: Device, queue: Queue) -> Self {
        let belt = StagingBelt::new(device.clone(), 64 << 10);
        let (memory, backs) = (SlicedPages::default(), HashMap::new());
        Self { device, queue, memory, belt, backs, tensors: HashMap::new() }
    }

    fn reserve(&mut self, tensor: &Tensor) {
        self.tensors.insert(tensor.id, self.memory.reserve(&self.device, tensor.bytes));
    }

    pub(crate) fn run(&mut self, kernels: &Kernels, program: &Program) -> Result<Vec<u8>, Failure> {
        let descriptor = CommandEncoderDescriptor::default();
        let mut encoder = self.device.create_command_encoder(&descriptor);
        for op in &program.ops {
            match op {
                Op::Upload(tensor, data) => {
                    self.reserve(tensor);
                    let Piece { buffer, offset, .. } = &self.tensors[&tensor.id];
                    let size = BufferSize::new(tensor.bytes).ok_or("an empty tensor")?;
                    let mut view = self.belt.write_buffer(&mut encoder, buffer, *offset, size);
                    view.slice(..).copy_from_slice(data);
                }
                Op::Launch(kernel, from, to, elements) => {
                    self.reserve(to);
                    let bound = (0..).zip(from.iter().chain([to]));
                    let entries = bound.map(|(binding, tensor)| {
                        let resource = self.tensors[&tensor.id].binding(tensor.bytes);
                        BindGroupEntry { binding, resource }
                    });
                    let entries = entries.collect::<Vec<_>>();
                    let (label, layout) = (None, &kernels.layout);
                    let group = BindGroupDescriptor { label, layout, entries: &entries };
                    let group = self.device.create_bind_group(&group);
                    kernels.launch(&mut encoder, *kernel, &group, *elements);
                }
                Op::Free(tensor) => drop(self.tensors.remove(&tensor.id)),
            }
        }
        let Tensor { id, bytes } = program.out;
        let from = self.tensors.remove(&id).ok_or("a program without a result")?;
        let back = self.backs.get_mut(&bytes).and_then(Vec::pop);
        let back = back.unwrap_or_else(|| {
            self.device.create_buffer(&BufferDescriptor {
                label: Some("read"),
                size: bytes,
                usage: BufferUsages::MAP_READ | BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        });
        encoder.copy_buffer_to_buffer(&from.buffer, from.offset, &back, 0, bytes);
        self.belt.finish();
        self.queue.submit([encoder.finish()]);
        self.belt.recall();
        self.memory.clean();
        back.map_async(MapMode::Read, .., |_| {});
        self.device.poll(PollType::wait_indefinitely())?;
        let shown = back.get_mapped_range(..)?.to_vec();
        back.unmap();
        self.backs.entry(bytes).or_default().push(back);
        Ok(shown)
    }
}
// lines: end
