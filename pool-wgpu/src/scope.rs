//! Scopes: the streams of wgpu, each the commands of one encoder.

use crate::clock::{Scopes, WgpuStream};
use crate::readbacks::{Asked, ReadBack, ReadBacks};
use crate::shared::Shared;
use crate::uploads::{Chunk, FrameData, Unmapped, Uploads};
use pool_core::{DeviceError, Why};
use std::fmt;
use std::sync::Arc;
use wgpu::{
    Buffer, BufferUsages, COPY_BUFFER_ALIGNMENT, CommandEncoder, CommandEncoderDescriptor,
    SubmissionIndex,
};

/// A stream of wgpu: the commands of one encoder, submitted together unless [`Scope::flush`] hands
/// over a part before.
///
/// Commands that were not handed over do not run if the scope is dropped without
/// [`Scope::submit`]. The blocks that they used are then free for other requests.
///
/// # Your own encoder and your own submit
///
/// The pool knows only the scope's encoder and the scope's submissions. Beside them, three rules
/// hold; breaking one overwrites data, and no call reports it.
///
/// 1. Allocate for the scope's stream (`pool.allocate_on(&scope.stream(), bytes)`), not for the
///    default stream: a buffer of the default stream is free for other requests as soon as it is
///    dropped, even if your own encoder has not been submitted.
/// 2. Call [`Scope::flush`] before your own `queue.submit`. It hands over the zeroing of the
///    scope's buffers and the copies of its uploads. Without it they run after your commands.
/// 3. Drop the buffers and the scope after your own `queue.submit`.
///
/// ```no_run
/// # fn commands(_: &mut wgpu::CommandEncoder, _: &pool_wgpu::WgpuView<'_>) {}
/// # fn frame(
/// #     pool: &pool_core::BucketPool<pool_wgpu::WgpuAllocator>,
/// #     mut encoder: wgpu::CommandEncoder,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let mut scope = pool.allocator().scope();
/// let stream = scope.stream();
/// let buffer = pool.allocate_on(&stream, 4096)?; // rule 1
/// commands(&mut encoder, &*buffer.on(&stream)?); // your own encoder
/// scope.flush(); // rule 2
/// pool.allocator().queue().submit([encoder.finish()]);
/// drop(buffer); // rule 3
/// drop(scope);
/// # Ok(())
/// # }
/// ```
pub struct Scope {
    id: u64,
    encoder: Option<CommandEncoder>,
    /// Memory that it has written to and the device has not been told of yet.
    chunks: Vec<Chunk>,
    /// And data of it that the device knows, which later commands may still read.
    placed: Vec<Unmapped>,
    /// Results that its copies go to.
    reads: Vec<Asked>,
    /// The last upload, not in the encoder yet: neighbours become one copy.
    last: Option<Copy>,
    eager: bool,
    clock: Scopes,
}

/// A copy out of staging memory that may still grow at its end.
struct Copy {
    from: Buffer,
    start: u64,
    to: Buffer,
    at: u64,
    bytes: u64,
}

impl Scope {
    pub(crate) fn open(clock: &Scopes) -> Self {
        Self {
            id: clock.open(),
            encoder: None,
            chunks: Vec::new(),
            placed: Vec::new(),
            reads: Vec::new(),
            last: None,
            eager: false,
            clock: clock.clone(),
        }
    }

    /// From now on the scope is flushed ([`Scope::flush`]) each time an upload finds its chunk
    /// full: the device copies while the CPU writes the next one. Each chunk costs a submission
    /// then, and what is left of chunks that data was placed in.
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

    /// The encoder of this scope, made when it is first asked for, and anew after a flush. It is
    /// lent: whoever swaps it for another's takes the commands out of their scope's order.
    #[must_use]
    pub fn encoder(&mut self) -> &mut CommandEncoder {
        let device = &self.clock.shared().device;
        let fresh = || device.create_command_encoder(&CommandEncoderDescriptor::default());
        let encoder = self.encoder.get_or_insert_with(fresh);
        if let Some(Copy { from, start, to, at, bytes }) = self.last.take() {
            encoder.copy_buffer_to_buffer(&from, start, &to, at, bytes);
        }
        encoder
    }

    /// Writes `data` into a buffer in the order of this scope: a copy by the CPU into staging
    /// memory now, and one by the device; one for all where neighbours are written one after the
    /// other.
    ///
    /// # Errors
    ///
    /// [`Why::Unsupported`] where offset or length is no multiple of 4 bytes or the buffer is too
    /// short, [`Why::Foreign`] for uploads of another device, [`Why::OutOfMemory`] where staging
    /// memory cannot be had.
    pub fn upload(
        &mut self,
        through: &Uploads,
        to: &Buffer,
        offset: u64,
        data: &[u8],
    ) -> Result<(), DeviceError> {
        let bytes = data.len() as u64;
        if !through.is_of(self.shared()) {
            return Err(DeviceError::new(Why::Foreign, "upload through another device's", 0));
        }
        self.shared().living()?;
        fits(
            to,
            BufferUsages::COPY_DST,
            offset,
            bytes,
            "upload: offset and length in words, inside of the buffer",
        )?;
        if bytes == 0 {
            return Ok(());
        }
        if self.eager && !self.has_room(through, bytes) {
            self.flush();
        }
        let (from, at) = self.stage(through, data, COPY_BUFFER_ALIGNMENT)?;
        if let Some(last) = &mut self.last
            && (&last.from, last.start + last.bytes) == (&from, at)
            && (&last.to, last.at + last.bytes) == (to, offset)
        {
            last.bytes += bytes;
            return Ok(());
        }
        let _ = self.encoder(); // what came before it goes first
        self.last = Some(Copy { from, start: at, to: to.clone(), at: offset, bytes });
        Ok(())
    }

    /// Puts `data` where shaders of this scope can read it: one copy by the CPU, and none by the
    /// device. Returns the buffer and where in it; used by another scope it is a validation error,
    /// since it is mapped by then.
    ///
    /// # Errors
    ///
    /// [`Why::Foreign`] for data of another device, [`Why::OutOfMemory`] where memory cannot be
    /// had, [`Why::Lost`] where the device is gone.
    pub fn place(&mut self, into: &FrameData, data: &[u8]) -> Result<(Buffer, u64), DeviceError> {
        if !into.chunks.is_of(self.shared()) {
            return Err(DeviceError::new(Why::Foreign, "place another device's data", 0));
        }
        self.stage(&into.chunks, data, into.alignment)
    }

    /// Whether the last chunk of these takes so many bytes more; or there is none yet.
    fn has_room(&self, through: &Uploads, bytes: u64) -> bool {
        let last = self.chunks.iter().rev().find(|chunk| chunk.is_of(through));
        last.is_none_or(|chunk| chunk.has_room(bytes, COPY_BUFFER_ALIGNMENT))
    }

    /// Writes data into a chunk of this scope's own.
    fn stage(
        &mut self,
        through: &Uploads,
        data: &[u8],
        alignment: u64,
    ) -> Result<(Buffer, u64), DeviceError> {
        self.shared().living()?; // whose mapped memory would be gone
        let mut of_these = self.chunks.iter_mut().rev().filter(|chunk| chunk.is_of(through));
        if let Some(last) = of_these.next()
            && let Some(at) = last.write(data, alignment)
        {
            return Ok((last.buffer.clone(), at));
        }
        let mut chunk = through.chunk(data.len() as u64)?;
        let none = DeviceError::new(Why::OutOfMemory, "room in a staging buffer", 0);
        let at = chunk.write(data, alignment).ok_or(none)?;
        let buffer = chunk.buffer.clone();
        self.chunks.push(chunk);
        Ok((buffer, at))
    }

    /// Copies bytes of a buffer back to the CPU, in the order of this scope. Where wgpu refuses the
    /// scope's commands the read-back says so, unless another thread submits at the same moment:
    /// then it shows what its memory held before, so heed what wgpu's own handler tells.
    ///
    /// # Errors
    ///
    /// As for [`Scope::upload`].
    pub fn read_back(
        &mut self,
        through: &ReadBacks,
        from: &Buffer,
        offset: u64,
        bytes: u64,
    ) -> Result<ReadBack, DeviceError> {
        if !through.is_of(self.shared()) {
            return Err(DeviceError::new(Why::Foreign, "read back through another device's", 0));
        }
        self.shared().living()?;
        let words = bytes.checked_next_multiple_of(COPY_BUFFER_ALIGNMENT).unwrap_or(u64::MAX);
        fits(
            from,
            BufferUsages::COPY_SRC,
            offset,
            words,
            "read back: offset in words, inside of the buffer",
        )?;
        let (back, asked, to) = through.begin(bytes)?;
        if bytes > 0 {
            self.encoder().copy_buffer_to_buffer(from, offset, &to, 0, words);
        }
        self.reads.push(asked);
        Ok(back)
    }

    /// Copies from one buffer to another, in the order of this scope.
    ///
    /// # Errors
    ///
    /// [`Why::Unsupported`] where wgpu would refuse the whole submission: both are the same buffer,
    /// as two pieces of one slab are, a usage is missing, or offsets and length are not in words,
    /// or do not fit.
    pub fn copy(
        &mut self,
        (from, start): (&Buffer, u64),
        (to, at): (&Buffer, u64),
        bytes: u64,
    ) -> Result<(), DeviceError> {
        if from == to {
            let call = "copy inside of one wgpu buffer: take blocks of two pools";
            return Err(DeviceError::new(Why::Unsupported, call, 0));
        }
        self.shared().living()?;
        fits(
            from,
            BufferUsages::COPY_SRC,
            start,
            bytes,
            "copy: offset and length in words, inside of the source",
        )?;
        fits(
            to,
            BufferUsages::COPY_DST,
            at,
            bytes,
            "copy: offset and length in words, inside of the target",
        )?;
        self.encoder().copy_buffer_to_buffer(from, start, to, at, bytes);
        Ok(())
    }

    /// Hands what was recorded so far to the device, behind the clears that are owed for it: the
    /// device begins while the CPU goes on. The scope stays open, and its blocks stay its own.
    /// Chunks that it wrote to are not written to again before they were mapped again, those of
    /// [`FrameData`] not before the scope ends.
    pub fn flush(&mut self) -> SubmissionIndex {
        let (staging, bound): (Vec<_>, Vec<_>) =
            self.chunks.drain(..).map(Chunk::unmap).partition(Unmapped::is_staging);
        self.placed.extend(bound);
        if self.last.is_some() {
            let _ = self.encoder();
        }
        let commands = self.encoder.take().map(CommandEncoder::finish);
        let shared = self.clock.shared();
        // By themselves: what wgpu refuses, it refuses as a whole, and these are owed all the same.
        shared.clear_now(&self.clock.take_owed(self.id));
        let index = shared.queue.submit(commands);
        staging.into_iter().for_each(Unmapped::map_again);
        // Copies that were refused brought nothing back; whoever waits is told.
        let reads = self.reads.drain(..);
        if reads.len() > 0 && shared.has(&index) {
            reads.for_each(|read| read.map(&index));
        }
        index
    }

    /// Submits the commands, behind the clears that are owed.
    #[expect(clippy::must_use_candidate, reason = "few wait for this one submission")]
    pub fn submit(mut self) -> SubmissionIndex {
        let index = self.flush();
        // Closed after that: whoever looks in between finds it open, which is only cautious.
        drop(self);
        index
    }
}

/// Whether wgpu takes the copy; it would refuse the whole submission.
fn fits(
    buffer: &Buffer,
    usage: BufferUsages,
    at: u64,
    bytes: u64,
    what: &'static str,
) -> Result<(), DeviceError> {
    let words = COPY_BUFFER_ALIGNMENT;
    let in_words = at.is_multiple_of(words) && bytes.is_multiple_of(words);
    let inside = at.checked_add(bytes).is_some_and(|end| end <= buffer.size());
    let refused = |call| Err(DeviceError::new(Why::Unsupported, call, 0));
    if !buffer.usage().contains(usage) {
        return refused("copy without COPY_SRC or COPY_DST");
    }
    if in_words && inside { Ok(()) } else { refused(what) }
}

impl Drop for Scope {
    fn drop(&mut self) {
        let never_submitted = self.chunks.drain(..).map(Chunk::unmap);
        never_submitted.chain(self.placed.drain(..)).for_each(Unmapped::map_again);
        self.clock.close(self.id);
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("id", &self.id).finish_non_exhaustive()
    }
}
