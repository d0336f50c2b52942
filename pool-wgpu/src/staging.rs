//! Staging memory: chunks that are mapped when they are at rest, so that writing to one is a copy
//! by the CPU and nothing else.

use crate::arrival::{Arrival, Ended, Outcome, Tell};
use crate::idle::{Aged, Spare};
use crate::looks::look;
use crate::shared::Shared;
use parking_lot::Mutex;
use pool_core::port::Limit;
use pool_core::{DeviceError, Why};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use wgpu::{
    Buffer, BufferAsyncError, BufferDescriptor, BufferUsages, COPY_BUFFER_ALIGNMENT,
    CommandEncoder, MAP_ALIGNMENT, MapMode, SubmissionIndex, WriteOnly,
};

/// A bound on staging memory that scopes and the device have, in bytes, and what an upload that
/// would pass it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlight {
    /// There is no bound.
    Unbounded,
    /// The upload blocks the host until the device has done earlier copies. Where those are all of
    /// scopes that are still open, it is refused; also, after a second, inside of a callback of wgpu that
    /// runs before those that bring them.
    Wait(u64),
    /// The upload is refused.
    Refuse(u64),
}

impl InFlight {
    /// The bound in bytes.
    fn most(self) -> u64 {
        match self {
            Self::Unbounded => u64::MAX,
            Self::Wait(most) | Self::Refuse(most) => most,
        }
    }
}

/// Chunks of one purpose.
pub(crate) struct Staging {
    pub(crate) shared: Arc<Shared>,
    usages: BufferUsages,
    /// Commands use the chunks themselves, until their scope ends.
    pub(crate) bound: bool,
    chunk_bytes: u64,
    /// Bytes of chunks that are kept at rest; beyond that the oldest go, with the next call.
    kept_bytes: u64,
    in_flight: InFlight,
    /// Bytes of chunks that there are, at work or at rest.
    bytes: AtomicU64,
    /// Bytes that were mapped to be written.
    mapped_bytes: AtomicU64,
    chunks: Mutex<Resting>,
    /// Those at work whose mapping has ended.
    ended: Arc<Ended>,
}

/// Chunks that no scope has.
#[derive(Default)]
struct Resting {
    /// Those that the device uses, by a number, the oldest first, and how their mapping ends.
    at_work: BTreeMap<u64, (Buffer, Arc<Arrival>)>,
    /// The last number.
    last: u64,
    /// Those that are mapped, by their sizes.
    at_rest: Aged<Buffer>,
    /// Bytes of those.
    bytes_there: u64,
}

/// A chunk that a scope fills from the front. It is mapped.
pub(crate) struct Chunk {
    of: Arc<Staging>,
    pub(crate) buffer: Buffer,
    used: u64,
    /// Whether commands of the program read it.
    pub(crate) elsewhere: bool,
}

/// A chunk that the device may use.
pub(crate) struct Unmapped {
    of: Arc<Staging>,
    /// Taken when it is mapped again.
    buffer: Option<Buffer>,
    /// Whether commands of the program read it.
    elsewhere: bool,
}

impl Resting {
    fn rest(&mut self, chunk: Buffer) {
        self.bytes_there += chunk.size();
        self.at_rest.push(chunk.size(), chunk);
    }

    /// Takes the smallest chunk of these sizes.
    fn take(&mut self, bytes: u64, room: u64) -> Option<Buffer> {
        look();
        let (place, _) = self.at_rest.of(bytes..=room).next()?;
        let chunk = self.at_rest.remove(place)?;
        self.bytes_there -= chunk.size();
        Some(chunk)
    }

    /// Takes the oldest chunk if there are more than so many bytes.
    fn take_beyond(&mut self, kept: u64) -> Option<Buffer> {
        let (place, _) = self.at_rest.oldest().filter(|_| self.bytes_there > kept)?;
        let chunk = self.at_rest.remove(place)?;
        self.bytes_there -= chunk.size();
        Some(chunk)
    }

    /// Adds a chunk that the device uses until its mapping ends, which `map` asks for.
    fn work(
        &mut self,
        (chunk, arrival): (Buffer, Arc<Arrival>),
        ended: &Arc<Ended>,
        map: impl FnOnce(&Buffer, Tell),
    ) {
        self.last += 1;
        map(&chunk, arrival.tell().collected(ended, self.last));
        self.at_work.insert(self.last, (chunk, arrival));
    }
}

impl Staging {
    /// Chunks that copies read, or that `usages` bind.
    pub(crate) fn new(
        shared: Arc<Shared>,
        usages: Option<BufferUsages>,
        (chunk_bytes, kept_bytes): (u64, u64),
        in_flight: InFlight,
    ) -> Arc<Self> {
        let (bound, usages) = (usages.is_some(), usages.unwrap_or(BufferUsages::COPY_SRC));
        let (bytes, mapped_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        let (chunks, ended) = (Mutex::default(), Arc::default());
        let most = shared.limits.max_buffer_size / MAP_ALIGNMENT * MAP_ALIGNMENT;
        let chunk_bytes = chunk_bytes.min(most).next_multiple_of(MAP_ALIGNMENT).max(MAP_ALIGNMENT);
        let staging = Arc::new(Self {
            shared,
            usages,
            bound,
            chunk_bytes,
            kept_bytes,
            in_flight,
            bytes,
            mapped_bytes,
            chunks,
            ended,
        });
        let of_all: Weak<Self> = Arc::downgrade(&staging);
        staging.shared.idle.add(of_all);
        staging
    }

    /// Bytes of all chunks: those that scopes fill, those at work and those at rest.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        let mut chunks = self.chunks.lock();
        self.take_in(&mut chunks);
        self.trim(&mut chunks);
        self.bytes.load(Relaxed)
    }

    /// Whether an upload may take so many bytes of staging memory where fewer do: none are too many in flight, and
    /// no chunk becomes larger for it.
    pub(crate) fn may_take(&self, bytes: u64) -> bool {
        self.in_flight == InFlight::Unbounded && bytes <= self.chunk_bytes
    }

    pub(crate) fn mapped_bytes(&self) -> u64 {
        self.mapped_bytes.load(Relaxed)
    }

    /// A chunk with room for `bytes` bytes: one at rest, else a new one.
    pub(crate) fn chunk(self: &Arc<Self>, bytes: u64) -> Result<Chunk, DeviceError> {
        self.shared.living()?;
        let buffer = self.take(bytes).or_else(|| {
            // Callbacks run inside a poll.
            let is_any_at_work = !self.chunks.lock().at_work.is_empty();
            is_any_at_work.then(|| self.shared.poll());
            self.take(bytes)
        });
        let buffer = match buffer {
            Some(buffer) => buffer,
            None => self.make(bytes)?,
        };
        Ok(Chunk { of: self.clone(), buffer, used: 0, elsewhere: false })
    }

    /// The smallest chunk at rest that has room and does not pass the bound.
    fn take(&self, bytes: u64) -> Option<Buffer> {
        let mut chunks = self.chunks.lock();
        self.take_in(&mut chunks);
        let room = self.in_flight.most() - self.in_flight_bytes(&chunks).min(self.in_flight.most());
        let best = chunks.take(bytes, room);
        self.trim(&mut chunks);
        best
    }

    /// A new chunk, or one that the device gives back meanwhile, where a bound says so.
    fn make(&self, bytes: u64) -> Result<Buffer, DeviceError> {
        let too_large = DeviceError::new(Why::TooLarge, "a staging buffer");
        let size = bytes.checked_next_multiple_of(MAP_ALIGNMENT).ok_or(too_large)?;
        let size = size.max(self.chunk_bytes);
        let most = self.in_flight.most();
        let refused = |call| {
            Err(DeviceError::new(Why::Limit(Limit::Device), call)
                .code(i64::try_from(most).unwrap_or(i64::MAX)))
        };
        if size > most {
            let call = "a chunk of staging memory larger than its `InFlight` (the code)";
            return refused(call);
        }
        loop {
            if self.reserve(size, most) {
                return self.fresh(size);
            }
            if matches!(self.in_flight, InFlight::Refuse(_)) {
                let call = "stage data while open scopes and the device have all of `InFlight::Refuse` (the code)";
                return refused(call);
            }
            let came = self.wait_for_oldest()?;
            if let Some(buffer) = self.take(bytes) {
                return Ok(buffer);
            }
            if !came {
                let call = "stage data while open scopes have all of `InFlight::Wait` (the code), which no wait \
                            brings back; or inside of a callback";
                return refused(call);
            }
        }
    }

    /// Bytes of the chunks that scopes fill or the device uses.
    fn in_flight_bytes(&self, chunks: &Resting) -> u64 {
        self.bytes.load(Relaxed) - chunks.bytes_there
    }

    /// Counts a chunk that is about to be made, unless scopes and the device would then have more
    /// than `most` bytes.
    fn reserve(&self, size: u64, most: u64) -> bool {
        let mut chunks = self.chunks.lock();
        self.take_in(&mut chunks);
        self.trim(&mut chunks);
        let fits = self.in_flight_bytes(&chunks).saturating_add(size) <= most;
        if fits {
            self.bytes.fetch_add(size, Relaxed);
        }
        fits
    }

    /// Waits for the chunk that the device has longest. Returns whether one came: not if all are of
    /// scopes that are not submitted.
    fn wait_for_oldest(&self) -> Result<bool, DeviceError> {
        if cfg!(target_family = "wasm") {
            return Ok(false);
        }
        let oldest = {
            let mut chunks = self.chunks.lock();
            self.take_in(&mut chunks);
            let arrivals =
                || chunks.at_work.values().map(|(_, arrival)| arrival).inspect(|_| look());
            arrivals().find(|arrival| arrival.is_submitted()).or(arrivals().next()).cloned()
        };
        match oldest {
            Some(arrival) => Ok(arrival.wait_for_device(&self.shared, false)?.is_some()),
            None => Ok(false),
        }
    }

    /// Makes a chunk that is counted already.
    fn fresh(&self, size: u64) -> Result<Buffer, DeviceError> {
        let made = self.shared.create(&BufferDescriptor {
            label: Some("bucketpool staging"),
            size,
            usage: BufferUsages::MAP_WRITE | self.usages,
            mapped_at_creation: true,
        });
        made.inspect_err(|_| {
            self.bytes.fetch_sub(size, Relaxed);
        })
    }

    /// Takes in the chunks whose mapping has ended.
    fn take_in(&self, chunks: &mut Resting) {
        for (number, how) in self.ended.collect() {
            look();
            let Some((chunk, _)) = chunks.at_work.remove(&number) else { continue };
            match how {
                Outcome::Mapped => chunks.rest(chunk),
                Outcome::NotSubmitted => {
                    self.map_again(chunks, chunk, None);
                }
                Outcome::Refused => self.forget(&chunk),
            }
        }
    }

    /// Asks for a chunk to be mapped. `by` is the submission that uses it, if there is one. Returns whether wgpu
    /// did not refuse that at once.
    fn map_again(&self, chunks: &mut Resting, chunk: Buffer, by: Option<&SubmissionIndex>) -> bool {
        let arrival = Arc::<Arrival>::default();
        if let Some(by) = by {
            arrival.submitted(by);
        }
        chunks.work((chunk, arrival.clone()), &self.ended, |chunk, tell| {
            chunk.map_async(MapMode::Write, .., move |mapped| tell.mapped(&mapped));
        });
        arrival.outcome() != Some(Outcome::Refused)
    }

    /// Lets the oldest go beyond what is kept.
    fn trim(&self, chunks: &mut Resting) {
        while let Some(oldest) = chunks.take_beyond(self.kept_bytes) {
            self.forget(&oldest);
        }
    }

    /// A chunk goes, and the bind groups that have it.
    fn forget(&self, chunk: &Buffer) {
        self.bytes.fetch_sub(chunk.size(), Relaxed);
        if self.bound {
            self.shared.groups.lock().forget_buffer(chunk);
        }
    }

    /// Gives a mapped chunk back that no commands use.
    fn rest(&self, buffer: Buffer) {
        let mut chunks = self.chunks.lock();
        chunks.rest(buffer);
        self.trim(&mut chunks);
    }
}

impl Spare for Staging {
    fn clear(&self) -> bool {
        let mut chunks = self.chunks.lock();
        self.take_in(&mut chunks);
        chunks.bytes_there = 0;
        chunks.at_rest.take_all().inspect(|chunk| self.forget(chunk)).count() > 0
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let Resting { at_work, mut at_rest, .. } = std::mem::take(self.chunks.get_mut());
        let at_work = at_work.into_values().map(|(chunk, _)| chunk);
        at_work.chain(at_rest.take_all()).for_each(|chunk| self.forget(&chunk));
    }
}

fn inside(at: u64, end: u64) -> Range<usize> {
    let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
    place(at)..place(end)
}

impl Chunk {
    pub(crate) fn is_of(&self, staging: &Arc<Staging>) -> bool {
        Arc::ptr_eq(&self.of, staging)
    }

    /// Where `bytes` bytes begin and end, at the next multiple of `alignment` behind what was
    /// written before; `None` if there is no room.
    fn room(&self, bytes: u64, alignment: u64) -> Option<(u64, u64)> {
        let at = self.used.next_multiple_of(alignment);
        let end = at.checked_add(bytes).filter(|end| *end <= self.buffer.size())?;
        Some((at, end))
    }

    pub(crate) fn has_room(&self, bytes: u64, alignment: u64) -> bool {
        self.room(bytes, alignment).is_some()
    }

    /// Lends room for `bytes` bytes behind what was written before. Returns where it begins, or
    /// `None` if there is none.
    pub(crate) fn write<R>(
        &mut self,
        bytes: u64,
        alignment: u64,
        write: impl FnOnce(WriteOnly<'_, [u8]>) -> R,
    ) -> Result<Option<(u64, R)>, DeviceError> {
        let Some((at, end)) = self.room(bytes, alignment) else { return Ok(None) };
        self.used = end;
        // wgpu maps at multiples of 8 bytes, and whole words. Only this part is mapped, because a
        // browser copies what is; and not for longer, because wgpu frees the memory of a lost
        // device under a mapping.
        let first = at - at % MAP_ALIGNMENT;
        let words = end.next_multiple_of(COPY_BUFFER_ALIGNMENT);
        self.of.mapped_bytes.fetch_add(words - first, Relaxed);
        let mapped = self.buffer.get_mapped_range_mut(first..words);
        let refused = DeviceError::new(Why::Other, "map a staging buffer");
        let mut mapped = mapped.map_err(|_| self.of.shared.lost_or(refused))?;
        Ok(Some((at, write(mapped.slice(inside(at - first, end - first))))))
    }

    /// Unmaps the chunk, which must happen before the commands that use it are submitted.
    pub(crate) fn unmap(self) -> Unmapped {
        let Self { of, buffer, elsewhere, .. } = self;
        of.shared.unmap(&buffer);
        Unmapped { of, buffer: Some(buffer), elsewhere }
    }

    /// Gives it back; the commands of the scope that would have used it are never submitted. Those of the
    /// program may be: what they read is not used again.
    pub(crate) fn give_back(self) {
        if self.elsewhere {
            return drop(self.unmap());
        }
        let Self { of, buffer, .. } = self;
        match of.shared.is_lost() {
            true => of.forget(&buffer),
            false => of.rest(buffer),
        }
    }
}

impl Unmapped {
    /// Whether only copies of the scope read it: then it is not needed once those are submitted.
    pub(crate) fn is_staging(&self) -> bool {
        !self.of.bound && !self.elsewhere
    }

    /// Whether commands of the program read it.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.elsewhere
    }

    /// The buffer, unless the device is lost.
    fn take(&mut self) -> Option<Buffer> {
        if self.of.shared.is_lost() { None } else { self.buffer.take() }
    }

    /// At rest once the submission that uses it is done. Returns whether wgpu did not refuse that at once.
    pub(crate) fn map_again(mut self, by: Option<&SubmissionIndex>) -> bool {
        let Some(buffer) = self.take() else { return false };
        let mut chunks = self.of.chunks.lock();
        self.of.take_in(&mut chunks);
        self.of.map_again(&mut chunks, buffer, by)
    }

    /// At rest once these commands were submitted and are done.
    pub(crate) fn map_after(mut self, commands: &CommandEncoder) {
        let Some(buffer) = self.take() else { return };
        self.of.chunks.lock().work((buffer, Arc::default()), &self.of.ended, |chunk, tell| {
            let end = move |mapped: Result<(), BufferAsyncError>| tell.mapped(&mapped);
            commands.map_buffer_on_submit(chunk, MapMode::Write, .., end);
        });
    }
}

impl Drop for Unmapped {
    /// One that is not mapped again is gone: the device is lost, or a submission panicked.
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.of.forget(&buffer);
        }
    }
}
