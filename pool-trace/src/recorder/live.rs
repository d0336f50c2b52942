//! The buffers that are live, as a stream of records tells them.

use super::Event;
use crate::operation::Kind;
use std::collections::{HashMap, HashSet};

/// Live buffers by their addresses, and the numbers that allocations get.
#[derive(Debug, Default)]
pub(super) struct Live {
    buffers: HashMap<u64, Buffer>,
    next: u64,
}

/// A live buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffer {
    /// The number of its allocation.
    pub(super) id: u64,
    pub(super) event: Event,
}

/// The meaning of a record.
#[derive(Debug)]
pub(super) enum Meaning {
    /// The allocation of this number.
    Allocated(u64),
    /// The allocation of the second number, at an address whose free was lost: it ended the first.
    Replaced(u64, u64),
    /// The end of the allocation of this number.
    Freed(u64),
    /// The end of an allocation that was lost.
    Unknown,
    /// A refused request.
    Refused,
}

impl Live {
    /// Takes a record into account.
    pub(super) fn follow(&mut self, event: Event) -> Meaning {
        match event.kind {
            Kind::Free => match self.buffers.remove(&event.address) {
                Some(buffer) => Meaning::Freed(buffer.id),
                None => Meaning::Unknown,
            },
            Kind::Allocate => {
                let id = self.next;
                self.next += 1;
                match self.buffers.insert(event.address, Buffer { id, event }) {
                    Some(before) => Meaning::Replaced(before.id, id),
                    None => Meaning::Allocated(id),
                }
            }
            _ => Meaning::Refused,
        }
    }

    /// Gives each live buffer a new number, since the file knows the end of the old one.
    pub(super) fn renumber(&mut self) {
        for Buffer { event, .. } in self.all() {
            if let Some(buffer) = self.buffers.get_mut(&event.address) {
                buffer.id = self.next;
                self.next += 1;
            }
        }
    }

    /// Returns the number of live buffers.
    pub(super) fn len(&self) -> usize {
        self.buffers.len()
    }

    /// Returns the streams that live buffers were allocated for.
    pub(super) fn streams(&self) -> HashSet<u64> {
        self.buffers.values().map(|buffer| buffer.event.stream).collect()
    }

    /// Returns the live buffers, the oldest first.
    pub(super) fn all(&self) -> Vec<Buffer> {
        let mut buffers: Vec<_> = self.buffers.values().copied().collect();
        buffers.sort_by_key(|buffer| buffer.id);
        buffers
    }
}
