//! How texels lie in buffers: a pure calculation.
//!
//! wgpu copies rows of texels between buffers and textures, and each row begins at a multiple of 256 bytes
//! there. A row is one of blocks where the format is compressed.

use pool_core::{DeviceError, Why};
use wgpu::{
    COPY_BYTES_PER_ROW_ALIGNMENT, Extent3d, TexelCopyBufferLayout, TexelCopyTextureInfo,
    TextureAspect, TextureFormat, TextureUsages,
};

/// The rows of a copy of texels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    /// Bytes of a texel, or of a block of texels.
    pub(crate) texel: u32,
    /// Bytes of a row.
    row: u64,
    /// Rows of an image.
    height: u64,
    images: u64,
}

impl Rows {
    /// The rows of a copy into a texture, or out of it.
    ///
    /// # Errors
    ///
    /// Where wgpu would refuse the whole submission: a usage that is missing, a format that no copy has, or
    /// an extent outside of the texture.
    pub(crate) fn of(
        place: &TexelCopyTextureInfo<'_>,
        size: Extent3d,
        usage: TextureUsages,
    ) -> Result<Self, DeviceError> {
        let TexelCopyTextureInfo { texture, mip_level, origin, aspect } = *place;
        let refused = |why, call| DeviceError::new(why, call);
        if !texture.usage().contains(usage) {
            let call = "copy texels of a texture without COPY_SRC or COPY_DST";
            return Err(refused(Why::Unsupported, call));
        }
        let format = texture.format();
        let texel = format.block_copy_size(Some(aspect));
        let texel = texel.ok_or(refused(Why::Unsupported, "copy texels of this format"))?;
        let is_into = usage == TextureUsages::COPY_DST;
        let has_aspect = format.aspect_specific_format(aspect).is_some();
        if !has_aspect || format.is_multi_planar_format() || is_into && is_depth(format, aspect) {
            return Err(refused(Why::Unsupported, "copy texels of this format and aspect"));
        }
        if texture.sample_count() > 1 {
            return Err(refused(Why::Unsupported, "copy texels of a multisampled texture"));
        }
        if mip_level >= texture.mip_level_count() {
            return Err(refused(Why::OutOfRange, "a mip level that the texture has not"));
        }
        let whole = texture.size().mip_level_size(mip_level, texture.dimension());
        let whole = whole.physical_size(format);
        let fits =
            |at: u32, extent: u32, most: u32| at.checked_add(extent).is_some_and(|end| end <= most);
        let inside = fits(origin.x, size.width, whole.width)
            && fits(origin.y, size.height, whole.height)
            && fits(origin.z, size.depth_or_array_layers, whole.depth_or_array_layers);
        if !inside {
            return Err(refused(Why::OutOfRange, "copy texels outside of the texture"));
        }
        let is_part = size.width != whole.width || size.height != whole.height;
        if format.is_depth_stencil_format() && is_part {
            return Err(refused(Why::Unsupported, "copy a part of a depth or stencil texture"));
        }
        let (width, height) = format.block_dimensions();
        let are_blocks = [origin.x, size.width].iter().all(|count| count.is_multiple_of(width))
            && [origin.y, size.height].iter().all(|count| count.is_multiple_of(height));
        if !are_blocks {
            return Err(refused(Why::Unaligned, "copy a part of a block of the format"));
        }
        Ok(Self {
            texel,
            row: u64::from(size.width.div_ceil(width)) * u64::from(texel),
            height: size.height.div_ceil(height).into(),
            images: size.depth_or_array_layers.into(),
        })
    }

    /// Bytes from one row to the next in a buffer.
    fn stride(&self) -> u64 {
        self.row.next_multiple_of(COPY_BYTES_PER_ROW_ALIGNMENT.into())
    }

    /// Bytes of all rows in a buffer; 0 if there are no texels.
    pub(crate) fn staged_bytes(&self) -> u64 {
        if self.row == 0 { 0 } else { self.stride() * self.height * self.images }
    }

    /// Whether the rows lie one behind the other.
    pub(crate) fn are_dense(&self) -> bool {
        self.row == self.stride()
    }

    /// How the rows lie in a buffer from `offset` on.
    pub(crate) fn layout(&self, offset: u64) -> TexelCopyBufferLayout {
        TexelCopyBufferLayout {
            offset,
            bytes_per_row: u32::try_from(self.stride()).ok(),
            rows_per_image: u32::try_from(self.height).ok(),
        }
    }

    /// Where each row begins in the program's bytes, and where in a buffer.
    ///
    /// # Errors
    ///
    /// [`Why::OutOfRange`] if the program has fewer bytes, or its rows or images overlap.
    pub(crate) fn places(
        &self,
        from: &TexelCopyBufferLayout,
        given: usize,
    ) -> Result<Vec<(usize, usize)>, DeviceError> {
        let call = "upload fewer bytes than the texels have (the end of the last)";
        let refused = |end: u64| {
            let code = i64::try_from(end).unwrap_or(i64::MAX);
            DeviceError::new(Why::OutOfRange, call).code(code)
        };
        let per_row = from.bytes_per_row.map_or(self.row, u64::from);
        let per_image = from.rows_per_image.map_or(self.height, u64::from);
        if per_row < self.row || per_image < self.height {
            let call = "upload rows that overlap (the bytes of a row, or the rows of an image)";
            let least = if per_row < self.row { self.row } else { self.height };
            let code = i64::try_from(least).unwrap_or(i64::MAX);
            return Err(DeviceError::new(Why::OutOfRange, call).code(code));
        }
        if self.staged_bytes() == 0 {
            return Ok(Vec::new());
        }
        let mut places = Vec::new();
        for (image, row) in
            (0..self.images).flat_map(|image| (0..self.height).map(move |row| (image, row)))
        {
            let at = from.offset.saturating_add((image * per_image + row).saturating_mul(per_row));
            let end = at.saturating_add(self.row);
            let staged = (image * self.height + row) * self.stride();
            match (usize::try_from(at), usize::try_from(end), usize::try_from(staged)) {
                (Ok(at), Ok(last), Ok(staged)) if last <= given => places.push((at, staged)),
                _ => return Err(refused(end)),
            }
        }
        Ok(places)
    }

    /// Bytes of a row in the program's memory.
    pub(crate) fn row_bytes(&self) -> usize {
        usize::try_from(self.row).unwrap_or(0)
    }

    /// The rows of a buffer, one behind the other.
    pub(crate) fn gather(&self, staged: &[u8]) -> Vec<u8> {
        let stride = usize::try_from(self.stride()).unwrap_or(usize::MAX);
        // Row by row: an iterator of bytes costs ten instructions for each.
        let mut dense = Vec::with_capacity(staged.len());
        for row in staged.chunks(stride.max(1)) {
            dense.extend_from_slice(&row[..self.row_bytes().min(row.len())]);
        }
        dense
    }
}

/// Whether texels are depths of 32 bits, into which wgpu copies none.
fn is_depth(format: TextureFormat, aspect: TextureAspect) -> bool {
    let is_32 = matches!(format, TextureFormat::Depth32Float | TextureFormat::Depth32FloatStencil8);
    is_32 && aspect != TextureAspect::StencilOnly
}
