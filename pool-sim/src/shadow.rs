//! The last write of each byte and the reads since, and the operations that each was ordered after.
//!
//! A read that is not ordered after the write before it is a hazard, and so is a write that is not
//! ordered after the uses before it, even if it did no damage this time.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// For each stream, the number of its operations that a use or an event is ordered after; streams
/// without an entry have 0. Ordered by stream.
///
/// The host has a clock too, and work that it gives to a stream is ordered after what it has seen
/// done. So the other clocks keep only what is beyond the host's ([`VectorClock::forget`]), and each
/// question about an order asks both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct VectorClock(Vec<(usize, u64)>);

impl VectorClock {
    pub(super) fn of(&self, stream: usize) -> u64 {
        self.place(stream).map_or(0, |at| self.0[at].1)
    }

    /// Returns where the entry of a stream is, or where it would be.
    fn place(&self, stream: usize) -> Result<usize, usize> {
        self.0.binary_search_by_key(&stream, |(stream, _)| *stream)
    }

    pub(super) fn raise(&mut self, stream: usize, to: u64) {
        match self.place(stream) {
            Ok(at) => self.0[at].1 = self.0[at].1.max(to),
            Err(at) if to > 0 => self.0.insert(at, (stream, to)),
            Err(_) => {}
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        for (stream, operation) in &other.0 {
            self.raise(*stream, *operation);
        }
    }

    /// Drops what the host has seen done.
    pub(super) fn forget(&mut self, host: &Self) {
        self.0.retain(|(stream, operation)| host.of(*stream) < *operation);
    }

    /// Returns the number of entries.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// What an operation does with memory, and what reports call it.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    pub(super) what: &'static str,
    writes: bool,
}

impl Access {
    /// An operation that writes, and may read.
    #[must_use]
    pub const fn writing(what: &'static str) -> Self {
        Self { what, writes: true }
    }

    /// An operation that only reads.
    #[must_use]
    pub const fn reading(what: &'static str) -> Self {
        Self { what, writes: false }
    }
}

/// One operation of a stream that touched memory.
#[derive(Debug)]
pub(super) struct ShadowUse {
    pub(super) stream: usize,
    pub(super) operation: u64,
    pub(super) access: Access,
    /// Operations that the use is ordered after, itself included, beyond what the host had seen.
    pub(super) after: VectorClock,
}

impl fmt::Display for ShadowUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (operation {} of stream {}", self.access.what, self.operation, self.stream)?;
        let others = || self.after.0.iter().filter(|(stream, _)| *stream != self.stream);
        if others().next().is_none() {
            return f.write_str(", after nothing of others)");
        }
        for (stream, operation) in others() {
            write!(f, ", after {operation} of stream {stream}")?;
        }
        f.write_str(")")
    }
}

/// The last write of some bytes, and the last read of each stream since.
#[derive(Clone, Debug, Default)]
struct Uses {
    write: Option<Arc<ShadowUse>>,
    reads: Vec<Arc<ShadowUse>>,
}

impl Uses {
    /// The uses that a new one must be ordered after.
    fn before(&self, access: Access) -> impl Iterator<Item = &Arc<ShadowUse>> {
        let reads = if access.writes { self.reads.as_slice() } else { &[] };
        self.write.iter().chain(reads)
    }

    /// The uses after a new one. Reads that the host has seen done are before all that follows.
    fn followed_by(mut self, now: &Arc<ShadowUse>, host: &VectorClock) -> Self {
        if now.access.writes {
            return Self { write: Some(now.clone()), reads: Vec::new() };
        }
        let is_open = |read: &ShadowUse| host.of(read.stream) < read.operation;
        self.reads.retain(|read| read.stream != now.stream && is_open(read));
        self.reads.push(now.clone());
        self
    }
}

/// The uses of each byte. Ranges do not overlap; each has its end and its uses.
#[derive(Debug, Default)]
pub(super) struct Shadow {
    uses: BTreeMap<u64, (u64, Uses)>,
    pub(super) hazards: Vec<String>,
}

impl Shadow {
    /// Removes and returns the uses of a range, the last bytes first. Uses that reach beyond the
    /// range are split.
    fn take(&mut self, bytes: &Range<u64>) -> Vec<(Range<u64>, Uses)> {
        let mut taken = Vec::new();
        while let Some((start, (end, by))) = self.uses.range(..bytes.end).next_back() {
            let (start, end, by) = (*start, *end, by.clone());
            if end <= bytes.start {
                break;
            }
            self.uses.remove(&start);
            if end > bytes.end {
                self.uses.insert(bytes.end, (end, by.clone()));
            }
            if start < bytes.start {
                self.uses.insert(start, (bytes.start, by.clone()));
            }
            taken.push((start.max(bytes.start)..end.min(bytes.end), by));
        }
        taken
    }

    /// Records a use of a range, and a hazard if it is not ordered after the uses before. It is
    /// ordered after what the `host` has seen done.
    pub(super) fn uses(&mut self, bytes: Range<u64>, now: ShadowUse, host: &VectorClock) {
        if bytes.is_empty() {
            return;
        }
        let now = Arc::new(now);
        let mut rest = bytes.end; // bytes from here on are recorded
        for (part, before) in self.take(&bytes) {
            let Range { start, end } = part;
            for before in before.before(now.access) {
                let after = now.after.of(before.stream).max(host.of(before.stream));
                if after < before.operation {
                    self.hazards.push(format!("bytes {start}..{end}: {now} is not after {before}"));
                }
            }
            if now.access.writes {
                continue;
            }
            self.put(end..rest, Uses::default().followed_by(&now, host));
            self.put(start..end, before.followed_by(&now, host));
            rest = start;
        }
        self.put(bytes.start..rest, Uses::default().followed_by(&now, host));
    }

    fn put(&mut self, bytes: Range<u64>, uses: Uses) {
        if !bytes.is_empty() {
            self.uses.insert(bytes.start, (bytes.end, uses));
        }
    }

    /// Returns the number of entries of all clocks.
    #[cfg(test)]
    pub(super) fn clock_entries(&self) -> usize {
        let uses = self.uses.values().flat_map(|(_, uses)| uses.write.iter().chain(&uses.reads));
        uses.map(|one| one.after.len()).sum()
    }

    /// Records that a range is freed after operations up to `done` of each stream have run. Freeing
    /// memory that a stream still uses is a hazard, as a use out of order is.
    pub(super) fn freed(&mut self, bytes: &Range<u64>, done: impl Fn(usize) -> u64) {
        for (part, before) in self.take(bytes) {
            let Range { start, end } = part;
            for before in before.before(Access::writing("free")) {
                if done(before.stream) < before.operation {
                    self.hazards
                        .push(format!("bytes {start}..{end}: given back before {before} ran"));
                }
            }
        }
    }
}
