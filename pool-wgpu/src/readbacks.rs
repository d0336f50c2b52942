//! Read-back: buffers that the CPU reads, handed out by their callbacks and used again.

use crate::shared::{Shared, lost};
use parking_lot::Mutex;
use pool_core::{DeviceError, Why};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use wgpu::{
    Buffer, BufferAsyncError, BufferDescriptor, BufferUsages, COPY_BUFFER_ALIGNMENT, MapMode,
    PollType, SubmissionIndex,
};

/// Memory that results are read back through. Clones are the same.
///
/// [`Scope::read_back`](crate::Scope::read_back) copies into it and gives a [`ReadBack`], which is
/// ready once the scope was submitted and its work is done: await it, or call
/// [`ReadBack::wait`]. Its buffer serves others once the bytes were lent.
#[derive(Clone)]
pub struct ReadBacks(Arc<ReadBacksInner>);

struct ReadBacksInner {
    shared: Arc<Shared>,
    kept_bytes: u64,
    bytes: AtomicU64,
    /// Buffers that were read, and are unmapped, the oldest first.
    idle: Mutex<Vec<Buffer>>,
}

/// Bytes on their way back.
#[derive(Debug)]
#[must_use = "the bytes are lost if nobody reads them"]
pub struct ReadBack {
    of: ReadBacks,
    buffer: Option<Buffer>,
    bytes: u64,
    came: Receiver<Result<(), BufferAsyncError>>,
    way: Arc<Way>,
    outcome: Option<Result<(), BufferAsyncError>>,
}

/// What both ends know.
#[derive(Debug, Default)]
struct Way {
    /// The submission that brings the bytes; with it, a callback will come.
    asked: OnceLock<SubmissionIndex>,
    waker: Mutex<Option<Waker>>,
}

impl Way {
    fn wake(&self) {
        let waker = self.waker.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// What a scope does once it is submitted. Dropped before that, it tells whoever waits.
pub(crate) struct Asked {
    buffer: Buffer,
    bytes: u64,
    came: Option<Sender<Result<(), BufferAsyncError>>>,
    way: Arc<Way>,
}

/// What is mapped: whole words, and at least one.
fn in_words(bytes: u64) -> u64 {
    bytes.next_multiple_of(COPY_BUFFER_ALIGNMENT).max(COPY_BUFFER_ALIGNMENT)
}

fn refused(call: &'static str) -> DeviceError {
    DeviceError::new(Why::Other, call, 0)
}

impl ReadBacks {
    pub(crate) fn new(shared: Arc<Shared>, kept_bytes: u64) -> Self {
        let (bytes, idle) = (AtomicU64::new(0), Mutex::default());
        Self(Arc::new(ReadBacksInner { shared, kept_bytes, bytes, idle }))
    }

    /// Bytes of all buffers, on their way or idle.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.0.bytes.load(Relaxed)
    }

    pub(crate) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.0.shared, shared)
    }

    /// A buffer of at least so many bytes, and both ends of what becomes of it.
    pub(crate) fn begin(&self, bytes: u64) -> Result<(ReadBack, Asked, Buffer), DeviceError> {
        let buffer = self.take(bytes)?;
        let (tell, came) = channel();
        let way = Arc::new(Way::default());
        let asked = Asked { buffer: buffer.clone(), bytes, came: Some(tell), way: way.clone() };
        let (of, kept) = (self.clone(), Some(buffer.clone()));
        let back = ReadBack { of, buffer: kept, bytes, came, way, outcome: None };
        Ok((back, asked, buffer))
    }

    /// The smallest idle one that is large enough and not four times too large, else a new one.
    fn take(&self, bytes: u64) -> Result<Buffer, DeviceError> {
        let words = in_words(bytes);
        let mut idle = self.0.idle.lock();
        let fits = |buffer: &&Buffer| buffer.size() >= words && buffer.size() / 4 <= words;
        let best = idle.iter().filter(fits).map(Buffer::size).min();
        if let Some(at) = best.and_then(|best| idle.iter().position(|b| b.size() == best)) {
            return Ok(idle.remove(at));
        }
        drop(idle);
        // Rounded, so that it serves others too; not beyond what the device can have.
        let rounded = words.checked_next_power_of_two().unwrap_or(words);
        let most = self.0.shared.device.limits().max_buffer_size;
        let size = if rounded <= most { rounded } else { words };
        let buffer = self.0.shared.create(&BufferDescriptor {
            label: None,
            size,
            usage: BufferUsages::MAP_READ | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        })?;
        self.0.bytes.fetch_add(size, Relaxed);
        Ok(buffer)
    }

    /// Keeps a buffer that was read; the oldest idle ones go beyond what is kept.
    fn give(&self, buffer: Buffer) {
        let mut idle = self.0.idle.lock();
        idle.push(buffer);
        while self.reserved_bytes() > self.0.kept_bytes && !idle.is_empty() {
            self.0.bytes.fetch_sub(idle.remove(0).size(), Relaxed);
        }
    }
}

impl Asked {
    /// After the commands that copy into it were submitted.
    pub(crate) fn map(mut self, by: &SubmissionIndex) {
        let Some(came) = self.came.take() else { return };
        let way = self.way.clone();
        self.buffer.map_async(MapMode::Read, ..in_words(self.bytes), move |mapped| {
            // Whoever does not wait any more has dropped the other end.
            let _ = came.send(mapped);
            way.wake();
        });
        // Not before: whoever sees it waits for a callback.
        let _ = self.way.asked.set(by.clone());
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(came) = self.came.take() {
            drop(came); // first, so that who is woken finds it gone
            self.way.wake();
        }
    }
}

impl ReadBack {
    /// Blocks until the bytes are there, and lends them. Waits for its own submission and what came
    /// before, not for later ones.
    ///
    /// # Errors
    ///
    /// [`Why::NotSubmitted`] if the scope was dropped, refused by wgpu or is still open,
    /// [`Why::Lost`] if the device is gone, [`Why::Unsupported`] in a browser, or what wgpu said.
    pub fn wait<R>(mut self, read: impl FnOnce(&[u8]) -> R) -> Result<R, DeviceError> {
        if !self.is_here()? {
            self.of.0.shared.living()?;
            let Some(submission) = self.way.asked.get() else {
                let call = "wait for a scope that is not submitted";
                return Err(DeviceError::new(Why::NotSubmitted, call, 0));
            };
            let until =
                PollType::Wait { submission_index: Some(submission.clone()), timeout: None };
            self.of.0.shared.device.poll(until).map_err(|_| lost())?;
            if cfg!(target_family = "wasm") && !self.is_here()? {
                let call = "wait in a browser, where nobody may block: await it";
                return Err(DeviceError::new(Why::Unsupported, call, 0));
            }
            // Another thread's poll may have taken the callback, and not called it yet.
            let outcome = self.came.recv();
            self.outcome = Some(outcome.map_err(|_| refused("Buffer::map_async"))?);
        }
        self.lend(read)
    }

    /// Whether the bytes are there. Makes no device call; a submit or a poll makes it true.
    ///
    /// # Errors
    ///
    /// As for [`ReadBack::wait`].
    pub fn is_here(&mut self) -> Result<bool, DeviceError> {
        if self.outcome.is_none() {
            self.outcome = match self.came.try_recv() {
                Ok(outcome) => Some(outcome),
                Err(std::sync::mpsc::TryRecvError::Empty) => None,
                Err(std::sync::mpsc::TryRecvError::Disconnected) => {
                    self.of.0.shared.living()?;
                    let call = "read back from a scope that was dropped or refused";
                    return Err(DeviceError::new(Why::NotSubmitted, call, 0));
                }
            };
        }
        match &self.outcome {
            Some(Err(_)) if self.of.0.shared.is_lost() => Err(lost()),
            Some(Err(_)) => Err(refused("Buffer::map_async")),
            outcome => Ok(outcome.is_some()),
        }
    }

    /// Lends the bytes, if they are there; the buffer serves others from then on.
    ///
    /// # Errors
    ///
    /// As for [`ReadBack::wait`], and [`Why::NotSubmitted`] if they are not there.
    pub fn lend<R>(mut self, read: impl FnOnce(&[u8]) -> R) -> Result<R, DeviceError> {
        if !self.is_here()? {
            return Err(DeviceError::new(Why::NotSubmitted, "read before the work is done", 0));
        }
        self.of.0.shared.living()?;
        let buffer = self.buffer.as_ref().ok_or(refused("read a second time"))?;
        let shown = {
            let mapped = buffer.get_mapped_range(..in_words(self.bytes));
            let mapped = mapped.map_err(|_| refused("Buffer::get_mapped_range"))?;
            read(&mapped[..usize::try_from(self.bytes).unwrap_or(0)])
        };
        buffer.unmap();
        // Not before: a reader that panics leaves it to the drop.
        if let Some(buffer) = self.buffer.take() {
            self.of.give(buffer);
        }
        Ok(shown)
    }
}

/// Ready when the bytes are there: then [`ReadBack::lend`] lends them. Somebody must submit or poll
/// meanwhile, since wgpu tells it from inside of those.
impl Future for ReadBack {
    type Output = Result<(), DeviceError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // First the waker, so that no callback is missed in between.
        *self.way.waker.lock() = Some(context.waker().clone());
        match self.is_here() {
            Ok(true) => Poll::Ready(Ok(())),
            Ok(false) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl Drop for ReadBack {
    fn drop(&mut self) {
        // It may be on its way: it is not used again, and wgpu keeps it until then.
        if let Some(buffer) = self.buffer.take() {
            self.of.0.bytes.fetch_sub(buffer.size(), Relaxed);
        }
    }
}

impl fmt::Debug for ReadBacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadBacks").field("reserved_bytes", &self.reserved_bytes()).finish()
    }
}
