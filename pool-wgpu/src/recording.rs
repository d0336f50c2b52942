//! The commands that a scope has recorded: copies of uploads, an encoder, and the steps before.

use crate::open::hash_of;
use crate::shared::{Shared, ToZero};
use crate::staging::{Chunk, Staging};
use pool_core::DeviceError;
use std::collections::{BTreeMap, VecDeque};
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
    encoder: Option<CommandEncoder>,
    /// Copies that come after what the encoder has. Neighbours are one copy.
    copies: Vec<Copy>,
    /// What the copies write: the end of each range by its buffer and its beginning. Neighbours are one.
    uploaded: BTreeMap<(u64, u64), u64>,
    /// Staging memory that copies read, and placed data.
    chunks: Vec<Chunk>,
}

/// Zeroing, and the commands that follow it.
struct Step {
    to_zero: Vec<ToZero>,
    commands: Option<CommandBuffer>,
}

/// A copy that the scope itself records.
enum Copy {
    Upload(Upload),
    Between { from: Buffer, start: u64, to: Buffer, at: u64, bytes: u64 },
    Texels { from: usize, layout: TexelCopyBufferLayout, to: Texels, size: Extent3d },
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
    /// The encoder, with all copies that came before.
    pub(crate) fn encoder(&mut self, shared: &Shared) -> &mut CommandEncoder {
        let fresh = || shared.encoder("bucketpool scope");
        let encoder = self.encoder.get_or_insert_with(fresh);
        for copy in self.copies.drain(..) {
            copy.record(&self.chunks, encoder);
        }
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
        let last = self.chunks.iter().rposition(|chunk| chunk.is_of(of));
        if let Some(last) = last.filter(|last| self.chunks[*last].has_room(bytes, alignment)) {
            return Ok(last);
        }
        self.chunks.push(of.chunk(bytes)?);
        Ok(self.chunks.len() - 1)
    }

    /// Whether the last chunk of this staging memory takes that many bytes more; or there is none.
    pub(crate) fn has_room(&self, of: &Arc<Staging>, bytes: u64, alignment: u64) -> bool {
        let last = self.chunks.iter().rev().find(|chunk| chunk.is_of(of));
        last.is_none_or(|chunk| chunk.has_room(bytes, alignment))
    }

    pub(crate) fn chunk_mut(&mut self, number: usize) -> &mut Chunk {
        &mut self.chunks[number]
    }

    /// All chunks, for the submission. All copies are recorded.
    pub(crate) fn take_chunks(&mut self) -> Vec<Chunk> {
        std::mem::take(&mut self.chunks)
    }

    /// Adds an upload, or lengthens the last one.
    pub(crate) fn upload(
        &mut self,
        (from, start): (usize, u64),
        (to, at): (&Buffer, u64),
        bytes: u64,
    ) {
        self.note_upload(to, at, at + bytes);
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
        self.note_upload(to, at, at + bytes);
        let (from, to) = (from.clone(), to.clone());
        self.copies.push(Copy::Between { from, start, to, at, bytes });
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
        let buffer = hash_of(to);
        let before = self.uploaded.range((buffer, 0)..(buffer, bytes.end)).next_back();
        before.is_some_and(|(_, end)| *end > bytes.start)
    }

    /// Ranges that overlap or follow each other are one.
    fn note_upload(&mut self, to: &Buffer, at: u64, end: u64) {
        let buffer = hash_of(to);
        let (mut at, mut end) = (at, end);
        while let Some((&key, &last)) = self.uploaded.range((buffer, 0)..=(buffer, end)).next_back()
            && last >= at
        {
            self.uploaded.remove(&key);
            (at, end) = (at.min(key.1), end.max(last));
        }
        self.uploaded.insert((buffer, at), end);
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
            copy.record(&self.chunks, encoder);
        }
    }

    /// Ends a step, behind the zeroing that it needs.
    pub(crate) fn end_step(&mut self, to_zero: Vec<ToZero>, shared: &Shared) {
        if self.has_copies() {
            let _ = self.encoder(shared);
        }
        let commands = self.encoder.take().map(CommandEncoder::finish);
        if !to_zero.is_empty() || commands.is_some() {
            self.steps.push_back(Step { to_zero, commands });
        }
    }

    /// Commands of the program follow, which hand over all that was recorded.
    pub(crate) fn follow(&mut self, commands: CommandBuffer) {
        self.steps.push_back(Step { to_zero: Vec::new(), commands: Some(commands) });
    }

    /// Submits all steps, those between which nothing is zeroed together. Zeroing has its own
    /// submission: what wgpu refuses, it refuses as a whole, and the zeroing must be done all the
    /// same.
    pub(crate) fn submit(&mut self, shared: &Shared) -> SubmissionIndex {
        let mut together = Vec::new();
        // One at a time, so that a panic in `submit` leaves the others to be forgotten in order.
        while let Some(next) = self.steps.front() {
            if !next.to_zero.is_empty() && !together.is_empty() {
                shared.queue.submit(std::mem::take(&mut together));
            }
            let Some(Step { to_zero, commands }) = self.steps.pop_front() else { break };
            shared.zero_now(&to_zero);
            together.extend(commands);
        }
        shared.queue.submit(together)
    }

    /// Drops all commands. Returns the zeroing that they needed, and the chunks that they would
    /// have used.
    pub(crate) fn forget(&mut self) -> (Vec<ToZero>, Vec<Chunk>) {
        let Self { steps, chunks, .. } = std::mem::take(self);
        (steps.into_iter().flat_map(|step| step.to_zero).collect(), chunks)
    }
}

impl Copy {
    fn record(self, chunks: &[Chunk], encoder: &mut CommandEncoder) {
        match self {
            Self::Upload(Upload { from, start, to, at, bytes }) => {
                encoder.copy_buffer_to_buffer(&chunks[from].buffer, start, &to, at, bytes);
            }
            Self::Between { from, start, to, at, bytes } => {
                encoder.copy_buffer_to_buffer(&from, start, &to, at, bytes);
            }
            Self::Texels { from, layout, to, size } => {
                let from = TexelCopyBufferInfo { buffer: &chunks[from].buffer, layout };
                encoder.copy_buffer_to_texture(from, to.info(), size);
            }
        }
    }
}
