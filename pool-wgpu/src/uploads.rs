//! Uploads: staging buffers that are mapped when they are at rest, so that writing to one is a copy
//! by the CPU and nothing else.

use crate::shared::{Shared, lost};
use parking_lot::Mutex;
use pool_core::{DeviceError, Why};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use wgpu::{Buffer, BufferDescriptor, BufferUsages, BufferViewMut, MapMode, PollType};

/// Staging memory for uploads, in chunks. Clones are the same.
///
/// A scope writes into a chunk of its own ([`Scope::upload`](crate::Scope::upload)). When the scope
/// is submitted the chunk is unmapped, and asked to be mapped again once its copies are done; wgpu
/// tells that from inside a later submit or poll, and then it is at rest again.
#[derive(Clone)]
pub struct Uploads(Arc<Inner>);

/// Data of a frame that shaders read where the CPU has put it: chunks like those of [`Uploads`]
/// that are bound themselves, so that no device copy is made. For devices whose memory the CPU
/// reaches (`Features::MAPPABLE_PRIMARY_BUFFERS`): integrated ones, and those that are a CPU.
///
/// What a scope places ([`Scope::place`](crate::Scope::place)) is that scope's only. Bytes beyond
/// it are another frame's.
#[derive(Clone, Debug)]
pub struct FrameData {
    pub(crate) chunks: Uploads,
    /// Data begins at multiples of this many bytes.
    pub(crate) alignment: u64,
}

struct Inner {
    shared: Arc<Shared>,
    usages: BufferUsages,
    /// Commands use the chunks themselves, until their scope ends.
    bound: bool,
    chunk_bytes: u64,
    /// Bytes of chunks that are kept at rest; beyond that the oldest go.
    kept_bytes: u64,
    /// Bytes of chunks that there are, at work or at rest.
    bytes: AtomicU64,
    /// What a callback puts in and a scope takes out: a channel, so that no lock is held there.
    returned: Sender<Buffer>,
    at_rest: Mutex<AtRest>,
}

/// Chunks that are mapped and that nobody has, the oldest first.
struct AtRest {
    came: Receiver<Buffer>,
    chunks: Vec<Buffer>,
}

/// A chunk in the hands of a scope: mapped, and filled from the front.
pub(crate) struct Chunk {
    of: Uploads,
    pub(crate) buffer: Buffer,
    mapped: BufferViewMut,
    used: u64,
}

/// A chunk that the device may use.
pub(crate) struct Unmapped {
    of: Uploads,
    buffer: Buffer,
}

impl Uploads {
    /// Chunks that copies read, or that `usages` bind.
    pub(crate) fn new(
        shared: Arc<Shared>,
        usages: Option<BufferUsages>,
        chunk_bytes: u64,
        kept_bytes: u64,
    ) -> Self {
        let (bound, usages) = (usages.is_some(), usages.unwrap_or(BufferUsages::COPY_SRC));
        let (returned, at_rest) = channel();
        let at_rest = Mutex::new(AtRest { came: at_rest, chunks: Vec::new() });
        let bytes = AtomicU64::new(0);
        let chunk_bytes = chunk_bytes.next_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT).max(4);
        Self(Arc::new(Inner {
            shared,
            usages,
            bound,
            chunk_bytes,
            kept_bytes,
            bytes,
            returned,
            at_rest,
        }))
    }

    /// Bytes of all chunks, at work or at rest.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.0.bytes.load(Relaxed)
    }

    pub(crate) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.0.shared, shared)
    }

    /// A chunk with room for so many bytes: one at rest, else a new one.
    pub(crate) fn chunk(&self, bytes: u64) -> Result<Chunk, DeviceError> {
        let inner = &*self.0;
        if inner.shared.is_lost() {
            return Err(lost());
        }
        let buffer = self.take(bytes).or_else(|| {
            // Callbacks run inside a poll.
            let _ = inner.shared.device.poll(PollType::Poll);
            self.take(bytes)
        });
        let buffer = buffer.map_or_else(|| self.fresh(bytes), Ok)?;
        let Ok(mapped) = buffer.get_mapped_range_mut(..) else {
            inner.bytes.fetch_sub(buffer.size(), Relaxed);
            return Err(DeviceError::new(Why::Other, "map a staging buffer", 0));
        };
        Ok(Chunk { of: self.clone(), buffer, mapped, used: 0 })
    }

    /// The smallest chunk at rest that has room.
    fn take(&self, bytes: u64) -> Option<Buffer> {
        let AtRest { came, chunks } = &mut *self.0.at_rest.lock();
        chunks.extend(came.try_iter());
        let fits = chunks.iter().enumerate().filter(|(_, chunk)| chunk.size() >= bytes);
        let best = fits.min_by_key(|(_, chunk)| chunk.size()).map(|(at, _)| at);
        let best = best.map(|at| chunks.remove(at));
        let mut resting: u64 = chunks.iter().map(Buffer::size).sum();
        while resting > self.0.kept_bytes {
            let oldest = chunks.remove(0).size();
            resting -= oldest;
            self.0.bytes.fetch_sub(oldest, Relaxed);
        }
        best
    }

    fn fresh(&self, bytes: u64) -> Result<Buffer, DeviceError> {
        let too_large = DeviceError::new(Why::TooLarge, "a staging buffer", 0);
        let words = bytes.checked_next_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT).ok_or(too_large)?;
        let size = words.max(self.0.chunk_bytes);
        let buffer = self.0.shared.create(&BufferDescriptor {
            label: None,
            size,
            usage: BufferUsages::MAP_WRITE | self.0.usages,
            mapped_at_creation: true,
        })?;
        self.0.bytes.fetch_add(size, Relaxed);
        Ok(buffer)
    }
}

impl Chunk {
    pub(crate) fn is_of(&self, uploads: &Uploads) -> bool {
        Arc::ptr_eq(&self.of.0, &uploads.0)
    }

    /// Where so many bytes begin and end, at the next multiple of `alignment` behind what was
    /// written before; `None` if there is no room.
    fn room(&self, bytes: u64, alignment: u64) -> Option<(u64, u64)> {
        let at = self.used.next_multiple_of(alignment);
        let end = at.checked_add(bytes).filter(|end| *end <= self.buffer.size())?;
        Some((at, end))
    }

    pub(crate) fn has_room(&self, bytes: u64, alignment: u64) -> bool {
        self.room(bytes, alignment).is_some()
    }

    /// Writes behind what was written before. Returns where, or `None` if there is no room.
    pub(crate) fn write(&mut self, data: &[u8], alignment: u64) -> Option<u64> {
        let (at, end) = self.room(data.len() as u64, alignment)?;
        let range = usize::try_from(at).ok()?..usize::try_from(end).ok()?;
        self.mapped.slice(range).copy_from_slice(data);
        self.used = end;
        Some(at)
    }

    /// Before the commands that use it are submitted.
    pub(crate) fn unmap(self) -> Unmapped {
        let Self { of, buffer, mapped, .. } = self;
        drop(mapped);
        // What a lost device had is gone already.
        if !of.0.shared.is_lost() {
            buffer.unmap();
        }
        Unmapped { of, buffer }
    }
}

impl Unmapped {
    /// Whether only copies read it: then nobody needs it once those are submitted.
    pub(crate) fn is_staging(&self) -> bool {
        !self.of.0.bound
    }

    /// After the commands that use it were submitted: at rest once they are done.
    pub(crate) fn map_again(self) {
        let Self { of, buffer } = self;
        if of.0.shared.is_lost() {
            of.0.bytes.fetch_sub(buffer.size(), Relaxed);
            return;
        }
        let (returned, again, inner) = (of.0.returned.clone(), buffer.clone(), of.0);
        buffer.map_async(MapMode::Write, .., move |mapped| match mapped {
            // Nobody may be left to receive it, and then it is dropped.
            Ok(()) => drop(returned.send(again)),
            Err(_) => {
                inner.bytes.fetch_sub(again.size(), Relaxed);
            }
        });
    }
}

impl fmt::Debug for Uploads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Uploads").field("reserved_bytes", &self.reserved_bytes()).finish()
    }
}
