//! The renderer over pools.

use super::pipelines::{Drawn, Pipelines};
use super::scene::{ENTITY, Frame, shadow_map, vertices};
use crate::gpu::Failure;
use bucketpool::wgpu::wgpu::{BufferUsages, CommandEncoderDescriptor};
use bucketpool::wgpu::{Bindable, ReadBacks, Textures, Uploads, Usage, WgpuAllocator};
use bucketpool::{BucketPool, KIB, MIB, PooledBuffer};

// lines: begin
pub(crate) struct Pooled {
    pool: BucketPool<WgpuAllocator>,
    uploads: Uploads,
    backs: ReadBacks,
    textures: Textures,
    pipelines: Pipelines,
    vertices: PooledBuffer<WgpuAllocator>,
}

impl Pooled {
    pub(crate) fn new(allocator: &WgpuAllocator) -> Result<Self, Failure> {
        let pool = BucketPool::new(allocator.clone());
        let (on, data) = (*pool.default_stream(), vertices());
        let kind = Usage::new(BufferUsages::VERTEX);
        let vertices = pool.allocate_kind(&on, data.len() as u64, kind)?;
        vertices.on(&on)?.write(0, &data)?;
        let (uploads, backs) = (allocator.uploads(64 * KIB, MIB), allocator.read_backs(MIB));
        let (textures, pipelines) = (allocator.textures(), Pipelines::new(allocator.device()));
        Ok(Self { pool, uploads, backs, textures, pipelines, vertices })
    }

    pub(crate) fn draw(&mut self, frame: &Frame) -> Result<Vec<u8>, Failure> {
        let Self { pool, uploads, backs, textures, pipelines, vertices } = self;
        let allocator = pool.allocator();
        let mut scope = allocator.scope();
        let of = |data: &[u8]| scope.take_kind(pool, data.len() as u64, BufferUsages::UNIFORM);
        let (globals, entities) = (of(&frame.globals)?, of(&frame.entities)?);
        scope.upload(uploads, &globals, 0, &frame.globals)?;
        scope.upload(uploads, &entities, 0, &frame.entities)?;
        let shadows = scope.take_texture(textures, &shadow_map())?;
        let depth = scope.take_texture(textures, &frame.depth())?;
        let picture = scope.take_texture(textures, &frame.picture())?;
        let entity = entities.part(0..ENTITY);
        let entities = &scope.bind_group(&pipelines.of_entity, &[(0, &entity)])?;
        let of_shadows = scope.bind_group(&pipelines.of_shadows, &[(0, &globals)])?;
        let seen: [(u32, &dyn Bindable); 3] =
            [(0, &globals), (1, &shadows), (2, &pipelines.sampler)];
        let of_forward = scope.bind_group(&pipelines.of_forward, &seen)?;
        let mesh = scope.lend_to_read(vertices)?;
        let descriptor = CommandEncoderDescriptor::default();
        let mut encoder = allocator.device().create_command_encoder(&descriptor);
        let drawn =
            Drawn { globals: &of_shadows, entities, vertices: mesh.slice(..vertices.size()) };
        pipelines.draw_shadows(&mut encoder, frame, drawn, shadows.view());
        let drawn = Drawn { globals: &of_forward, ..drawn };
        pipelines.draw_forward(&mut encoder, frame, drawn, (picture.view(), depth.view()));
        let place = picture.as_image_copy();
        let back = scope.read_back_texture_in(&mut encoder, backs, place, frame.size)?;
        scope.submit_with(encoder)?;
        Ok(back.wait(<[u8]>::to_vec)?)
    }
}
// lines: end
