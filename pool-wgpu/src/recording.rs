//! The commands that a scope has recorded: copies of uploads, an encoder, and the steps before.

use crate::looks::look;
use crate::moved::Move;
use crate::shared::Shared;
use crate::staging::{Chunk, Staging};
use crate::written::{Ranges, hash_of};
use crate::zeroing::{Fill, Owed, ToZero};
use pool_core::DeviceError;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use wgpu::{
    Buffer, CommandBuffer, CommandEncoder, Extent3d, Origin3d, SubmissionIndex,
    TexelCopyBufferInfo, TexelCopyBufferLayout, TexelCopyTextureInfo, Texture, TextureAspect,
};

/// The commands of a scope that were not handed over.
#[derive(Default)]
pub(crate) struct Recording {
    steps: VecDeque<Step>,
    /// Copies ahead of the encoder's commands. If there is an encoder, it has them too.
    ahead: Vec<Copy>,
    encoder: Option<CommandEncoder>,
    /// Copies that come after what the encoder has, if there is one. Neighbours are one copy.
    copies: Vec<Copy>,
    /// What the copies write.
    uploaded: Ranges,
    /// What copies ahead of the encoder's commands read.
    read: Ranges,
    /// Staging memory that copies read, and placed data.
    chunks: Vec<Chunk>,
    /// Which of them is the last of each staging memory, of which there are few.
    last_chunks: Vec<usize>,
    /// The buffers of the chunks, also once those are unmapped: copies know them by their numbers.
    buffers: Vec<Buffer>,
}

/// Zeroing and copies, and the commands that follow them.
struct Step {
    owed: Owed,
    copies: Vec<Copy>,
    /// Whether the commands begin with the copies.
    has_copies: bool,
    commands: Option<CommandBuffer>,
    /// The program knows already that wgpu refuses the commands.
    is_told: bool,
}

/// What came of the steps of a scope.
pub(crate) struct Submitted {
    /// The last submission.
    pub(crate) index: SubmissionIndex,
    /// Whether wgpu took all commands and copies.
    pub(crate) accepted: bool,
}

/// A copy that the scope itself records.
enum Copy {
    Upload(Upload),
    Between { from: Buffer, start: u64, to: Buffer, at: u64, bytes: u64 },
    Texels { from: usize, layout: TexelCopyBufferLayout, to: Texels, size: Extent3d },
    TexelsBack { from: Texels, to: Buffer, layout: TexelCopyBufferLayout, size: Extent3d },
}

/// A copy out of staging memory.
struct Upload {
    /// Which of the chunks, and where in it.
    from: usize,
    start: u64,
    to: Buffer,
    at: u64,
    bytes: u64,
}

/// A place in a texture.
pub(crate) struct Texels {
    pub(crate) texture: Texture,
    pub(crate) mip_level: u32,
    pub(crate) origin: Origin3d,
    pub(crate) aspect: TextureAspect,
}

impl Texels {
    pub(crate) fn of(place: &TexelCopyTextureInfo<'_>) -> Self {
        let TexelCopyTextureInfo { texture, mip_level, origin, aspect } = *place;
        Self { texture: texture.clone(), mip_level, origin, aspect }
    }

    fn info(&self) -> TexelCopyTextureInfo<'_> {
        let Self { texture, mip_level, origin, aspect } = self;
        TexelCopyTextureInfo { texture, mip_level: *mip_level, origin: *origin, aspect: *aspect }
    }
}

impl Recording {
    /// The encoder, behind all copies that came before. Those ahead of its first command stay as data, because
    /// they do not depend on what wgpu says of the commands.
    pub(crate) fn encoder(&mut self, shared: &Shared) -> &mut CommandEncoder {
        let is_fresh = self.encoder.is_none();
        let fresh = || shared.encoder("bucketpool scope");
        let encoder = self.encoder.get_or_insert_with(fresh);
        for copy in &self.copies {
            copy.record(&self.buffers, encoder);
        }
        if is_fresh {
            self.ahead.append(&mut self.copies);
        }
        self.copies.clear();
        encoder
    }

    /// Forgets what uploads wrote, of which nobody can have seen the first of two.
    pub(crate) fn forget_uploads(&mut self) {
        self.uploaded.clear();
    }

    /// The last chunk of this staging memory, if it has room; else a new one. Returns its number.
    pub(crate) fn chunk(
        &mut self,
        of: &Arc<Staging>,
        bytes: u64,
        alignment: u64,
    ) -> Result<usize, DeviceError> {
        let last = self.last_chunk(of);
        if let Some(last) = last.filter(|last| self.chunks[*last].has_room(bytes, alignment)) {
            return Ok(last);
        }
        let chunk = of.chunk(bytes)?;
        self.buffers.push(chunk.buffer.clone());
        self.chunks.push(chunk);
        let new = self.chunks.len() - 1;
        self.last_chunks.retain(|before| last != Some(*before));
        self.last_chunks.push(new);
        Ok(new)
    }

    fn last_chunk(&self, of: &Arc<Staging>) -> Option<usize> {
        self.last_chunks.iter().copied().find(|last| {
            look();
            self.chunks[*last].is_of(of)
        })
    }

    /// Whether the last chunk of this staging memory takes that many bytes more; or there is none.
    pub(crate) fn has_room(&self, of: &Arc<Staging>, bytes: u64, alignment: u64) -> bool {
        let last = self.last_chunk(of);
        last.is_none_or(|last| self.chunks[last].has_room(bytes, alignment))
    }

    pub(crate) fn chunk_mut(&mut self, number: usize) -> &mut Chunk {
        &mut self.chunks[number]
    }

    /// All chunks, for the submission. All copies are recorded.
    pub(crate) fn take_chunks(&mut self) -> Vec<Chunk> {
        self.last_chunks.clear();
        std::mem::take(&mut self.chunks)
    }

    /// Adds an upload, or lengthens the last one.
    pub(crate) fn upload(
        &mut self,
        (from, start): (usize, u64),
        (to, at): (&Buffer, u64),
        bytes: u64,
    ) {
        self.uploaded.add(hash_of(to), &(at..at + bytes));
        if let Some(Copy::Upload(last)) = self.copies.last_mut()
            && (last.from, last.start + last.bytes) == (from, start)
            && (&last.to, last.at + last.bytes) == (to, at)
        {
            last.bytes += bytes;
            return;
        }
        self.copies.push(Copy::Upload(Upload { from, start, to: to.clone(), at, bytes }));
    }

    /// Adds a copy between buffers.
    pub(crate) fn copy(
        &mut self,
        (from, start): (&Buffer, u64),
        (to, at): (&Buffer, u64),
        bytes: u64,
    ) {
        self.uploaded.add(hash_of(to), &(at..at + bytes));
        self.read.add(hash_of(from), &(start..start + bytes));
        let (from, to) = (from.clone(), to.clone());
        self.copies.push(Copy::Between { from, start, to, at, bytes });
    }

    /// Adds a copy of bytes that are read back.
    pub(crate) fn read(
        &mut self,
        (from, start): (&Buffer, u64),
        (to, at): (&Buffer, u64),
        bytes: u64,
    ) {
        self.read.add(hash_of(from), &(start..start + bytes));
        let (from, to) = (from.clone(), to.clone());
        self.copies.push(Copy::Between { from, start, to, at, bytes });
    }

    /// Adds a copy of texels that are read back.
    pub(crate) fn read_texels(
        &mut self,
        from: Texels,
        (to, layout): (&Buffer, TexelCopyBufferLayout),
        size: Extent3d,
    ) {
        self.copies.push(Copy::TexelsBack { from, to: to.clone(), layout, size });
    }

    /// Adds a copy of texels, which lie in a chunk in this layout.
    pub(crate) fn upload_texels(
        &mut self,
        from: usize,
        layout: TexelCopyBufferLayout,
        to: Texels,
        size: Extent3d,
    ) {
        self.copies.push(Copy::Texels { from, layout, to, size });
    }

    /// Whether an upload or a copy of the scope writes some of these bytes.
    pub(crate) fn uploads_to(&self, to: &Buffer, bytes: &Range<u64>) -> bool {
        self.uploaded.has(hash_of(to), bytes)
    }

    /// When a copy that is recorded now runs, which writes these bytes.
    pub(crate) fn fill_of(&self, to: &Buffer, bytes: &Range<u64>) -> Fill {
        match self.read.has(hash_of(to), bytes) {
            _ if !self.is_ahead() => Fill::WithCommands,
            true => Fill::Ahead,
            false => Fill::First,
        }
    }

    /// Whether a copy that is recorded now comes ahead of the commands of the present step.
    pub(crate) fn is_ahead(&self) -> bool {
        self.encoder.is_none()
    }

    pub(crate) fn has_copies(&self) -> bool {
        !self.copies.is_empty()
    }

    /// Whether there is more than copies.
    pub(crate) fn has_commands(&self) -> bool {
        self.encoder.is_some() || !self.steps.is_empty()
    }

    /// Whether the present step has commands.
    pub(crate) fn has_step(&self) -> bool {
        self.encoder.is_some() || self.has_copies()
    }

    /// Moves the copies into an encoder.
    pub(crate) fn copies_into(&mut self, encoder: &mut CommandEncoder) {
        for copy in self.copies.drain(..) {
            copy.record(&self.buffers, encoder);
        }
    }

    /// Ends a step, behind the zeroing that it owes.
    pub(crate) fn end_step(&mut self, owed: Owed, shared: &Shared) {
        if self.encoder.is_some() {
            let _ = self.encoder(shared); // with the copies behind its commands
        } else {
            self.ahead.append(&mut self.copies);
        }
        self.read.clear();
        let (copies, has_copies) = (std::mem::take(&mut self.ahead), self.encoder.is_some());
        let (commands, is_told) = self.encoder.take().map(|encoder| shared.finish(encoder)).unzip();
        if !owed.is_empty() || !copies.is_empty() || commands.is_some() {
            let is_told = is_told.unwrap_or(false);
            self.steps.push_back(Step { owed, copies, has_copies, commands, is_told });
        }
    }

    /// Commands of the program follow, which hand over all that was recorded.
    pub(crate) fn follow(&mut self, (commands, is_told): (CommandBuffer, bool)) {
        let (owed, copies, has_copies) = (Owed::default(), Vec::new(), false);
        let commands = Some(commands);
        self.steps.push_back(Step { owed, copies, has_copies, commands, is_told });
    }

    /// Submits all steps together. What wgpu refuses, it refuses as a whole and runs nothing of it. Zeroing and
    /// copies must be done whatever the program has recorded: they are made again then, without the
    /// commands, and what was destroyed takes no other with it.
    pub(crate) fn submit(&mut self, shared: &Shared) -> Submitted {
        let buffers = std::mem::take(&mut self.buffers);
        let (mut together, mut has_commands, mut is_told) = (Vec::new(), false, false);
        // The steps stay, so that a panic in `submit` leaves their zeroing to be done.
        for step in &mut self.steps {
            let Step { owed, copies, has_copies, commands, .. } = step;
            let copies: &[Copy] = if *has_copies { &[] } else { copies };
            if let Some((ahead, refused)) = record(&owed.ahead, copies, shared, &buffers) {
                together.push(ahead);
                is_told |= refused;
            }
            has_commands |= commands.is_some();
            is_told |= step.is_told;
            together.extend(commands.take());
        }
        let (index, refused) = shared.submit(together, is_told);
        let steps = std::mem::take(&mut self.steps);
        if !refused {
            return Submitted { index, accepted: true };
        }
        let mut accepted = !has_commands;
        for Step { owed, copies, .. } in steps {
            shared.zero_now(&owed.ahead, true);
            shared.zero_now(&owed.filled, true);
            accepted &= shared.run_all(&copies, |copy, encoder| copy.record(&buffers, encoder));
            shared.run_all(owed.moves.iter().filter(|moved| !moved.is_ahead), Move::record);
        }
        Submitted { index: shared.submit([], true).0, accepted }
    }

    /// Drops all commands. Returns what each step owes, and the chunks that they would have used.
    pub(crate) fn forget(&mut self) -> (Vec<Owed>, Vec<Chunk>) {
        let Self { steps, chunks, .. } = std::mem::take(self);
        (steps.into_iter().map(|step| step.owed).collect(), chunks)
    }
}

/// Zeroing and copies as commands, if there are any, and whether wgpu refuses those.
fn record(
    to_zero: &[ToZero],
    copies: &[Copy],
    shared: &Shared,
    chunks: &[Buffer],
) -> Option<(CommandBuffer, bool)> {
    if to_zero.is_empty() && copies.is_empty() {
        return None;
    }
    let mut encoder = shared.encoder("bucketpool ahead");
    for zero in to_zero {
        zero.record(&mut encoder);
    }
    for copy in copies {
        copy.record(chunks, &mut encoder);
    }
    Some(shared.finish(encoder))
}

impl Copy {
    fn record(&self, chunks: &[Buffer], encoder: &mut CommandEncoder) {
        look();
        match self {
            Self::Upload(Upload { from, start, to, at, bytes }) => {
                encoder.copy_buffer_to_buffer(&chunks[*from], *start, to, *at, *bytes);
            }
            Self::Between { from, start, to, at, bytes } => {
                encoder.copy_buffer_to_buffer(from, *start, to, *at, *bytes);
            }
            Self::Texels { from, layout, to, size } => {
                let from = TexelCopyBufferInfo { buffer: &chunks[*from], layout: *layout };
                encoder.copy_buffer_to_texture(from, to.info(), *size);
            }
            Self::TexelsBack { from, to, layout, size } => {
                let to = TexelCopyBufferInfo { buffer: to, layout: *layout };
                encoder.copy_texture_to_buffer(from.info(), to, *size);
            }
        }
    }
}
