//! Uploads: staging buffers that are mapped when they are at rest, so that writing to one is a copy
//! by the CPU and nothing else.

use crate::shared::Shared;
use parking_lot::Mutex;
use pool_core::{DeviceError, Why};
use std::collections::BTreeMap;
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
///
/// What it costs: a copy by the CPU, one by the device, and as much memory as the frames in flight
/// upload. Nothing is mapped or unmapped for an upload, and no buffer is made once there are
/// enough.
///
/// ```
/// use pool_core::{BucketPool, KIB, MIB};
/// use pool_wgpu::WgpuAllocator;
///
/// # #[cfg(feature = "noop")] {
/// # let (device, queue) = pool_wgpu::wgpu::Device::noop(&Default::default());
/// let device = WgpuAllocator::new(device, queue);
/// let (uploads, backs) = (device.uploads(64 * KIB, MIB), device.read_backs(MIB));
/// let pool = BucketPool::new(device.clone());
/// for frame in 0..10_u8 {
///     let mut scope = device.scope();
///     let on = scope.stream();
///     let buffer = pool.allocate_on(&on, KIB)?;
///     let view = buffer.on(&on)?;
///     scope.upload(&uploads, view.buffer(), view.offset(), &[frame; 1024])?;
///     let back = scope.read_back(&backs, view.buffer(), view.offset(), KIB)?;
///     scope.submit();
///     assert!(back.wait(|bytes| bytes == [frame; 1024])?);
/// }
/// assert!(uploads.reserved_bytes() <= 128 * KIB);
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Uploads(Arc<UploadsInner>);

/// Data of a frame that shaders read where the CPU has put it: chunks like those of [`Uploads`]
/// that are bound themselves, so that no device copy is made. For devices whose memory the CPU
/// reaches (`Features::MAPPABLE_PRIMARY_BUFFERS`): integrated ones, and those that are a CPU.
///
/// What a scope places ([`Scope::place`](crate::Scope::place)) is that scope's only. Bytes beyond
/// it are another frame's.
///
/// ```
/// use pool_core::{KIB, MIB};
/// use pool_wgpu::{WgpuAllocator, wgpu};
///
/// # #[cfg(feature = "noop")] {
/// # let required_features = wgpu::Features::MAPPABLE_PRIMARY_BUFFERS;
/// # let descriptor = wgpu::DeviceDescriptor { required_features, ..Default::default() };
/// # let (device, queue) = wgpu::Device::noop(&descriptor);
/// let device = WgpuAllocator::new(device, queue);
/// let uniforms = device.frame_data(wgpu::BufferUsages::UNIFORM, 64 * KIB, MIB)?;
/// let mut scope = device.scope();
/// let (buffer, first) = scope.place(&uniforms, &[1; 100])?;
/// let (same, second) = scope.place(&uniforms, &[2; 100])?;
/// assert_eq!((buffer, second - first), (same, 256)); // where a binding may begin
/// scope.submit();
/// # }
/// # Ok::<(), pool_core::DeviceError>(())
/// ```
#[derive(Clone, Debug)]
pub struct FrameData {
    pub(crate) chunks: Uploads,
    /// Data begins at multiples of this many bytes.
    pub(crate) alignment: u64,
}

struct UploadsInner {
    shared: Arc<Shared>,
    usages: BufferUsages,
    /// Commands use the chunks themselves, until their scope ends.
    bound: bool,
    chunk_bytes: u64,
    /// Bytes of chunks that are kept at rest; beyond that the oldest go, with the next call.
    kept_bytes: u64,
    /// Bytes of chunks that there are, at work or at rest.
    bytes: AtomicU64,
    /// The other end of [`Chunks::told`]. A callback holds nothing else: what holds a buffer is
    /// held by that buffer until it is mapped, and would keep the device.
    tell: Sender<(u64, bool)>,
    chunks: Mutex<Chunks>,
}

/// Chunks that no scope has.
struct Chunks {
    /// Which are mapped again, or cannot be: a channel, so that no lock is held in a callback.
    told: Receiver<(u64, bool)>,
    /// The number of the next to be mapped.
    next: u64,
    /// Those that the device uses, by number.
    at_work: BTreeMap<u64, Buffer>,
    /// Those that are mapped, the oldest first.
    at_rest: Vec<Buffer>,
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
    /// Taken when it is mapped again.
    buffer: Option<Buffer>,
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
        let (tell, told) = channel();
        let (at_work, at_rest) = (BTreeMap::new(), Vec::new());
        let chunks = Mutex::new(Chunks { told, next: 0, at_work, at_rest });
        let bytes = AtomicU64::new(0);
        let chunk_bytes = chunk_bytes.next_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT).max(4);
        Self(Arc::new(UploadsInner {
            shared,
            usages,
            bound,
            chunk_bytes,
            kept_bytes,
            bytes,
            tell,
            chunks,
        }))
    }

    /// Bytes of all chunks: in the hands of scopes, at work or at rest.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        let mut chunks = self.0.chunks.lock();
        self.0.take_in(&mut chunks);
        self.0.trim(&mut chunks);
        self.0.bytes.load(Relaxed)
    }

    pub(crate) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.0.shared, shared)
    }

    /// A chunk with room for so many bytes: one at rest, else a new one.
    pub(crate) fn chunk(&self, bytes: u64) -> Result<Chunk, DeviceError> {
        let inner = &*self.0;
        inner.shared.living()?;
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
        let mut chunks = self.0.chunks.lock();
        self.0.take_in(&mut chunks);
        let fits = chunks.at_rest.iter().enumerate().filter(|(_, chunk)| chunk.size() >= bytes);
        let best = fits.min_by_key(|(_, chunk)| chunk.size()).map(|(at, _)| at);
        let best = best.map(|at| chunks.at_rest.remove(at));
        self.0.trim(&mut chunks);
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

impl UploadsInner {
    /// Takes in what the callbacks told.
    fn take_in(&self, Chunks { told, at_work, at_rest, .. }: &mut Chunks) {
        for (number, mapped) in told.try_iter() {
            match at_work.remove(&number) {
                Some(chunk) if mapped => at_rest.push(chunk),
                chunk => {
                    self.bytes.fetch_sub(chunk.map_or(0, |chunk| chunk.size()), Relaxed);
                }
            }
        }
    }

    /// Lets the oldest go beyond what is kept.
    fn trim(&self, Chunks { at_rest, .. }: &mut Chunks) {
        let mut resting: u64 = at_rest.iter().map(Buffer::size).sum();
        while resting > self.kept_bytes {
            let oldest = at_rest.remove(0).size();
            resting -= oldest;
            self.bytes.fetch_sub(oldest, Relaxed);
        }
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
        Unmapped { of, buffer: Some(buffer) }
    }
}

impl Unmapped {
    /// Whether only copies read it: then nobody needs it once those are submitted.
    pub(crate) fn is_staging(&self) -> bool {
        !self.of.0.bound
    }

    /// After the commands that use it were submitted: at rest once they are done.
    pub(crate) fn map_again(mut self) {
        let inner = &self.of.0;
        if inner.shared.is_lost() {
            return;
        }
        let Some(buffer) = self.buffer.take() else { return };
        let number = {
            let mut chunks = inner.chunks.lock();
            inner.take_in(&mut chunks);
            chunks.next += 1;
            let number = chunks.next;
            chunks.at_work.insert(number, buffer.clone());
            number
        };
        let tell = inner.tell.clone();
        buffer.map_async(MapMode::Write, .., move |mapped| {
            // Nobody is left to be told where the uploads are gone.
            let _ = tell.send((number, mapped.is_ok()));
        });
    }
}

impl Drop for Unmapped {
    /// One that is not mapped again is gone: the device is lost, or a submission panicked.
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.of.0.bytes.fetch_sub(buffer.size(), Relaxed);
        }
    }
}

impl FrameData {
    /// Bytes of all chunks: in the hands of scopes, at work or at rest.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.chunks.reserved_bytes()
    }
}

impl fmt::Debug for Uploads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Uploads").field("reserved_bytes", &self.reserved_bytes()).finish()
    }
}
