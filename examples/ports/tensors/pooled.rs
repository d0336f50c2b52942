//! The runtime over a pool of slabs, which an arena splits.

use super::program::{Kernels, Op, Program, Tensor};
use crate::gpu::Failure;
use bucketpool::wgpu::wgpu::{BufferUsages, Limits};
use bucketpool::wgpu::{Bindable, ReadBacks, Role, Scope, Uploads, WgpuAllocator, WgpuSlabs};
use bucketpool::{ArenaConfig, BucketPool, KIB, MIB, PooledBuffer, ZeroPolicy};
use std::collections::HashMap;

// lines: begin
/// Pieces that kernels compute in. All are bound `read_write`.
pub(crate) enum Computed {}

impl Role for Computed {
    const USAGES: BufferUsages =
        BufferUsages::STORAGE.union(BufferUsages::INDIRECT).union(BufferUsages::COPY_SRC);
    fn alignment(limits: &Limits) -> u32 {
        limits.min_storage_buffer_offset_alignment
    }
}

type Piece = PooledBuffer<WgpuSlabs<Computed>>;

pub(crate) struct Pooled {
    allocator: WgpuAllocator,
    pool: BucketPool<WgpuSlabs<Computed>>,
    uploads: Uploads,
    backs: ReadBacks,
    tensors: HashMap<u32, Piece>,
}

impl Pooled {
    pub(crate) fn new(allocator: &WgpuAllocator) -> Self {
        let slabs = BucketPool::builder(WgpuSlabs::new(allocator.clone()));
        // Each tensor is filled before it is read.
        let pool = slabs.arena(ArenaConfig::segments(MIB)).zero(ZeroPolicy::Never).build();
        let (uploads, backs) =
            (allocator.uploads(64 * KIB, 4 * MIB), allocator.read_backs(4 * MIB));
        let (allocator, tensors) = (allocator.clone(), HashMap::new());
        Self { allocator, pool, uploads, backs, tensors }
    }

    fn reserve(&mut self, scope: &Scope, tensor: &Tensor) -> Result<(), Failure> {
        self.tensors.insert(tensor.id, scope.take(&self.pool, tensor.bytes)?);
        Ok(())
    }

    pub(crate) fn run(&mut self, kernels: &Kernels, program: &Program) -> Result<Vec<u8>, Failure> {
        let mut scope = self.allocator.scope();
        for op in &program.ops {
            match op {
                Op::Upload(tensor, data) => {
                    self.reserve(&scope, tensor)?;
                    scope.upload(&self.uploads, &self.tensors[&tensor.id], 0, data)?;
                }
                Op::Launch(kernel, from, to, elements) => {
                    self.reserve(&scope, to)?;
                    let bound = from.iter().chain([to]);
                    let bound = bound.map(|tensor| &self.tensors[&tensor.id] as &dyn Bindable);
                    let bound = (0..).zip(bound).collect::<Vec<_>>();
                    let group = scope.bind_group(&kernels.layout, &bound)?;
                    kernels.launch(scope.encoder(), *kernel, &group, *elements);
                }
                Op::Free(tensor) => drop(self.tensors.remove(&tensor.id)),
            }
        }
        let Tensor { id, bytes } = program.out;
        let from = self.tensors.remove(&id).ok_or("a program without a result")?;
        let back = scope.read_back(&self.backs, &from, 0, bytes)?;
        scope.submit()?;
        Ok(back.wait(<[u8]>::to_vec)?)
    }
}
// lines: end
