//! Bind groups that are cached: a pooled buffer is the same buffer each time, so the group that
//! binds it is too.
//!
//! A group goes when none of the last scopes has used it. So the cache is as large as what a few frames
//! use, and what a group keeps alive, such as the textures of a window that was resized, goes soon.

use crate::binding::Binding;
use lru::LruCache;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use wgpu::{BindGroup, BindGroupLayout, Buffer, Texture};

/// A layout, and what is bound at each number.
pub(crate) type Key = Arc<(BindGroupLayout, Vec<(u32, Binding)>)>;

/// The groups of one device, the least recently used first to go.
pub(crate) struct Groups {
    cached: LruCache<Key, Cached>,
    /// The groups that bind a buffer, which go before it does.
    of: HashMap<Buffer, HashSet<Key>>,
    hits: u64,
    misses: u64,
}

struct Cached {
    group: BindGroup,
    /// The number of scopes that were opened when it was used last.
    used: u64,
}

/// What the cache of bind groups has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BindGroupStats {
    /// Groups that are cached now.
    pub cached: usize,
    /// Requests that found a group.
    pub hits: u64,
    /// Requests that made one.
    pub misses: u64,
}

impl Default for Groups {
    fn default() -> Self {
        Self { cached: LruCache::unbounded(), of: HashMap::new(), hits: 0, misses: 0 }
    }
}

fn buffers(key: &Key) -> impl Iterator<Item = &Buffer> {
    key.1.iter().flat_map(|(_, binding)| binding.buffers())
}

impl Groups {
    /// Finds a group, for a use after so many scopes.
    pub(crate) fn find(&mut self, key: &Key, scopes: u64) -> Option<BindGroup> {
        let found = self.cached.get_mut(key)?;
        found.used = scopes;
        self.hits += 1;
        Some(found.group.clone())
    }

    /// Caches a group that was made after so many scopes.
    pub(crate) fn insert(&mut self, key: &Key, group: BindGroup, scopes: u64) {
        for buffer in buffers(key) {
            self.of.entry(buffer.clone()).or_default().insert(key.clone());
        }
        self.misses += 1;
        self.cached.push(key.clone(), Cached { group, used: scopes });
    }

    /// Removes the groups that none of the last scopes has used. The caller drops them without the lock.
    pub(crate) fn age(&mut self, scopes: u64, most: u64) -> Vec<Key> {
        let mut old = Vec::new();
        while let Some((_, group)) = self.cached.peek_lru()
            && group.used.saturating_add(most) < scopes
            && let Some((key, _)) = self.cached.pop_lru()
        {
            self.unlink(&key);
            old.push(key);
        }
        old
    }

    /// A buffer goes: its groups go first.
    pub(crate) fn forget_buffer(&mut self, buffer: &Buffer) {
        for key in self.of.remove(buffer).into_iter().flatten() {
            self.cached.pop(&key);
            self.unlink(&key);
        }
    }

    /// A texture goes: the groups that have a view of it go first.
    pub(crate) fn forget_texture(&mut self, texture: &Texture) {
        let shows = |key: &&Key| key.1.iter().any(|(_, binding)| binding.shows(texture));
        let keys: Vec<Key> =
            self.cached.iter().map(|(key, _)| key).filter(shows).cloned().collect();
        for key in keys {
            self.cached.pop(&key);
            self.unlink(&key);
        }
    }

    pub(crate) fn stats(&self) -> BindGroupStats {
        BindGroupStats { cached: self.cached.len(), hits: self.hits, misses: self.misses }
    }

    fn unlink(&mut self, key: &Key) {
        for buffer in buffers(key) {
            if let Some(keys) = self.of.get_mut(buffer) {
                keys.remove(key);
                if keys.is_empty() {
                    self.of.remove(buffer);
                }
            }
        }
    }
}
