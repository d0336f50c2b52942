//! Scopes: the streams of wgpu, and the clock that says which of them have reached the device.
//!
//! A device has one queue, and what is submitted runs in that order. So a block is ordered for
//! everybody as soon as the scope that used it is submitted, and for nobody else before.

use crate::readbacks::{Asked, ReadBack, ReadBacks};
use crate::shared::{Owed, Shared, lost};
use crate::uploads::{Chunk, FrameData, Uploads};
use parking_lot::Mutex;
use pool_core::{DeviceError, Order, StreamClock, Why};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use wgpu::{
    Buffer, BufferUsages, COPY_BUFFER_ALIGNMENT, CommandEncoder, CommandEncoderDescriptor,
    PollType, SubmissionIndex,
};

/// The scope that is always there: the queue's own writes, ahead of the next submission.
const QUEUE: u64 = 0;

/// A stream of a wgpu device: a scope, or the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WgpuStream {
    clock: u64,
    scope: u64,
}

/// Commands that are submitted together. Dropped without [`Scope::submit`] they never run, and what
/// they used is idle again.
pub struct Scope {
    id: u64,
    encoder: Option<CommandEncoder>,
    /// Staging memory that its copies come from, and results that its copies go to.
    uploads: Vec<Chunk>,
    reads: Vec<Asked>,
    /// The last upload, not in the encoder yet: neighbours become one copy.
    last: Option<Copy>,
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

/// The clock of a wgpu device.
#[derive(Clone)]
pub struct Scopes(Arc<Open>);

/// Which scopes are open.
struct Open {
    queue_stream: WgpuStream,
    shared: Arc<Shared>,
    next: AtomicU64,
    /// And what each owes ahead of its commands. Nobody takes another scope's: between taking and
    /// submitting, a block of it could come to somebody whose write is then cleared away.
    numbers: Mutex<BTreeMap<u64, Vec<Owed>>>,
}

impl Scope {
    /// The stream to allocate on, and to use buffers on, for the commands of this scope.
    #[must_use]
    pub fn stream(&self) -> WgpuStream {
        WgpuStream { clock: self.shared().id, scope: self.id }
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.clock.0.shared
    }

    fn living(&self) -> Result<(), DeviceError> {
        if self.shared().is_lost() { Err(lost()) } else { Ok(()) }
    }

    /// The one encoder of this scope, made when it is first asked for. It is lent: whoever swaps it
    /// for another's takes the commands out of their scope's order.
    #[must_use]
    pub fn encoder(&mut self) -> &mut CommandEncoder {
        let device = &self.clock.0.shared.device;
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
        self.living()?;
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
    /// had.
    pub fn place(&mut self, into: &FrameData, data: &[u8]) -> Result<(Buffer, u64), DeviceError> {
        if !into.chunks.is_of(self.shared()) {
            return Err(DeviceError::new(Why::Foreign, "place another device's data", 0));
        }
        self.stage(&into.chunks, data, into.alignment)
    }

    /// Writes data into a chunk of this scope's own.
    fn stage(
        &mut self,
        through: &Uploads,
        data: &[u8],
        alignment: u64,
    ) -> Result<(Buffer, u64), DeviceError> {
        let mut of_these = self.uploads.iter_mut().rev().filter(|chunk| chunk.is_of(through));
        if let Some(last) = of_these.next()
            && let Some(at) = last.write(data, alignment)
        {
            return Ok((last.buffer.clone(), at));
        }
        let mut chunk = through.chunk(data.len() as u64)?;
        let none = DeviceError::new(Why::OutOfMemory, "room in a staging buffer", 0);
        let at = chunk.write(data, alignment).ok_or(none)?;
        let buffer = chunk.buffer.clone();
        self.uploads.push(chunk);
        Ok((buffer, at))
    }

    /// Copies bytes of a buffer back to the CPU, in the order of this scope.
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
        self.living()?;
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
        self.living()?;
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

    /// Submits the commands, behind the clears that are owed.
    pub fn submit(mut self) -> SubmissionIndex {
        let mapped_again: Vec<_> = self.uploads.drain(..).map(Chunk::unmap).collect();
        if self.last.is_some() {
            let _ = self.encoder();
        }
        let commands = self.encoder.take().map(CommandEncoder::finish);
        let shared = self.shared();
        // Submitted first and no longer open after that, in `drop`: whoever looks in between finds
        // the scope open, which is only cautious.
        let owed = self.clock.0.numbers.lock().get_mut(&self.id).map(std::mem::take);
        let clears = shared.clears(&owed.unwrap_or_default());
        let index = shared.queue.submit(clears.into_iter().chain(commands));
        for map in mapped_again {
            map();
        }
        for read in self.reads.drain(..) {
            read.map();
        }
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
    match () {
        () if !buffer.usage().contains(usage) => refused("copy without COPY_SRC or COPY_DST"),
        () if !in_words || !inside => refused(what),
        () => Ok(()),
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        for chunk in self.uploads.drain(..) {
            chunk.unmap()();
        }
        // What is still owed is owed by a scope that never ran, and must not be left out: its
        // blocks may be used by others now. The scope is closed only while nothing is owed.
        loop {
            let owed = {
                let mut numbers = self.clock.0.numbers.lock();
                match numbers.get_mut(&self.id).map(std::mem::take) {
                    Some(owed) if !owed.is_empty() => owed,
                    _ => {
                        numbers.remove(&self.id);
                        return;
                    }
                }
            };
            self.shared().clear_now(&owed);
        }
    }
}

impl Scopes {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let queue_stream = WgpuStream { clock: shared.id, scope: QUEUE };
        let (next, numbers) = (AtomicU64::new(QUEUE + 1), Mutex::default());
        Self(Arc::new(Open { queue_stream, shared, next, numbers }))
    }

    pub(crate) fn open(&self) -> Scope {
        let id = self.0.next.fetch_add(1, Relaxed);
        self.0.numbers.lock().insert(id, Vec::new());
        let (uploads, reads) = (Vec::new(), Vec::new());
        Scope { id, encoder: None, uploads, reads, last: None, clock: self.clone() }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    /// Clears a range ahead of what `on` does with it: with the scope's submission; for the queue
    /// now, since its own writes run ahead of every submission. Returns whether wgpu accepted it,
    /// as far as that is known.
    pub(crate) fn clear(&self, on: &WgpuStream, owed: Owed) -> bool {
        if let Some(of_scope) = self.0.numbers.lock().get_mut(&on.scope) {
            of_scope.push(owed);
            return true;
        }
        self.0.shared.clear_now(&[owed])
    }
}

impl StreamClock for Scopes {
    type Stream = WgpuStream;
    type Mark = u64;

    fn default_stream(&self) -> &WgpuStream {
        &self.0.queue_stream
    }
    /// A scope that was submitted or dropped is no stream any more: work for it would be recorded
    /// elsewhere.
    fn owns(&self, on: &WgpuStream) -> bool {
        let open = || self.0.numbers.lock().contains_key(&on.scope);
        on.clock == self.0.shared.id && (on.scope == QUEUE || open())
    }
    fn fault(&self) -> Option<DeviceError> {
        self.0.shared.is_lost().then(lost)
    }
    fn mark(&self, on: &WgpuStream) -> u64 {
        on.scope
    }
    /// A scope has one point: where it is submitted.
    fn latest(&self, mark: u64) -> u64 {
        mark
    }
    fn same_stream(&self, a: u64, b: u64) -> bool {
        a == b
    }
    fn later(&self, a: u64, _b: u64) -> u64 {
        a
    }
    fn is_later(&self, a: u64, b: u64) -> bool {
        a == b
    }
    /// One queue, so one lane.
    fn lane(&self, _mark: u64) -> u64 {
        0
    }
    fn is_ordered(&self, on: &WgpuStream, after: u64) -> bool {
        after == on.scope || self.is_submitted(after)
    }
    fn order(&self, on: &WgpuStream, after: &[u64]) -> Result<Order, DeviceError> {
        let ordered = after.iter().all(|mark| self.is_ordered(on, *mark));
        Ok(if ordered { Order::Ordered } else { Order::NotYet })
    }
    fn is_submitted(&self, after: u64) -> bool {
        after == QUEUE || !self.0.numbers.lock().contains_key(&after)
    }
    /// wgpu tells of the whole queue only, so nothing is remembered.
    fn is_seen_done(&self, _after: u64) -> bool {
        false
    }
    fn is_done(&self, after: u64) -> Result<bool, DeviceError> {
        if !self.is_submitted(after) {
            return Ok(false);
        }
        if self.0.shared.is_lost() {
            return Err(lost());
        }
        let status = self.0.shared.device.poll(PollType::Poll).map_err(|_| lost())?;
        Ok(status.is_queue_empty())
    }
    fn synchronize(&self, after: u64) -> Result<(), DeviceError> {
        if !self.is_submitted(after) {
            let code = i64::try_from(after).unwrap_or(-1);
            return Err(DeviceError::new(Why::NotSubmitted, "wait for an open scope", code));
        }
        if self.0.shared.is_lost() {
            return Err(lost());
        }
        self.0.shared.device.poll(PollType::wait_indefinitely()).map(|_| ()).map_err(|_| lost())
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("id", &self.id).finish_non_exhaustive()
    }
}

impl fmt::Debug for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scopes").field("open", &self.0.numbers.lock().len()).finish_non_exhaustive()
    }
}
