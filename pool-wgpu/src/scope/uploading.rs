//! Bytes of the CPU on their way into buffers, and data of one frame.

use super::Scope;
use crate::staging::Staging;
use crate::uploads::{FrameData, Placed, Uploads};
use crate::view::{Access, BufferPart, Place, fill};
use bytemuck::NoUninit;
use pool_core::{DeviceError, KIB, Why};
use std::ops::Range;
use std::sync::Arc;
use wgpu::{Buffer, BufferUsages, COPY_BUFFER_ALIGNMENT, CommandEncoder, WriteOnly};

/// Bytes that an upload zeroes behind its own, at most: a copy of more costs what a clear does.
const MOST_PADDING: u64 = 4 * KIB;

impl Scope {
    /// Writes `data` into a buffer in the order of this scope: a copy by the CPU into staging
    /// memory now, and one by the device; one for all where neighbours are written one after the
    /// other. With an encoder of the program's own it runs ahead of all commands there;
    /// [`Scope::upload_in`] writes between them.
    ///
    /// # Errors
    ///
    /// [`Why::Unaligned`] where offset or length is no multiple of 4 bytes, unless the data ends with the
    /// buffer: zeroes fill the last word then; [`Why::OutOfRange`] where the buffer is too short,
    /// [`Why::Foreign`] for uploads of another device or a view of another stream, [`Why::OutOfMemory`]
    /// where staging memory cannot be had, [`Why::Limit`] where it would pass the bound that the uploads
    /// were made with, [`Why::Unsupported`] for a buffer without `COPY_DST`, and for bytes that were
    /// uploaded before if the program has the buffer and not the scope's encoder: all its commands would
    /// see the second upload ([`Scope::upload_in`]). [`Why::Lost`] where the device is lost.
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
        self.may_stage(through)?;
        let on = self.stream();
        let place = to.place(&on, Access::Write)?;
        let words = place.in_words(offset, data.len() as u64)?;
        self.upload_to(through, &place, (offset, words), |memory| fill(memory, data))
    }

    /// As [`Scope::upload`], where the rest of the last word has nothing that is needed.
    pub(crate) fn upload_filled_up(
        &mut self,
        through: &Uploads,
        to: &dyn BufferPart,
        offset: u64,
        data: &[u8],
    ) -> Result<(), DeviceError> {
        let words = (data.len() as u64).next_multiple_of(COPY_BUFFER_ALIGNMENT);
        self.upload_with(through, to, offset, words, |memory| fill(memory, data))
    }

    /// Writes `elements` into a buffer of such elements, from the one with the number `first` on, as
    /// [`Scope::upload`] writes bytes.
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
    /// # let backs = device.read_backs(KIB);
    /// # let mut scope = device.scope();
    /// # let on = scope.stream();
    /// let buffer = pool.allocate_on(&on, 12 * 3)?; // three vertices
    /// let vertices = buffer.on(&on)?;
    /// scope.upload_slice(&uploads, &vertices, 1, &[[1.0_f32, 2.0, 3.0]])?; // the second of them
    /// let back = scope.read_back(&backs, &vertices, 12, 4)?;
    /// let refused = scope.upload_slice(&uploads, &vertices, 3, &[[0.0_f32; 3]]).unwrap_err();
    /// assert_eq!((refused.why, refused.code), (Why::OutOfRange, 48)); // where it would end
    /// scope.submit()?;
    /// assert!(back.wait(|bytes| bytes == 1.0_f32.to_ne_bytes())?);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn upload_slice<T: NoUninit>(
        &mut self,
        through: &Uploads,
        to: &dyn BufferPart,
        first: u64,
        elements: &[T],
    ) -> Result<(), DeviceError> {
        self.upload(through, to, offset_of::<T>(first), bytemuck::cast_slice(elements))
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
        self.may_stage(through)?;
        let on = self.stream();
        self.upload_to(through, &to.place(&on, Access::Write)?, (offset, bytes), write)
    }

    fn upload_to<R>(
        &mut self,
        through: &Uploads,
        place: &Place<'_>,
        (offset, bytes): (u64, u64),
        write: impl FnOnce(WriteOnly<'_, [u8]>) -> R,
    ) -> Result<R, DeviceError> {
        let range = may_upload(place, offset, bytes)?;
        let at = range.start;
        self.may_write_ahead(place.buffer, &range)?;
        if bytes == 0 {
            return Ok(write(WriteOnly::from_mut(&mut [])));
        }
        let alignment = COPY_BUFFER_ALIGNMENT;
        self.make_room(through, bytes, alignment)?;
        let staged = bytes + self.padding(through, place, &range);
        let write = |memory: WriteOnly<'_, [u8]>| {
            let (data, mut padding) = memory.split_at(inside(bytes));
            padding.fill(0);
            write(data)
        };
        let (chunk, start, written) = self.stage(&through.0, staged, alignment, write)?;
        self.recording.upload((chunk, start), (place.buffer, at), staged);
        self.fill_ahead(place.buffer, &(at..at + staged));
        Ok(written)
    }

    /// How many bytes right behind an upload it zeroes itself: the rest of a block behind the request, where that is
    /// short and would cost a clear ahead of the commands.
    fn padding(&self, through: &Uploads, place: &Place<'_>, range: &Range<u64>) -> u64 {
        let end = (place.offset + place.bytes).next_multiple_of(COPY_BUFFER_ALIGNMENT);
        if range.end != end || end >= place.buffer.size() || !self.is_ahead() {
            return 0;
        }
        let padding = self.table().zeroed_behind(self.id, place.buffer, end);
        let staged = end - range.start + padding;
        let may_take = padding <= MOST_PADDING && through.0.may_take(staged);
        match may_take && self.recording.has_room(&through.0, staged, COPY_BUFFER_ALIGNMENT) {
            true => padding,
            false => 0,
        }
    }

    /// Writes `data` into a buffer between commands of the program, as `StagingBelt::write_buffer` does:
    /// commands in `commands` before it see the old bytes, and those behind it the new ones.
    /// `commands` is submitted by [`Scope::submit_with`], or behind the scope's prologue and no later
    /// than the encoder that the prologue is for.
    ///
    /// # Errors
    ///
    /// As for [`Scope::upload`]; the same bytes may be written again.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{BucketPool, KIB, Why};
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let pool = BucketPool::new(WgpuAllocator::new(device.clone(), queue));
    /// # let uploads = pool.allocator().uploads(64 * KIB, 64 * KIB);
    /// let mut scope = pool.allocator().scope();
    /// let on = scope.stream();
    /// let (uniform, seen) = (scope.take(&pool, 64)?, scope.take(&pool, 128)?);
    /// let (lent, shown) = (scope.lend(&uniform)?, scope.lend(&seen)?);
    /// let mut encoder = device.create_command_encoder(&Default::default());
    /// for pass in 0..2_u8 {
    ///     scope.upload_in(&mut encoder, &uploads, &uniform.on(&on)?, 0, &[pass; 64])?;
    ///     encoder.copy_buffer_to_buffer(&lent, 0, &shown, 64 * u64::from(pass), 64); // a draw
    /// }
    /// let refused = scope.upload_in(&mut encoder, &uploads, &uniform.on(&on)?, 64, &[0; 4]);
    /// assert_eq!(refused.unwrap_err().why, Why::OutOfRange);
    /// scope.submit_with(encoder)?;
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn upload_in(
        &mut self,
        commands: &mut CommandEncoder,
        through: &Uploads,
        to: &dyn BufferPart,
        offset: u64,
        data: &[u8],
    ) -> Result<(), DeviceError> {
        self.may_stage(through)?;
        let on = self.stream();
        let place = to.place(&on, Access::Write)?;
        let words = place.in_words(offset, data.len() as u64)?;
        let range = may_upload(&place, offset, words)?;
        if words == 0 {
            return Ok(());
        }
        let write = |memory: WriteOnly<'_, [u8]>| fill(memory, data);
        let (chunk, start, ()) = self.stage(&through.0, words, COPY_BUFFER_ALIGNMENT, write)?;
        // The program's commands have the buffer from now on.
        self.table().lend(self.id, place.buffer, &place.bytes_of_buffer());
        let chunk = self.recording.chunk_mut(chunk);
        chunk.elsewhere = true;
        let from = &chunk.buffer;
        commands.copy_buffer_to_buffer(from, start, place.buffer, range.start, words);
        self.uploads_elsewhere = true;
        Ok(())
    }

    /// Writes `elements` between commands of the program, from the one with the number `first` on, as
    /// [`Scope::upload_in`] writes bytes.
    ///
    /// # Errors
    ///
    /// As for [`Scope::upload_in`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{BucketPool, KIB, Why};
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let pool = BucketPool::new(WgpuAllocator::new(device.clone(), queue));
    /// # let uploads = pool.allocator().uploads(64 * KIB, 64 * KIB);
    /// let mut scope = pool.allocator().scope();
    /// let on = scope.stream();
    /// let counts = scope.take(&pool, 64)?;
    /// let mut encoder = device.create_command_encoder(&Default::default());
    /// scope.upload_slice_in(&mut encoder, &uploads, &counts.on(&on)?, 2, &[7_u32, 8])?;
    /// let odd = scope.upload_slice_in(&mut encoder, &uploads, &counts.on(&on)?, 1, &[7_u16; 2]);
    /// assert_eq!(odd.unwrap_err().why, Why::Unaligned); // wgpu copies words
    /// scope.submit_with(encoder)?;
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn upload_slice_in<T: NoUninit>(
        &mut self,
        commands: &mut CommandEncoder,
        through: &Uploads,
        to: &dyn BufferPart,
        first: u64,
        elements: &[T],
    ) -> Result<(), DeviceError> {
        let bytes = bytemuck::cast_slice(elements);
        self.upload_in(commands, through, to, offset_of::<T>(first), bytes)
    }

    /// All commands of the program see the last of what the scope writes ahead of them.
    pub(super) fn may_write_ahead(
        &self,
        buffer: &Buffer,
        range: &Range<u64>,
    ) -> Result<(), DeviceError> {
        if self.table().is_recorded_elsewhere(self.id, buffer, range)
            && self.recording.uploads_to(buffer, range)
        {
            let call = "upload twice to the same bytes ahead of the program's commands: `upload_in`; \
                        if a frame before failed half way, `Frame::abandon`";
            return Err(DeviceError::new(Why::Unsupported, call));
        }
        Ok(())
    }

    /// A copy of the scope fills these bytes, which are not zeroed before where nothing sees that.
    pub(super) fn fill_ahead(&self, buffer: &Buffer, range: &Range<u64>) {
        self.table().fill(self.id, buffer, range, self.recording.fill_of(buffer, range));
    }

    /// Flushes an eager scope whose chunk is full. Commands that wgpu refuses do not keep the upload from its
    /// place: the end of the scope tells of them.
    pub(super) fn make_room(
        &mut self,
        through: &Uploads,
        bytes: u64,
        alignment: u64,
    ) -> Result<(), DeviceError> {
        if self.eager && !self.recording.has_room(&through.0, bytes, alignment) {
            return match self.flush() {
                Err(error) if error.why != Why::NotSubmitted => Err(error),
                _ => Ok(()),
            };
        }
        Ok(())
    }

    pub(super) fn may_stage(&self, through: &Uploads) -> Result<(), DeviceError> {
        if !Arc::ptr_eq(&through.0.shared, self.shared()) {
            return Err(DeviceError::new(Why::Foreign, "upload through another device's"));
        }
        self.shared().living()
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
    pub(super) fn stage<R>(
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

/// Where an element begins in a buffer of them; for one that is too far, a word beyond all buffers.
pub(crate) fn offset_of<T>(first: u64) -> u64 {
    first.saturating_mul(size_of::<T>() as u64).min(u64::MAX - 3)
}

/// A length in mapped memory, which has it.
fn inside(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Where an upload comes to lie in its buffer.
fn may_upload(place: &Place<'_>, offset: u64, bytes: u64) -> Result<Range<u64>, DeviceError> {
    let (at, end) = place.range(BufferUsages::COPY_DST, offset, bytes, "upload")?;
    Ok(at..end)
}

#[cfg(all(test, feature = "noop"))]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::MOST_PADDING;
    use crate::{InFlight, WgpuAllocator};
    use pool_core::{BucketPolicy, BucketPool, KIB, MIB};

    /// How many clears a frame owes that uploads to these parts of a request, of a block that another one had.
    fn clears(uploads: InFlight, bytes: u64, parts: &[(u64, usize)]) -> usize {
        let (device, queue) = wgpu::Device::noop(&wgpu::DeviceDescriptor::default());
        let device = WgpuAllocator::new(device, queue);
        let uploads = device.bounded_uploads(64 * KIB, MIB, uploads);
        let policy = BucketPolicy::PowerOfTwo;
        let pool = BucketPool::builder(device.clone()).policy(policy).build();
        drop(pool.allocate(bytes).unwrap());
        let mut scope = device.scope();
        let buffer = scope.take(&pool, bytes).unwrap();
        assert_eq!(pool.stats().hits, 1);
        for (at, bytes) in parts {
            scope.upload(&uploads, &buffer, *at, &vec![1; *bytes]).unwrap();
        }
        scope.table().yield_zeroing(scope.id).len()
    }

    #[test]
    fn an_upload_to_the_end_of_a_request_costs_no_clear() {
        let unbounded = InFlight::Unbounded;
        for parts in [&[(0, 604)][..], &[(0, 300), (300, 304)], &[(300, 304), (0, 300)]] {
            assert_eq!(clears(unbounded, 604, parts), 0, "{parts:?}");
        }
        assert_eq!(clears(unbounded, 601, &[(0, 601)]), 0, "a part of a word");
        assert_eq!(clears(unbounded, 604, &[(0, 300)]), 1, "the rest of the request");
        assert_eq!(clears(unbounded, 604, &[(300, 304)]), 1, "what is before");
        let large = 16 * KIB - MOST_PADDING - 4;
        assert_eq!(clears(unbounded, large, &[(0, 16 * 1024 - 4096 - 4)]), 1, "too much behind it");
        assert_eq!(clears(InFlight::Wait(MIB), 604, &[(0, 604)]), 1, "it counts what is staged");
    }
}
