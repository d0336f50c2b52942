//! Scopes: the streams of wgpu, each the commands of one frame.

use crate::clock::{Scopes, WgpuStream};
use crate::open::OpenScopes;
use crate::readback::ReadBack;
use crate::readbacks::{Filling, ReadBacks};
use crate::recording::Recording;
use crate::shared::{Shared, ToZero, zero};
use crate::staging::{Chunk, Staging, Unmapped};
use crate::uploads::{FrameData, Placed, Uploads};
use crate::view::{BufferPart, Place};
use pool_core::{DeviceError, Why};
use std::fmt;
use std::sync::Arc;
use wgpu::{
    BufferUsages, COPY_BUFFER_ALIGNMENT, CommandBuffer, CommandEncoder, SubmissionIndex, WriteOnly,
};

/// A stream of wgpu: commands that are submitted together, unless [`Scope::flush`] hands over a
/// part before. It ends in one of three ways.
///
/// - [`Scope::submit`] submits the scope's own encoder ([`Scope::encoder`]).
/// - [`Scope::prologue`] returns a command buffer that zeroes buffers and copies uploads, for a
///   program that has its own encoder and its own `submit`. The program submits it ahead of its
///   commands, in the same call or before.
/// - A drop: commands that were not handed over do not run. The blocks that they used are then free
///   for other requests.
///
/// # Your own encoder and your own submit
///
/// ```
/// # #[cfg(feature = "noop")] {
/// # use pool_core::{BucketPool, KIB, MIB};
/// # use pool_wgpu::{WgpuAllocator, wgpu};
/// # let (device, queue) = wgpu::Device::noop(&Default::default());
/// # let allocator = WgpuAllocator::new(device.clone(), queue.clone());
/// # let uploads = allocator.uploads(64 * KIB, MIB);
/// # let pool = BucketPool::new(allocator);
/// let mut scope = pool.allocator().scope();
/// let on = scope.stream();
/// let buffer = pool.allocate_on(&on, 4096)?;
/// scope.upload(&uploads, &buffer.on(&on)?, 0, &[1; 64])?;
/// let mut encoder = device.create_command_encoder(&Default::default()); // your own
/// encoder.clear_buffer(buffer.on(&on)?.buffer()?, 64, Some(64));
/// let prologue = scope.prologue(&mut encoder)?;
/// queue.submit([prologue, encoder.finish()]); // your own
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The pool learns of the submission at the next poll or submission after it, or at once by
/// [`WgpuAllocator::submitted`](crate::WgpuAllocator::submitted). Buffers of the scope can be
/// dropped before the submission: they serve no other scope until then.
pub struct Scope {
    id: u64,
    clock: Scopes,
    recording: Recording,
    /// Placed data that the device knows and later commands may still read.
    placed: Vec<Unmapped>,
    /// Memory that read-backs of the present step go to.
    reads: Vec<Filling>,
    /// Memory that read-backs of earlier steps go to, which are not submitted yet.
    reads_before: Vec<Filling>,
    /// Memory that read-backs by commands of the program go to.
    reads_elsewhere: Vec<Filling>,
    eager: bool,
    /// It was handed over as a prologue.
    yielded: bool,
    /// Its commands were submitted, and it ends.
    submitted: bool,
}

impl Scope {
    pub(crate) fn open(clock: &Scopes) -> Self {
        clock.learn_of_submissions();
        Self {
            id: clock.open_scopes().open(),
            clock: clock.clone(),
            recording: Recording::default(),
            placed: Vec::new(),
            reads: Vec::new(),
            reads_before: Vec::new(),
            reads_elsewhere: Vec::new(),
            eager: false,
            yielded: false,
            submitted: false,
        }
    }

    /// From now on the scope is flushed ([`Scope::flush`]) each time an upload finds its chunk
    /// full: the device copies while the CPU writes the next one. Each chunk costs a submission
    /// then, and what is left of chunks that data was placed in. Faster on some machines and slower
    /// on others: [`WgpuAllocator::eager_uploads_pay`](crate::WgpuAllocator::eager_uploads_pay)
    /// measures it.
    pub fn upload_eagerly(&mut self) {
        self.eager = true;
    }

    /// The stream to allocate on, and to use buffers on, for the commands of this scope.
    #[must_use]
    pub fn stream(&self) -> WgpuStream {
        self.clock.stream(self.id)
    }

    fn shared(&self) -> &Arc<Shared> {
        self.clock.shared()
    }

    fn table(&self) -> &Arc<OpenScopes> {
        self.clock.open_scopes()
    }

    /// The encoder of this scope, made when it is first asked for, and anew after a flush or a
    /// step. It is lent: a program that swaps it for another one takes the commands out of their
    /// scope's order.
    #[must_use]
    pub fn encoder(&mut self) -> &mut CommandEncoder {
        self.table().record(self.id);
        self.own_encoder()
    }

    fn own_encoder(&mut self) -> &mut CommandEncoder {
        self.recording.encoder(self.clock.shared())
    }

    /// Whether a part of a buffer is of this scope's stream.
    fn may_use(&self, place: &Place<'_>) -> Result<(), DeviceError> {
        match place.on {
            Some(on) if on != self.stream() => {
                let call = "a view of another stream: use the buffer on this scope";
                Err(DeviceError::new(Why::Foreign, call, 0))
            }
            _ => Ok(()),
        }
    }

    /// Writes `data` into a buffer in the order of this scope: a copy by the CPU into staging
    /// memory now, and one by the device; one for all where neighbours are written one after the
    /// other.
    ///
    /// # Errors
    ///
    /// [`Why::Unaligned`] where offset or length is no multiple of 4 bytes, [`Why::OutOfRange`]
    /// where the buffer is too short, [`Why::Foreign`] for uploads of another device or a view of
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
        let write = |mut memory: WriteOnly<'_, [u8]>| memory.copy_from_slice(data);
        self.upload_with(through, to, offset, data.len() as u64, write)
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
            return Err(DeviceError::new(Why::Foreign, "upload through another device's", 0));
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
            return Err(DeviceError::new(Why::Foreign, "place another device's data", 0));
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
        let none = DeviceError::new(Why::OutOfMemory, "room in a staging buffer", 0);
        let (at, written) = chunk.write(bytes, alignment, write)?.ok_or(none)?;
        Ok((number, at, written))
    }

    /// Copies bytes of a buffer back to the CPU, by the scope's own encoder.
    ///
    /// # Errors
    ///
    /// [`Why::Unaligned`] where the offset is no multiple of 4 bytes, [`Why::OutOfRange`] where the
    /// buffer is too short, [`Why::Unsupported`] for a buffer without `COPY_SRC`, [`Why::Foreign`]
    /// for read-backs of another device or a view of another stream, [`Why::OutOfMemory`] where
    /// staging memory cannot be had, [`Why::Lost`] where the device is lost. Commands that wgpu
    /// refuses bring nothing back, which the read-back tells.
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
    /// # let backs = device.read_backs(KIB);
    /// # let mut scope = device.scope();
    /// # let on = scope.stream();
    /// # let buffer = pool.allocate_on(&on, KIB)?;
    /// let view = buffer.on(&on)?;
    /// let back = scope.read_back(&backs, &view, 0, 7)?; // any length
    /// let refused = scope.read_back(&backs, &view, KIB, 4).unwrap_err();
    /// assert_eq!(refused.why, Why::OutOfRange);
    /// scope.submit()?;
    /// assert_eq!(back.wait(<[u8]>::len)?, 7);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_back(
        &mut self,
        through: &ReadBacks,
        from: &dyn BufferPart,
        offset: u64,
        bytes: u64,
    ) -> Result<ReadBack, DeviceError> {
        let (back, place) = (self.begin_read(through, from, offset, bytes, false)?, from.place());
        copy_back(self.own_encoder(), &place, offset, &back);
        Ok(back)
    }

    /// Copies bytes of a buffer back by commands of the program, which are submitted behind the
    /// scope's prologue and no later than the encoder that the prologue is for.
    ///
    /// # Errors
    ///
    /// As for [`Scope::read_back`].
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
    /// # let backs = device.read_backs(KIB);
    /// scope.upload(&uploads, &view, 0, &[7; 64])?; // in the prologue
    /// let mut encoder = device.device().create_command_encoder(&Default::default());
    /// let back = scope.read_back_in(&mut encoder, &backs, &view, 0, 64)?;
    /// let refused = scope.read_back_in(&mut encoder, &backs, &view, KIB, 4).unwrap_err();
    /// assert_eq!(refused.why, Why::OutOfRange);
    /// let prologue = scope.prologue(&mut encoder)?;
    /// device.queue().submit([prologue, encoder.finish()]);
    /// assert!(back.wait(|bytes| bytes == [7; 64])?);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_back_in(
        &mut self,
        commands: &mut CommandEncoder,
        through: &ReadBacks,
        from: &dyn BufferPart,
        offset: u64,
        bytes: u64,
    ) -> Result<ReadBack, DeviceError> {
        let back = self.begin_read(through, from, offset, bytes, true)?;
        copy_back(commands, &from.place(), offset, &back);
        if let (Some(word), Some(last)) = (back.word, self.reads_elsewhere.last()) {
            last.set_word(commands, word);
        }
        Ok(back)
    }

    fn begin_read(
        &mut self,
        through: &ReadBacks,
        from: &dyn BufferPart,
        offset: u64,
        bytes: u64,
        elsewhere: bool,
    ) -> Result<ReadBack, DeviceError> {
        if !through.is_of(self.shared()) {
            return Err(DeviceError::new(Why::Foreign, "read back through another device's", 0));
        }
        self.shared().living()?;
        let place = from.place();
        self.may_use(&place)?;
        let words = bytes.checked_next_multiple_of(COPY_BUFFER_ALIGNMENT).unwrap_or(u64::MAX);
        place.range(BufferUsages::COPY_SRC, offset, words, "read back")?;
        // Commands of the program set a word behind the bytes.
        let needed = if elsewhere { words + COPY_BUFFER_ALIGNMENT } else { words };
        let reads = if elsewhere { &mut self.reads_elsewhere } else { &mut self.reads };
        let back = |filling: &Filling, at| ReadBack {
            chunk: filling.chunk.clone(),
            at,
            bytes,
            word: elsewhere.then_some(at + words),
        };
        let mut before = 0;
        // Only the last, so that the one that is filled is known.
        if let Some(last) = reads.last_mut().filter(|last| last.is_of(through)) {
            if let Some(at) = last.room(needed) {
                return Ok(back(last, at));
            }
            before = last.size();
        }
        let mut filling = through.fill(needed, before, elsewhere)?;
        let none = DeviceError::new(Why::OutOfMemory, "room in a read-back buffer", 0);
        let at = filling.room(needed).ok_or(none)?;
        let back = back(&filling, at);
        reads.push(filling);
        Ok(back)
    }

    /// Copies from one buffer to another, in the order of this scope.
    ///
    /// # Errors
    ///
    /// Where wgpu would refuse the whole submission: [`Why::Unsupported`] if both are the same
    /// buffer, as two pieces of one slab are, or a usage is missing, [`Why::Unaligned`] if an
    /// offset or the length is no multiple of 4 bytes, [`Why::OutOfRange`] if they do not fit.
    /// [`Why::Foreign`] for a view of another stream, [`Why::Lost`] where the device is lost.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{BucketPool, KIB, Why};
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let pool = BucketPool::new(WgpuAllocator::new(device, queue));
    /// let mut scope = pool.allocator().scope();
    /// let on = scope.stream();
    /// let (a, b) = (pool.allocate_on(&on, KIB)?, pool.allocate_on(&on, KIB)?);
    /// let (a, b) = (a.on(&on)?, b.on(&on)?);
    /// scope.copy((&a, 0), (&b, 256), 512)?;
    /// let refused = scope.copy((&a, 0), (&a, 512), 256).unwrap_err();
    /// assert_eq!(refused.why, Why::Unsupported); // both are the same buffer
    /// scope.submit()?;
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn copy(
        &mut self,
        (from, start): (&dyn BufferPart, u64),
        (to, at): (&dyn BufferPart, u64),
        bytes: u64,
    ) -> Result<(), DeviceError> {
        let (from, to) = (from.place(), to.place());
        if from.buffer == to.buffer {
            let call = "copy inside of one wgpu buffer: take blocks of two pools";
            return Err(DeviceError::new(Why::Unsupported, call, 0));
        }
        self.shared().living()?;
        self.may_use(&from)?;
        self.may_use(&to)?;
        let (start, _) =
            from.range(BufferUsages::COPY_SRC, start, bytes, "copy out of a buffer")?;
        let (at, _) = to.range(BufferUsages::COPY_DST, at, bytes, "copy into a buffer")?;
        self.own_encoder().copy_buffer_to_buffer(from.buffer, start, to.buffer, at, bytes);
        Ok(())
    }

    /// Ends a step: buffers that were dropped so far can serve this scope again, zeroed in between
    /// where the pool zeroes. It costs a command buffer, and a submission where something is
    /// zeroed. It does nothing if the step has no commands in the scope's own encoder.
    ///
    /// Without steps a pool that zeroes takes a fresh block for each request of a scope, since it
    /// zeroes ahead of the scope's commands.
    pub fn end_step(&mut self) {
        if !self.recording.has_step() {
            return;
        }
        self.end_reads();
        let to_zero = self.table().take_zeroing(self.id);
        let Self { recording, clock, .. } = self;
        recording.end_step(to_zero, clock.shared());
        self.table().next_step(self.id);
    }

    /// Ends the chunks that the present step fills. wgpu may refuse one step and not another, so
    /// each chunk is of one step, and its stamp tells whether that step ran.
    fn end_reads(&mut self) {
        for filling in std::mem::take(&mut self.reads) {
            filling.end(self.own_encoder());
            self.reads_before.push(filling);
        }
    }

    /// Hands what was recorded so far to the device, behind the zeroing that it needs: the
    /// device begins while the CPU goes on. The scope stays open; blocks that were dropped before
    /// serve all other requests. Chunks that it wrote to are not written to again before they were
    /// mapped again, those of [`FrameData`] not before the scope ends.
    ///
    /// A program with its own encoder must not flush behind its own submit: zeroing would come
    /// after its commands, and no later call could tell.
    ///
    /// # Errors
    ///
    /// [`Why::Lost`] if the device is lost.
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
    /// scope.flush()?; // the device begins with the first copy
    /// scope.upload(&uploads, &view, 64, &[2; 64])?;
    /// scope.submit()?;
    ///
    /// let mut scope = device.scope();
    /// device.mark_lost(); // as the program's own callback for the loss does
    /// assert_eq!(scope.flush().unwrap_err().why, Why::Lost);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn flush(&mut self) -> Result<SubmissionIndex, DeviceError> {
        self.end_reads();
        let to_zero = self.table().take_zeroing(self.id);
        let Self { recording, clock, .. } = self;
        let shared = clock.shared();
        recording.end_step(to_zero, shared);
        let chunks = recording.take_chunks().into_iter().map(Chunk::unmap);
        let (staging, bound): (Vec<_>, Vec<_>) = chunks.partition(Unmapped::is_staging);
        self.placed.extend(bound);
        let index = recording.submit(shared);
        self.table().flushed(self.id);
        for chunk in staging {
            chunk.map_again(Some(&index));
        }
        for filling in self.reads_before.drain(..) {
            filling.submitted(&index);
        }
        self.shared().living()?;
        Ok(index)
    }

    /// Submits the commands, behind the zeroing that they need.
    ///
    /// # Errors
    ///
    /// [`Why::NotSubmitted`] if the scope's buffers must be in another encoder: the program has
    /// taken a buffer ([`WgpuView::buffer`](crate::WgpuView::buffer), [`Scope::lend`]) and never
    /// the scope's encoder, and the scope had to zero; or it has called [`Scope::read_back_in`].
    /// The zeroing now comes after that encoder if it is submitted already. Use
    /// [`Scope::prologue`]. [`Why::Lost`] if the device is lost. The scope has ended all the same.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{BucketPool, KIB, Why};
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let pool = BucketPool::new(WgpuAllocator::new(device, queue));
    /// let mut scope = pool.allocator().scope();
    /// let buffer = scope.take(&pool, KIB)?;
    /// let lent = scope.lend(&buffer)?;
    /// scope.encoder().clear_buffer(&lent, 0, None);
    /// scope.submit()?;
    /// drop(buffer);
    ///
    /// let scope = pool.allocator().scope();
    /// let buffer = scope.take(&pool, KIB)?; // the same block, which the scope must zero
    /// let lent = scope.lend(&buffer)?; // for an encoder that is not the scope's
    /// assert_eq!(scope.submit().unwrap_err().why, Why::NotSubmitted); // `prologue` is for this
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn submit(mut self) -> Result<SubmissionIndex, DeviceError> {
        let late = !self.reads_elsewhere.is_empty()
            || self.table().is_used_elsewhere(self.id) && self.table().has_zeroing(self.id);
        let submitted = self.flush();
        self.submitted = true;
        // Closed after that: a thread that looks in between finds it open, which is only cautious.
        drop(self);
        if late {
            let call = "submit a scope whose buffers are in another encoder: use its prologue";
            return Err(DeviceError::new(Why::NotSubmitted, call, 0));
        }
        submitted
    }

    /// Ends the scope and returns what must run ahead of the program's own commands: zeroing, and
    /// the copies of its uploads. The program submits it ahead of them, in the same call or before;
    /// `commands` is the last of its encoders that use the scope's buffers, and is submitted no
    /// earlier than the others. If both are dropped, the scope never ran.
    ///
    /// The buffers serve other scopes once `commands` was submitted, which the pool learns at the
    /// next poll or submission, or by
    /// [`WgpuAllocator::submitted`](crate::WgpuAllocator::submitted). A prologue that was left out,
    /// refused or submitted too late is told by
    /// [`WgpuAllocator::faults`](crate::WgpuAllocator::faults). While the prologue is neither
    /// submitted nor dropped, the buffers stay the scope's.
    ///
    /// See [`Scope`] for an example that submits one.
    ///
    /// # Errors
    ///
    /// [`Why::Unsupported`] if the scope has its own commands, which [`Scope::submit`] submits;
    /// [`Why::OutOfMemory`] and [`Why::Lost`] as the device says. The scope has ended, unsubmitted.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{BucketPool, KIB, Why};
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let pool = BucketPool::new(WgpuAllocator::new(device, queue));
    /// let mut scope = pool.allocator().scope();
    /// scope.encoder().insert_debug_marker("a command of the scope");
    /// let mut encoder = pool.allocator().device().create_command_encoder(&Default::default());
    /// let refused = scope.prologue(&mut encoder).unwrap_err();
    /// assert_eq!(refused.why, Why::Unsupported); // `submit` is for this
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prologue(mut self, commands: &mut CommandEncoder) -> Result<CommandBuffer, DeviceError> {
        self.shared().living()?;
        if self.table().has_recorded(self.id) || self.recording.has_commands() {
            let call = "a prologue of a scope that has its own commands: submit it";
            return Err(DeviceError::new(Why::Unsupported, call, 0));
        }
        let receipt = self.clock.receipts().new_receipt()?;
        let mut prologue = self.shared().encoder("bucketpool prologue");
        self.clock.close_after(self.id, (&prologue, commands))?;
        self.yielded = true;
        let to_zero: Vec<ToZero> = self.table().yield_zeroing(self.id);
        zero(&mut prologue, &to_zero);
        self.recording.copies_into(&mut prologue);
        self.clock.receipts().issue(&receipt, &mut prologue, commands);
        for chunk in self.recording.take_chunks().into_iter().map(Chunk::unmap) {
            let after = if chunk.is_staging() { &prologue } else { &*commands };
            chunk.map_after(after);
        }
        self.placed.drain(..).for_each(|chunk| chunk.map_after(commands));
        for filling in self.reads_elsewhere.drain(..) {
            filling.begin_elsewhere(&mut prologue);
            filling.map_after(commands);
        }
        Ok(prologue.finish())
    }
}

fn copy_back(commands: &mut CommandEncoder, from: &Place<'_>, offset: u64, back: &ReadBack) {
    if back.bytes > 0
        && let Some(to) = back.chunk.buffer()
    {
        let words = back.bytes.next_multiple_of(COPY_BUFFER_ALIGNMENT);
        commands.copy_buffer_to_buffer(from.buffer, from.offset + offset, to, back.at, words);
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        let reads = [&mut self.reads, &mut self.reads_before, &mut self.reads_elsewhere];
        reads.into_iter().flat_map(std::mem::take).for_each(Filling::abandon);
        if self.yielded {
            return;
        }
        // Commands that were recorded and not handed over are dropped before their buffers serve
        // others. The zeroing that they needed is done all the same.
        let (to_zero, chunks) = self.recording.forget();
        self.table().put_back(self.id, to_zero);
        let may_be_used = !self.submitted && self.table().is_used_elsewhere(self.id);
        if cfg!(debug_assertions) && may_be_used {
            let call = "drop a scope whose buffers may be in another encoder: use its prologue";
            self.shared().note(DeviceError::new(Why::NotSubmitted, call, 0));
        }
        chunks.into_iter().for_each(Chunk::give_back);
        self.placed.drain(..).for_each(|chunk| chunk.map_again(None));
        self.clock.close(self.id);
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("id", &self.id).finish_non_exhaustive()
    }
}
