//! Texels on their way into textures and out of them.

use super::{Scope, too_early};
use crate::readback::ReadBack;
use crate::readbacks::ReadBacks;
use crate::recording::Texels;
use crate::texels::Rows;
use crate::uploads::Uploads;
use pool_core::DeviceError;
use wgpu::{
    Buffer, CommandEncoder, Extent3d, TexelCopyBufferInfo, TexelCopyBufferLayout,
    TexelCopyTextureInfo, TextureUsages, WriteOnly,
};

impl Scope {
    /// Writes texels into a texture in the order of this scope, as `Queue::write_texture` does with the
    /// same arguments: `layout` says how the texels lie in `data`, without gaps where it says nothing. They
    /// go through the scope's staging memory, which is used again. With an encoder of the program's own they
    /// are there ahead of all commands; [`Scope::upload_texture_in`] writes between them.
    ///
    /// # Errors
    ///
    /// Where wgpu would refuse the whole submission: [`Why::Unsupported`](pool_core::Why::Unsupported) for a
    /// texture without `COPY_DST` and a format without copies,
    /// [`Why::OutOfRange`](pool_core::Why::OutOfRange) outside of the texture, for too few bytes, and for a
    /// layout whose rows or images overlap,
    /// [`Why::Unaligned`](pool_core::Why::Unaligned) within a block of a compressed format. Otherwise as for
    /// [`Scope::upload`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{KIB, Why};
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let size = wgpu::Extent3d { width: 4, height: 2, depth_or_array_layers: 1 };
    /// # let usage = wgpu::TextureUsages::COPY_DST | wgpu::TextureUsages::COPY_SRC;
    /// # let texture = device.create_texture(&wgpu::TextureDescriptor {
    /// #     label: None,
    /// #     size,
    /// #     mip_level_count: 1,
    /// #     sample_count: 1,
    /// #     dimension: wgpu::TextureDimension::D2,
    /// #     format: wgpu::TextureFormat::Rgba8Unorm,
    /// #     usage,
    /// #     view_formats: &[],
    /// # });
    /// # let allocator = WgpuAllocator::new(device, queue);
    /// let (uploads, backs) = (allocator.uploads(64 * KIB, 64 * KIB), allocator.read_backs(KIB));
    /// let mut scope = allocator.scope();
    /// let layout = wgpu::TexelCopyBufferLayout {
    ///     bytes_per_row: Some(16), // any: the staging memory has what wgpu wants
    ///     ..Default::default()
    /// };
    /// scope.upload_texture(&uploads, texture.as_image_copy(), &[7; 32], layout, size)?;
    /// let refused = scope.upload_texture(&uploads, texture.as_image_copy(), &[7; 31], layout, size);
    /// assert_eq!(refused.unwrap_err().why, Why::OutOfRange);
    /// let back = scope.read_back_texture(&backs, texture.as_image_copy(), size)?;
    /// scope.submit()?;
    /// assert_eq!(back.wait(<[u8]>::len)?, 32); // rows without gaps
    /// # }
    /// # Ok::<(), pool_core::DeviceError>(())
    /// ```
    pub fn upload_texture(
        &mut self,
        through: &Uploads,
        to: TexelCopyTextureInfo<'_>,
        data: &[u8],
        layout: TexelCopyBufferLayout,
        size: Extent3d,
    ) -> Result<(), DeviceError> {
        if let Some((chunk, staged)) = self.stage_texels(through, &to, (data, layout), size)? {
            self.recording.upload_texels(chunk, staged, Texels::of(&to), size);
            self.table().use_texture(self.id, to.texture);
        }
        Ok(())
    }

    /// Writes texels into a texture between commands of the program, as [`Scope::upload_in`] writes bytes.
    ///
    /// # Errors
    ///
    /// As for [`Scope::upload_texture`], which has an example.
    pub fn upload_texture_in(
        &mut self,
        commands: &mut CommandEncoder,
        through: &Uploads,
        to: TexelCopyTextureInfo<'_>,
        (data, layout): (&[u8], TexelCopyBufferLayout),
        size: Extent3d,
    ) -> Result<(), DeviceError> {
        if let Some((chunk, layout)) = self.stage_texels(through, &to, (data, layout), size)? {
            let chunk = self.recording.chunk_mut(chunk);
            chunk.elsewhere = true;
            let from = TexelCopyBufferInfo { buffer: &chunk.buffer, layout };
            commands.copy_buffer_to_texture(from, to, size);
            self.table().lend_texture(self.id, to.texture);
            self.uploads_elsewhere = true;
        }
        Ok(())
    }

    /// Copies texels back to the CPU, by the scope's own encoder. The bytes are rows without gaps.
    ///
    /// # Errors
    ///
    /// For the texture as for [`Scope::upload_texture`] (it needs `COPY_SRC`), otherwise as for
    /// [`Scope::read_back`]: a pooled texture that the program has is refused, and not one of its own.
    ///
    /// See [`Scope::upload_texture`] for an example.
    pub fn read_back_texture(
        &mut self,
        through: &ReadBacks,
        from: TexelCopyTextureInfo<'_>,
        size: Extent3d,
    ) -> Result<ReadBack, DeviceError> {
        if self.table().is_texture_elsewhere(self.id, from.texture) {
            return Err(too_early());
        }
        let back = self.begin_read_of_texels(through, &from, size, false)?;
        self.table().use_texture(self.id, from.texture);
        if let Some((to, layout)) = target(&back) {
            self.recording.read_texels(Texels::of(&from), (to, layout), size);
        }
        Ok(back)
    }

    /// Copies texels back by commands of the program, as [`Scope::read_back_in`] copies bytes.
    ///
    /// # Errors
    ///
    /// As for [`Scope::read_back_texture`]. [`Scope::read_back_in`] has an example.
    pub fn read_back_texture_in(
        &mut self,
        commands: &mut CommandEncoder,
        through: &ReadBacks,
        from: TexelCopyTextureInfo<'_>,
        size: Extent3d,
    ) -> Result<ReadBack, DeviceError> {
        let back = self.begin_read_of_texels(through, &from, size, true)?;
        self.table().lend_texture(self.id, from.texture);
        copy_texels(commands, from, size, &back);
        self.sign_read(commands, &back);
        Ok(back)
    }

    /// Puts texels into a chunk as wgpu copies them. Returns which chunk, and how they lie there; `None` if
    /// there are none.
    fn stage_texels(
        &mut self,
        through: &Uploads,
        to: &TexelCopyTextureInfo<'_>,
        (data, layout): (&[u8], TexelCopyBufferLayout),
        size: Extent3d,
    ) -> Result<Option<(usize, TexelCopyBufferLayout)>, DeviceError> {
        self.may_stage(through)?;
        let rows = Rows::of(to, size, TextureUsages::COPY_DST)?;
        let bytes = rows.staged_bytes();
        let places = rows.places(&layout, data.len())?;
        if bytes == 0 {
            return Ok(None);
        }
        let write = |mut memory: WriteOnly<'_, [u8]>| {
            for (at, staged) in places {
                let row = &data[at..at + rows.row_bytes()];
                memory.slice(staged..staged + row.len()).copy_from_slice(row);
            }
        };
        let alignment = u64::from(rows.texel).next_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT);
        self.make_room(through, bytes, alignment)?;
        let (chunk, start, ()) = self.stage(&through.0, bytes, alignment, write)?;
        Ok(Some((chunk, rows.layout(start))))
    }

    fn begin_read_of_texels(
        &mut self,
        through: &ReadBacks,
        from: &TexelCopyTextureInfo<'_>,
        size: Extent3d,
        elsewhere: bool,
    ) -> Result<ReadBack, DeviceError> {
        self.may_read_through(through)?;
        let rows = Rows::of(from, size, TextureUsages::COPY_SRC)?;
        let back = self.room_to_read(through, rows.staged_bytes(), elsewhere)?;
        Ok(ReadBack { rows: Some(rows), ..back })
    }
}

fn copy_texels(
    commands: &mut CommandEncoder,
    from: TexelCopyTextureInfo<'_>,
    size: Extent3d,
    back: &ReadBack,
) {
    if let Some((buffer, layout)) = target(back) {
        commands.copy_texture_to_buffer(from, TexelCopyBufferInfo { buffer, layout }, size);
    }
}

/// Where the texels go, and how they lie there; `None` if there are none.
fn target(back: &ReadBack) -> Option<(&Buffer, TexelCopyBufferLayout)> {
    let rows = back.rows.filter(|rows| rows.staged_bytes() > 0)?;
    Some((back.chunk.buffer()?, rows.layout(back.at)))
}
