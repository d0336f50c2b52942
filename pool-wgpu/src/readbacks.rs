//! Memory for read-backs: chunks that a scope fills with copies and the CPU reads.
//!
//! wgpu maps a chunk after a submission that it refused, too: the chunk then shows old bytes. So
//! the commands stamp the end of the chunk with a nonce, and a chunk without it brought nothing.

use crate::arrival::{Arrival, Outcome};
use crate::idle::Spare;
use crate::nonces::{Nonce, Nonces};
use crate::shared::Shared;
use crate::written::hash_of;
use parking_lot::Mutex;
use pool_core::{DeviceError, KIB, MIB, Why};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use wgpu::{
    Buffer, BufferDescriptor, BufferUsages, CommandEncoder, MAP_ALIGNMENT, MapMode, SubmissionIndex,
};

/// Bytes at the end of a chunk.
const STAMP: u64 = Nonce::BYTES;
/// The first chunk of a scope has at least this many bytes, and each later one twice those of the
/// one before, up to a bound.
const LEAST: u64 = KIB;
const MOST: u64 = 4 * MIB;

/// Memory that results are read back through. Clones are the same.
///
/// [`Scope::read_back`](crate::Scope::read_back) copies into it and gives a
/// [`ReadBack`](crate::ReadBack), which is ready once the scope was submitted and its work is done.
/// The read-backs of a scope share chunks; a chunk serves again once its last read-back is dropped.
#[derive(Clone)]
pub struct ReadBacks(pub(crate) Arc<ReadMemory>);

/// The chunks of one purpose.
pub(crate) struct ReadMemory {
    pub(crate) shared: Arc<Shared>,
    /// Bytes of idle chunks that are kept.
    kept_bytes: u64,
    /// Bytes of all chunks.
    bytes: AtomicU64,
    idle: Mutex<Idle>,
    /// Chunks whose read-backs were dropped before they came.
    leaving: Mutex<Vec<Leaving>>,
    nonces: Nonces,
}

/// A chunk on its way that nobody will read.
struct Leaving {
    buffer: Buffer,
    arrival: Arc<Arrival>,
    elsewhere: bool,
}

/// Unmapped chunks that no read-back uses.
#[derive(Default)]
struct Idle {
    by_size: BTreeMap<u64, Vec<Buffer>>,
    bytes: u64,
}

/// A chunk that is filled, on its way, or read.
pub(crate) struct ReadChunk {
    of: Arc<ReadMemory>,
    /// Taken by the drop.
    buffer: Option<Buffer>,
    /// The bytes of the nonce of this use of the buffer.
    nonce: [u8; 8],
    pub(crate) arrival: Arc<Arrival>,
    /// Whether it is stamped, once a caller has looked.
    brought: OnceLock<bool>,
    /// Commands of the program fill it, which may run although the ones that map it were dropped.
    elsewhere: bool,
}

/// A chunk that a scope fills.
pub(crate) struct Filling {
    pub(crate) chunk: Arc<ReadChunk>,
    nonce: Nonce,
    used: u64,
    /// Where commands of the program copy the nonce to, and the number of their encoder.
    words: Vec<(u64, u64)>,
}

/// Read-backs begin at multiples of this many bytes: what may be mapped, and the largest texel.
const ROOM_ALIGNMENT: u64 = 2 * MAP_ALIGNMENT;

/// Words that are zeroed one by one; of more, all bytes up to the last.
const FEW_WORDS: usize = 16;

fn refused(call: &'static str) -> DeviceError {
    DeviceError::new(Why::Other, call)
}

impl ReadBacks {
    pub(crate) fn new(shared: Arc<Shared>, kept_bytes: u64) -> Self {
        let (bytes, idle, nonces) = (AtomicU64::new(0), Mutex::default(), Nonces::default());
        let leaving = Mutex::default();
        let memory = Arc::new(ReadMemory { shared, kept_bytes, bytes, idle, leaving, nonces });
        let of_all: Weak<ReadMemory> = Arc::downgrade(&memory);
        memory.shared.idle.add(of_all);
        Self(memory)
    }

    /// Bytes of all buffers, on their way or idle.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.0.take_in();
        self.0.bytes.load(Relaxed)
    }

    pub(crate) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.0.shared, shared)
    }

    /// A chunk with room for `bytes` bytes, behind one of `before` bytes in the same scope.
    pub(crate) fn fill(
        &self,
        bytes: u64,
        before: u64,
        elsewhere: bool,
    ) -> Result<Filling, DeviceError> {
        let nonce = self.0.nonces.next(&self.0.shared)?;
        let needed = bytes.checked_add(STAMP).ok_or(refused("read back"))?;
        let wanted = before.saturating_mul(2).clamp(LEAST, MOST).max(needed);
        self.0.take_in();
        // The lock is not held while a chunk is made: wgpu may run callbacks then.
        let idle = self.0.idle.lock().take(needed, wanted);
        let buffer = match idle {
            Some(buffer) => buffer,
            None => self.0.make(needed, wanted)?,
        };
        let chunk = Arc::new(ReadChunk {
            of: self.0.clone(),
            buffer: Some(buffer),
            nonce: nonce.bytes(),
            arrival: Arc::default(),
            brought: OnceLock::new(),
            elsewhere,
        });
        Ok(Filling { chunk, nonce, used: 0, words: Vec::new() })
    }
}

impl Idle {
    /// The smallest chunk that has room and is not four times too large.
    fn take(&mut self, needed: u64, wanted: u64) -> Option<Buffer> {
        let most = wanted.saturating_mul(4);
        let (size, _) = self.by_size.range(needed..=most).next()?;
        let size = *size;
        let chunks = self.by_size.get_mut(&size)?;
        let chunk = chunks.pop()?;
        if chunks.is_empty() {
            self.by_size.remove(&size);
        }
        self.bytes -= size;
        Some(chunk)
    }
}

impl ReadMemory {
    fn make(&self, needed: u64, wanted: u64) -> Result<Buffer, DeviceError> {
        // Rounded, so that it serves others too; not beyond what the device can have.
        let most = self.shared.limits.max_buffer_size;
        let size = match wanted.checked_next_power_of_two() {
            Some(rounded) if rounded <= most => rounded,
            _ => needed.next_multiple_of(MAP_ALIGNMENT),
        };
        let buffer = self.shared.create(&BufferDescriptor {
            label: Some("bucketpool read-back"),
            size,
            usage: BufferUsages::MAP_READ | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        })?;
        self.bytes.fetch_add(size, Relaxed);
        Ok(buffer)
    }

    /// Takes in the chunks that came after their last read-back was dropped.
    fn take_in(&self) {
        let came: Vec<_> = {
            let mut leaving = self.leaving.lock();
            leaving.extract_if(.., |chunk| chunk.arrival.outcome().is_some()).collect()
        };
        for chunk in came {
            self.came(chunk);
        }
    }

    /// A chunk that nobody reads: idle from now on, if the device cannot write to it any more.
    fn came(&self, Leaving { buffer, arrival, elsewhere }: Leaving) {
        let outcome = arrival.outcome();
        match outcome {
            _ if self.shared.is_lost() => {}
            Some(Outcome::Mapped) if self.shared.unmap(&buffer) => return self.give(buffer),
            Some(Outcome::NotSubmitted) if !elsewhere => return self.give(buffer),
            _ => {}
        }
        // The device is gone, or commands may still write to it: wgpu keeps it until then, and it is not used
        // again.
        self.bytes.fetch_sub(buffer.size(), Relaxed);
    }

    /// Keeps an idle chunk, if it is within the bound.
    fn give(&self, chunk: Buffer) {
        let size = chunk.size();
        let mut idle = self.idle.lock();
        if idle.bytes + size > self.kept_bytes {
            self.bytes.fetch_sub(size, Relaxed);
            return;
        }
        idle.bytes += size;
        idle.by_size.entry(size).or_default().push(chunk);
    }
}

impl Spare for ReadMemory {
    fn clear(&self) -> bool {
        self.take_in();
        let Idle { by_size, bytes } = std::mem::take(&mut *self.idle.lock());
        self.bytes.fetch_sub(bytes, Relaxed);
        !by_size.is_empty()
    }
}

impl Filling {
    /// Returns where `bytes` bytes begin, if there is room.
    pub(crate) fn room(&mut self, bytes: u64) -> Option<u64> {
        let at = self.used.next_multiple_of(ROOM_ALIGNMENT);
        let end = at.checked_add(bytes)?;
        let fits = end <= self.chunk.size() - STAMP;
        fits.then(|| {
            self.used = end;
            at
        })
    }

    /// The chunk takes no more read-backs.
    pub(crate) fn close(&mut self) {
        self.used = self.chunk.size();
    }

    /// Ends the chunk. In a browser `last` stamps it, which tells too late what it refuses.
    pub(crate) fn end(&self, last: &mut CommandEncoder) {
        if cfg!(target_family = "wasm") {
            self.stamp(last);
        }
    }

    fn stamp(&self, commands: &mut CommandEncoder) {
        self.set_word(commands, self.chunk.size() - STAMP);
    }

    /// Copies the nonce to `at` by these commands.
    pub(crate) fn set_word(&self, commands: &mut CommandEncoder, at: u64) {
        if let Some(buffer) = self.chunk.buffer() {
            self.nonce.copy(commands, buffer, at);
        }
    }

    /// Notes that these commands of the program copy the nonce to `at`.
    pub(crate) fn add_word(&mut self, commands: &CommandEncoder, at: u64) {
        self.words.push((at, hash_of(commands)));
    }

    /// Whether these commands, which did not run so far, fill all of the chunk. Then its words tell by themselves
    /// whether they ran: it needs no stamp.
    pub(crate) fn needs_no_stamp(&self, commands: &CommandEncoder) -> bool {
        let by = hash_of(commands);
        let all = self.words.iter().all(|(_, other)| *other == by);
        all && self.chunk.brought.set(true).is_ok()
    }

    /// Begins a chunk that commands of the program fill behind a prologue: the prologue zeroes its words,
    /// so that those which ran ahead of the prologue do not count, and stamps it.
    pub(crate) fn begin_elsewhere(&self, prologue: &mut CommandEncoder) {
        let Some(buffer) = self.chunk.buffer() else { return };
        match self.words.last() {
            Some(last) if self.words.len() > FEW_WORDS => {
                prologue.clear_buffer(buffer, 0, Some(last.0 + Nonce::BYTES));
            }
            _ => {
                for (word, _) in &self.words {
                    prologue.clear_buffer(buffer, *word, Some(Nonce::BYTES));
                }
            }
        }
        self.stamp(prologue);
    }

    /// Maps the chunk once these commands are submitted and done.
    pub(crate) fn map_after(&self, commands: &CommandEncoder) {
        let Some(buffer) = self.chunk.buffer() else { return };
        let tell = self.chunk.arrival.tell();
        commands.map_buffer_on_submit(buffer, MapMode::Read, .., move |mapped| {
            tell.mapped(&mapped);
        });
    }

    /// The commands that fill the chunk were submitted, or refused: it is mapped once they are done. Returns
    /// whether wgpu did not refuse that at once.
    pub(crate) fn submitted(self, by: &SubmissionIndex, accepted: bool) -> bool {
        let Some(buffer) = self.chunk.buffer().filter(|_| accepted) else {
            self.abandon();
            return false;
        };
        if !cfg!(target_family = "wasm") && self.words.is_empty() {
            let _ = self.chunk.brought.set(true);
        }
        self.chunk.arrival.submitted(by);
        let tell = self.chunk.arrival.tell();
        buffer.map_async(MapMode::Read, .., move |mapped| tell.mapped(&mapped));
        self.chunk.arrival.outcome() != Some(Outcome::Refused)
    }

    /// Its commands are dropped.
    pub(crate) fn abandon(self) {
        drop(self.chunk.arrival.tell());
    }

    pub(crate) fn size(&self) -> u64 {
        self.chunk.size()
    }

    pub(crate) fn is_of(&self, through: &ReadBacks) -> bool {
        Arc::ptr_eq(&self.chunk.of, &through.0)
    }
}

impl ReadChunk {
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.of.shared
    }

    pub(crate) fn buffer(&self) -> Option<&Buffer> {
        self.buffer.as_ref()
    }

    fn size(&self) -> u64 {
        self.buffer().map_or(STAMP, Buffer::size)
    }

    /// Whether its commands ran. The chunk is mapped.
    pub(crate) fn brought(&self) -> bool {
        *self.brought.get_or_init(|| self.has_word(self.size() - STAMP))
    }

    /// Whether commands have copied the nonce to `at`. The chunk is mapped.
    pub(crate) fn has_word(&self, at: u64) -> bool {
        let Some(buffer) = self.buffer() else { return false };
        let mapped = buffer.get_mapped_range(at - at % MAP_ALIGNMENT..at + Nonce::BYTES);
        mapped.is_ok_and(|bytes| bytes.ends_with(&self.nonce))
    }
}

impl Drop for ReadChunk {
    fn drop(&mut self) {
        let Some(buffer) = self.buffer.take() else { return };
        let (arrival, elsewhere) = (self.arrival.clone(), self.elsewhere);
        let chunk = Leaving { buffer, arrival, elsewhere };
        match chunk.arrival.outcome() {
            None if !self.of.shared.is_lost() => self.of.leaving.lock().push(chunk),
            _ => self.of.came(chunk),
        }
    }
}

impl fmt::Debug for ReadBacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadBacks").field("reserved_bytes", &self.reserved_bytes()).finish()
    }
}
