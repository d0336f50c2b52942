//! Memory that the driver's pools keep: chunks of device memory, and which parts of them are free.
//!
//! A freed part serves its own stream at once. It serves another stream if that stream is behind
//! the free by an event, if the free has passed, and, once the device has no memory left, behind a
//! wait that the driver inserts. These are the four ways of the CUDA Programming Guide, "Reuse
//! Policies", all on by default. A chunk goes back to the device when all of it is free and its
//! frees have passed: at a synchronisation, beyond the release threshold, or by a trim.

use crate::code::{self, Code};
use crate::state::{CAPACITY, DEVICES, Origin, Owned, State, said};
use pool_sim::engine::{Engine, Event};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

/// Chunks are multiples of this many bytes.
const CHUNK: u64 = 2 << 20;
/// Parts are multiples of this many bytes.
const PART: u64 = 512;

/// All memory pools, by handle. The default pool of a device has the device's number plus 1.
#[derive(Default)]
pub(crate) struct Stores(HashMap<usize, Store>);

pub(crate) struct Store {
    pub(crate) device: usize,
    pub(crate) threshold: u64,
    /// Devices that may use it, besides its own.
    pub(crate) access: HashSet<usize>,
    pub(crate) reserved: u64,
    pub(crate) used: u64,
    /// Whether the program has destroyed it. It is there until its last block is freed.
    pub(crate) destroyed: bool,
    chunks: BTreeMap<u64, u64>,
    free: BTreeMap<u64, Free>,
}

/// A free part of a chunk.
#[derive(Clone)]
struct Free {
    end: u64,
    /// The stream that the free was given to, and its place there. None: it has passed.
    after: Option<(usize, Event)>,
}

impl Store {
    pub(crate) fn new(device: usize) -> Self {
        Self {
            device,
            threshold: 0,
            access: HashSet::new(),
            reserved: 0,
            used: 0,
            destroyed: false,
            chunks: BTreeMap::new(),
            free: BTreeMap::new(),
        }
    }

    /// Notes which frees have passed, and makes one part of neighbours that have.
    fn coalesce_passed(&mut self, engine: &mut Engine) {
        for (start, part) in &mut self.free {
            let passed = part.after.as_ref().is_some_and(|(_, event)| engine.has_passed(event));
            if passed {
                engine.freed(&(*start..part.end));
                part.after = None;
            }
        }
        let parts = std::mem::take(&mut self.free);
        for (start, part) in parts {
            let starts_chunk = self.chunks.contains_key(&start);
            match self.free.last_entry() {
                Some(mut last)
                    if !starts_chunk
                        && last.get().end == start
                        && last.get().after.is_none()
                        && part.after.is_none() =>
                {
                    last.get_mut().end = part.end;
                }
                _ => {
                    self.free.insert(start, part);
                }
            }
        }
    }

    /// Takes the first free part that serves a stream. With `pressed`, any part behind a wait.
    fn take(
        &mut self,
        engine: &mut Engine,
        bytes: u64,
        on: usize,
        pressed: bool,
    ) -> Result<Option<u64>, Code> {
        let serves = |part: &Free| match &part.after {
            None => true,
            Some((stream, event)) => pressed || *stream == on || engine.is_after(on, event),
        };
        let found =
            self.free.iter().find(|(start, part)| part.end - **start >= bytes && serves(part));
        let Some((start, part)) = found.map(|(start, part)| (*start, part.clone())) else {
            return Ok(None);
        };
        if let Some((stream, event)) = &part.after
            && *stream != on
        {
            said(engine.wait(on, event))?;
        }
        self.free.remove(&start);
        if start + bytes < part.end {
            self.free.insert(start + bytes, part);
        }
        Ok(Some(start))
    }

    /// Returns the chunks of which all is free and has passed.
    fn idle_chunks(&self) -> Vec<Range<u64>> {
        let is_idle = |start: &u64, bytes: &u64| {
            let part = self.free.get(start);
            part.is_some_and(|part| part.after.is_none() && part.end == start + bytes)
        };
        let idle = self.chunks.iter().filter(|(start, bytes)| is_idle(start, bytes));
        idle.map(|(start, bytes)| *start..start + bytes).collect()
    }

    /// Gives chunks back to the device until at most `keep` bytes are left.
    fn give_back(&mut self, engine: &mut Engine, keep: u64) {
        self.coalesce_passed(engine);
        for chunk in self.idle_chunks() {
            if self.reserved <= keep {
                return;
            }
            // It began a block of the engine when it was taken.
            let _ = engine.free(chunk.start);
            self.chunks.remove(&chunk.start);
            self.free.remove(&chunk.start);
            self.reserved -= chunk.end - chunk.start;
        }
    }
}

impl Stores {
    pub(crate) fn insert(&mut self, handle: usize, store: Store) {
        self.0.insert(handle, store);
    }

    /// Returns a memory pool that the program has not destroyed.
    pub(crate) fn get(&mut self, handle: usize) -> Result<&mut Store, Code> {
        if let Some(device) = handle.checked_sub(1).filter(|device| *device < DEVICES) {
            return Ok(self.0.entry(handle).or_insert_with(|| Store::new(device)));
        }
        self.0.get_mut(&handle).filter(|store| !store.destroyed).ok_or(code::INVALID_VALUE)
    }

    pub(crate) fn may_use(&self, handle: usize, device: usize) -> bool {
        self.0.get(&handle).is_some_and(|store| store.access.contains(&device))
    }

    pub(crate) fn reserved(&self, device: usize) -> u64 {
        self.0.values().filter(|store| store.device == device).map(|store| store.reserved).sum()
    }

    /// Returns how many pools there are that the program has made.
    pub(crate) fn len(&self) -> usize {
        self.0.keys().filter(|handle| **handle > DEVICES).count()
    }
}

impl State {
    /// Takes a block of a memory pool in the order of a stream.
    pub(crate) fn take_from_store(
        &mut self,
        pool: usize,
        bytes: usize,
        on: usize,
    ) -> Result<u64, Code> {
        if bytes == 0 {
            return Err(code::INVALID_VALUE);
        }
        let whole = (bytes as u64).checked_next_multiple_of(PART).ok_or(code::OUT_OF_MEMORY)?;
        let device = self.stores.get(pool)?.device;
        let room = *CAPACITY - self.taken(device).min(*CAPACITY);
        let (engine, store) = (&mut self.engine, self.stores.get(pool)?);
        store.coalesce_passed(engine);
        let mut found = store.take(engine, whole, on, false)?;
        let chunk = whole.checked_next_multiple_of(CHUNK).ok_or(code::OUT_OF_MEMORY)?;
        if found.is_none() && chunk <= room {
            let start = said(engine.allocate(chunk))?;
            store.chunks.insert(start, chunk);
            store.free.insert(start, Free { end: start + chunk, after: None });
            store.reserved += chunk;
            found = store.take(engine, whole, on, false)?;
        }
        if found.is_none() {
            found = store.take(engine, whole, on, true)?;
        }
        let at = found.ok_or(code::OUT_OF_MEMORY)?;
        store.used += whole;
        self.memory.insert(at, Owned { bytes: whole, device, origin: Origin::Pool(pool) });
        // Usable after this point of the stream only.
        self.engine.kernel(on, at..at + whole);
        Ok(at)
    }

    /// Takes a block of a memory pool back, in the order of a stream.
    pub(crate) fn free_to_store(
        &mut self,
        pool: usize,
        part: Range<u64>,
        on: usize,
    ) -> Result<(), Code> {
        self.engine.kernel(on, part.clone());
        let event = said(self.engine.record(on))?;
        let store = self.stores.0.get_mut(&pool).ok_or(code::INVALID_VALUE)?;
        store.used -= part.end - part.start;
        store.free.insert(part.start, Free { end: part.end, after: Some((on, event)) });
        self.forget_destroyed();
        Ok(())
    }

    /// Gives back what memory pools keep beyond their thresholds, and what was freed late, as each
    /// synchronisation does.
    pub(crate) fn give_back_to_thresholds(&mut self) {
        for store in self.stores.0.values_mut() {
            let keep = if store.destroyed { 0 } else { store.threshold };
            store.give_back(&mut self.engine, keep);
        }
        self.forget_destroyed();
        for (at, event) in std::mem::take(&mut self.freed_late) {
            if self.engine.has_passed(&event) {
                // It is a block of the engine's, and nobody else frees it.
                let _ = self.engine.free(at);
                self.memory.remove(&at);
            } else {
                self.freed_late.push((at, event));
            }
        }
    }

    pub(crate) fn trim_store(&mut self, pool: usize, keep: u64) -> Result<(), Code> {
        self.stores.get(pool)?.give_back(&mut self.engine, keep);
        Ok(())
    }

    pub(crate) fn destroy_store(&mut self, pool: usize) -> Result<(), Code> {
        self.stores.get(pool)?.destroyed = true;
        self.forget_destroyed();
        Ok(())
    }

    /// Forgets pools that the program has destroyed, once all of their memory went back.
    pub(crate) fn forget_destroyed(&mut self) {
        let destroyed = self.stores.0.iter_mut().filter(|(_, store)| store.destroyed);
        let mut gone = Vec::new();
        for (handle, store) in destroyed {
            store.give_back(&mut self.engine, 0);
            if store.reserved == 0 {
                gone.push(*handle);
            }
        }
        for handle in gone {
            self.stores.0.remove(&handle);
            self.destroyed(handle);
        }
    }
}
