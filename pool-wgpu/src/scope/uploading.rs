//! Bytes of the CPU on their way into buffers, and data of one frame.

use super::Scope;
use crate::staging::Staging;
use crate::uploads::{FrameData, Placed, Uploads};
use crate::view::BufferPart;
use pool_core::{DeviceError, Why};
use std::sync::Arc;
use wgpu::{BufferUsages, COPY_BUFFER_ALIGNMENT, WriteOnly};

impl Scope {
    /// Writes `data` into a buffer in the order of this scope: a copy by the CPU into staging
    /// memory now, and one by the device; one for all where neighbours are written one after the
    /// other.
    ///
    /// # Errors
    ///
    /// [`Why::Unaligned`] where offset or length is no multiple of 4 bytes, unless the data ends with the
    /// buffer: zeroes fill the last word then; [`Why::OutOfRange`] where the buffer is too short, [`Why::Foreign`] for uploads of another device or a view of
    /// another stream, [`Why::OutOfMemory`] where staging memory cannot be had, [`Why::Limit`]
    /// where it would pass the bound that the uploads were made with, [`Why::Unsupported`] for a
    /// buffer without `COPY_DST`, and [`Why::Lost`] where the device is lost.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{BucketPool, KIB, Why};
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let pool = BucketPool::new(WgpuAllocator::new(device, queue));
    /// # let device = pool.allocator();
    /// # let uploads = device.uploads(64 * KIB, 64 * KIB);
    /// # let mut scope = device.scope();
    /// # let on = scope.stream();
    /// # let buffer = pool.allocate_on(&on, KIB)?;
    /// # let view = buffer.on(&on)?;
    /// scope.upload(&uploads, &view, 0, &[1; 64])?;
    /// let refused = scope.upload(&uploads, &view, 2, &[1; 64]).unwrap_err();
    /// assert_eq!((refused.why, refused.code), (Why::Unaligned, 2));
    /// let refused = scope.upload(&uploads, &view, 0, &[1; 2048]).unwrap_err();
    /// assert_eq!((refused.why, refused.code), (Why::OutOfRange, 2048));
    /// scope.submit()?;
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn upload(
        &mut self,
        through: &Uploads,
        to: &dyn BufferPart,
        offset: u64,
        data: &[u8],
    ) -> Result<(), DeviceError> {
        let words = to.place().in_words(offset, data.len() as u64)?;
        let write = |memory: WriteOnly<'_, [u8]>| {
            let (mut whole, mut rest) = memory.split_at(data.len());
            whole.copy_from_slice(data);
            rest.fill(0);
        };
        self.upload_with(through, to, offset, words, write)
    }

    /// Writes into a buffer what `write` puts into staging memory itself, without a copy before.
    /// `write` must fill all of it: the rest is another upload's data.
    ///
    /// # Errors
    ///
    /// As for [`Scope::upload`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{BucketPool, KIB, Why};
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let pool = BucketPool::new(WgpuAllocator::new(device, queue));
    /// # let device = pool.allocator();
    /// # let uploads = device.uploads(64 * KIB, 64 * KIB);
    /// # let mut scope = device.scope();
    /// # let on = scope.stream();
    /// # let buffer = pool.allocate_on(&on, KIB)?;
    /// # let view = buffer.on(&on)?;
    /// let fill = |mut memory: wgpu::WriteOnly<'_, [u8]>| memory.fill(7);
    /// scope.upload_with(&uploads, &view, 0, KIB, fill)?;
    /// let refused = scope.upload_with(&uploads, &view, KIB, 64, fill).unwrap_err();
    /// assert_eq!(refused.why, Why::OutOfRange); // `fill` was not called
    /// scope.submit()?;
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn upload_with<R>(
        &mut self,
        through: &Uploads,
        to: &dyn BufferPart,
        offset: u64,
        bytes: u64,
        write: impl FnOnce(WriteOnly<'_, [u8]>) -> R,
    ) -> Result<R, DeviceError> {
        if !Arc::ptr_eq(&through.0.shared, self.shared()) {
            return Err(DeviceError::new(Why::Foreign, "upload through another device's"));
        }
        self.shared().living()?;
        let place = to.place();
        self.may_use(&place)?;
        let (at, _) = place.range(BufferUsages::COPY_DST, offset, bytes, "upload")?;
        if bytes == 0 {
            return Ok(write(WriteOnly::from_mut(&mut [])));
        }
        let alignment = COPY_BUFFER_ALIGNMENT;
        if self.eager && !self.recording.has_room(&through.0, bytes, alignment) {
            self.flush()?;
        }
        let (chunk, start, written) = self.stage(&through.0, bytes, alignment, write)?;
        self.recording.copy((chunk, start), (place.buffer, at), bytes);
        Ok(written)
    }

    /// Puts `data` where shaders of this scope can read it: one copy by the CPU, and none by the
    /// device.
    ///
    /// # Errors
    ///
    /// [`Why::Foreign`] for data of another device, [`Why::OutOfMemory`] where memory cannot be
    /// had, [`Why::Limit`] where it would pass the bound that the data was made with, [`Why::Lost`]
    /// where the device is lost.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{KIB, MIB, Why};
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let required_features = wgpu::Features::MAPPABLE_PRIMARY_BUFFERS;
    /// # let descriptor = wgpu::DeviceDescriptor { required_features, ..Default::default() };
    /// # let [device, other] = [(); 2].map(|()| {
    /// #     let (device, queue) = wgpu::Device::noop(&descriptor);
    /// #     WgpuAllocator::new(device, queue)
    /// # });
    /// let uniforms = device.frame_data(wgpu::BufferUsages::UNIFORM, 64 * KIB, MIB)?;
    /// let mut scope = device.scope();
    /// let placed = scope.place(&uniforms, &[1; 100])?; // for `WgpuAllocator::bind_group`
    /// assert_eq!(placed.size(), 100);
    /// scope.submit()?;
    /// let refused = other.scope().place(&uniforms, &[1; 100]).unwrap_err();
    /// assert_eq!(refused.why, Why::Foreign); // `other` is another device
    /// # }
    /// # Ok::<(), pool_core::DeviceError>(())
    /// ```
    pub fn place(&mut self, into: &FrameData, data: &[u8]) -> Result<Placed, DeviceError> {
        if !Arc::ptr_eq(&into.staging.shared, self.shared()) {
            return Err(DeviceError::new(Why::Foreign, "place another device's data"));
        }
        let bytes = data.len() as u64;
        let write = |mut memory: WriteOnly<'_, [u8]>| memory.copy_from_slice(data);
        let (chunk, offset, ()) = self.stage(&into.staging, bytes, into.alignment, write)?;
        let buffer = self.recording.chunk_mut(chunk).buffer.clone();
        Ok(Placed { buffer, offset, bytes, on: self.stream(), clock: self.clock.clone() })
    }

    /// Lends room in a chunk of this scope. Returns which chunk, and where in it.
    fn stage<R>(
        &mut self,
        through: &Arc<Staging>,
        bytes: u64,
        alignment: u64,
        write: impl FnOnce(WriteOnly<'_, [u8]>) -> R,
    ) -> Result<(usize, u64, R), DeviceError> {
        self.shared().living()?; // whose mapped memory would be gone
        let number = self.recording.chunk(through, bytes, alignment)?;
        let chunk = self.recording.chunk_mut(number);
        let none = DeviceError::new(Why::OutOfMemory, "room in a staging buffer");
        let (at, written) = chunk.write(bytes, alignment, write)?.ok_or(none)?;
        Ok((number, at, written))
    }
}
