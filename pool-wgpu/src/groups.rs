//! Bind groups that are kept: a pooled buffer is the same buffer each time, so the group that binds
//! it is too.

use std::collections::HashMap;
use wgpu::{BindGroup, BindGroupLayout, Buffer};

/// Groups that are kept at most.
const MOST: usize = 256;

/// A layout, and what is bound: for each binding its number, buffer, offset and bytes.
pub(crate) type Key = (BindGroupLayout, Vec<(u32, Buffer, u64, u64)>);

/// The groups of one device, the least recently used first to go.
#[derive(Default)]
pub(crate) struct Groups {
    /// And when each was used last.
    kept: HashMap<Key, (BindGroup, u64)>,
    /// Rises with each look.
    turn: u64,
}

impl Groups {
    pub(crate) fn find(&mut self, key: &Key) -> Option<BindGroup> {
        self.turn += 1;
        let (group, used) = self.kept.get_mut(key)?;
        *used = self.turn;
        Some(group.clone())
    }

    /// Keeps a group, and lets the least recently used go for it.
    pub(crate) fn keep(&mut self, key: Key, group: BindGroup) {
        if self.kept.len() >= MOST {
            let oldest = self.kept.iter().min_by_key(|(_, (_, used))| *used);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.kept.remove(&oldest);
            }
        }
        self.kept.insert(key, (group, self.turn));
    }

    /// A buffer goes: its groups go first.
    pub(crate) fn forget(&mut self, buffer: &Buffer) {
        if !self.kept.is_empty() {
            self.kept.retain(|(_, bound), _| !bound.iter().any(|(_, bound, ..)| bound == buffer));
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.kept.len()
    }
}
