//! The engine over a pool.

use super::recording::{Call, Failure, Groups, Proxy, STORAGE, Shaders};
use bucketpool::wgpu::wgpu::BufferUsages;
use bucketpool::wgpu::{Bindable, ReadBack, ReadBacks, Scope, Uploads, WgpuAllocator};
use bucketpool::{BucketPool, KIB, MIB, PooledBuffer, ZeroPolicy};
use std::collections::HashSet;
use std::collections::hash_map::{Entry, HashMap};

// lines: begin
pub(crate) struct Pooled {
    pool: BucketPool<WgpuAllocator>,
    uploads: Uploads,
    backs: ReadBacks,
    made: HashMap<u32, PooledBuffer<WgpuAllocator>>,
    downloads: HashMap<u32, ReadBack>,
}

impl Pooled {
    pub(crate) fn new(allocator: &WgpuAllocator) -> Self {
        // The recordings clear what they want to be zeroed.
        let pool = BucketPool::builder(allocator.clone()).zero(ZeroPolicy::Never).build();
        let (uploads, backs) =
            (allocator.uploads(64 * KIB, 4 * MIB), allocator.read_backs(4 * MIB));
        Self { pool, uploads, backs, made: HashMap::new(), downloads: HashMap::new() }
    }

    /// Whole blocks, so that cached bind groups find the same bytes again.
    fn take(&mut self, scope: &Scope, proxy: &Proxy, usages: BufferUsages) -> Result<(), Failure> {
        if let Entry::Vacant(new) = self.made.entry(proxy.id) {
            new.insert(scope.take_kind(&self.pool, proxy.size.next_power_of_two(), usages)?);
        }
        Ok(())
    }

    pub(crate) fn run(&mut self, shaders: &Shaders, recording: &[Call]) -> Result<(), Failure> {
        let mut free = HashSet::new();
        let mut scope = self.pool.allocator().scope();
        for command in recording {
            match command {
                Call::UploadUniform(proxy, bytes) => {
                    self.take(&scope, proxy, BufferUsages::UNIFORM)?;
                    scope.upload(&self.uploads, &self.made[&proxy.id], 0, bytes)?;
                }
                Call::Upload(proxy, bytes) => {
                    self.take(&scope, proxy, STORAGE)?;
                    scope.upload(&self.uploads, &self.made[&proxy.id], 0, bytes)?;
                }
                Call::Dispatch(shader, groups, bindings) => {
                    bindings.iter().try_for_each(|proxy| self.take(&scope, proxy, STORAGE))?;
                    let bound = bindings.iter().map(|proxy| &self.made[&proxy.id] as &dyn Bindable);
                    let bound = (0..).zip(bound).collect::<Vec<_>>();
                    let group = scope.bind_group(&shaders.layout, &bound)?;
                    let groups = match groups {
                        Groups::Count(count) => Groups::Count(*count),
                        Groups::Indirect(proxy) => {
                            Groups::Indirect(scope.lend(&self.made[&proxy.id])?)
                        }
                    };
                    shaders.dispatch(scope.encoder(), *shader, &group, &groups);
                }
                Call::Clear(proxy) => {
                    self.take(&scope, proxy, STORAGE)?;
                    let buffer = scope.lend(&self.made[&proxy.id])?;
                    scope.encoder().clear_buffer(&buffer, 0, None);
                }
                Call::Download(proxy) => {
                    let from = &self.made[&proxy.id];
                    let back = scope.read_back(&self.backs, from, 0, proxy.size)?;
                    self.downloads.insert(proxy.id, back);
                }
                Call::Free(proxy) => drop(free.insert(proxy.id)),
            }
        }
        scope.submit()?;
        self.made.retain(|id, _| !free.contains(id));
        Ok(())
    }

    pub(crate) fn download(&mut self, proxy: &Proxy) -> Result<Vec<u8>, Failure> {
        let back = self.downloads.remove(&proxy.id).ok_or("nothing was downloaded")?;
        Ok(back.wait(<[u8]>::to_vec)?)
    }
}
// lines: end
