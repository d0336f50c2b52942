//! Bind groups that are cached: a pooled buffer is the same buffer each time, so the group that
//! binds it is too.
//!
//! A group goes when none of the last scopes has used it. So the cache is as large as what a few frames
//! use, and what a group keeps alive, such as the textures of a window that was resized, goes soon. Where
//! no scopes are opened, a bound on the bytes of the groups and of what they keep alive does the same. A
//! group that is asked for again after it went by that bound raises it: the program uses so many.

use crate::binding::{Binding, Resource};
use crate::written::hash_of;
use lru::LruCache;
use pool_core::{KIB, MIB};
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;
use wgpu::{BindGroup, BindGroupLayout, Buffer, Texture};

/// What a group costs without its resources, about.
const GROUP: u64 = 16 * KIB;
/// The bound on the bytes of groups and of what they keep alive, at first.
const MOST: u64 = 128 * MIB;
/// Groups that are remembered after they went by that bound, at most.
const MOST_GONE: usize = 1 << 16;

/// A layout, and what is bound at each number. The tables look for it many times, and it is hashed once.
#[derive(Clone)]
pub(crate) struct Key(Arc<Hashed>);

struct Hashed {
    hash: u64,
    named: (BindGroupLayout, Vec<(u32, Binding)>),
}

impl Key {
    pub(crate) fn new(layout: &BindGroupLayout, bound: Vec<(u32, Binding)>) -> Self {
        let named = (layout.clone(), bound);
        Self(Arc::new(Hashed { hash: hash_of(&named), named }))
    }

    /// What is bound.
    pub(crate) fn bound(&self) -> &[(u32, Binding)] {
        &self.0.named.1
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        let (Self(one), Self(other)) = (self, other);
        Arc::ptr_eq(one, other) || one.hash == other.hash && one.named == other.named
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.hash);
    }
}

/// Takes the hash that a key has.
#[derive(Default)]
struct HashOfKey(u64);

impl Hasher for HashOfKey {
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
    fn write(&mut self, bytes: &[u8]) {
        self.0 = hash_of(&(self.0, bytes)); // no key calls this
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

type ByKey = BuildHasherDefault<HashOfKey>;

/// The groups of one device, the least recently used first to go.
pub(crate) struct Groups {
    cached: LruCache<Key, Cached, ByKey>,
    /// The groups that bind a resource, which go before it does.
    of: HashMap<Resource, HashSet<Key, ByKey>>,
    /// Bytes of all groups, and of the resources that the program has and the groups keep alive.
    bytes: u64,
    most: u64,
    /// Hashes of groups that went by the bound.
    gone: HashSet<u64>,
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
        Self {
            cached: LruCache::unbounded_with_hasher(ByKey::default()),
            of: HashMap::new(),
            bytes: 0,
            most: MOST,
            gone: HashSet::new(),
            hits: 0,
            misses: 0,
        }
    }
}

fn resources(key: &Key) -> impl Iterator<Item = (Resource, u64)> {
    key.bound().iter().flat_map(|(_, binding)| binding.resources())
}

impl Groups {
    /// Finds a group, for a use after so many scopes.
    pub(crate) fn find(&mut self, key: &Key, scopes: u64) -> Option<BindGroup> {
        let found = self.cached.get_mut(key)?;
        found.used = scopes;
        self.hits += 1;
        Some(found.group.clone())
    }

    /// Caches a group that was made after so many scopes. Returns those that go for it, which the caller drops
    /// without the lock.
    pub(crate) fn insert(&mut self, key: &Key, group: BindGroup, scopes: u64) -> Vec<Key> {
        self.misses += 1;
        if self.gone.contains(&key.0.hash) {
            self.most = self.most.saturating_mul(2);
            self.gone.clear();
        }
        let replaced = self.cached.push(key.clone(), Cached { group, used: scopes });
        if replaced.is_none() {
            self.bytes += GROUP;
            for (resource, bytes) in resources(key) {
                self.bytes += if self.of.contains_key(&resource) { 0 } else { bytes };
                self.of.entry(resource).or_default().insert(key.clone());
            }
        }
        let mut old = Vec::new();
        while self.bytes > self.most
            && self.cached.len() > 1
            && let Some((key, _)) = self.cached.pop_lru()
        {
            if self.gone.len() < MOST_GONE {
                self.gone.insert(key.0.hash);
            }
            self.unlink(&key);
            old.push(key);
        }
        old
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
        self.forget(&Resource::Buffer(buffer.clone()));
    }

    /// A texture goes: the groups that have a view of it go first.
    pub(crate) fn forget_texture(&mut self, texture: &Texture) {
        self.forget(&Resource::Texture(texture.clone()));
    }

    fn forget(&mut self, resource: &Resource) {
        let keys: Vec<Key> = self.of.get(resource).into_iter().flatten().cloned().collect();
        for key in keys {
            self.cached.pop(&key);
            self.unlink(&key);
        }
    }

    pub(crate) fn stats(&self) -> BindGroupStats {
        BindGroupStats { cached: self.cached.len(), hits: self.hits, misses: self.misses }
    }

    /// Forgets what a group has, which is cached no more.
    fn unlink(&mut self, key: &Key) {
        self.bytes -= GROUP;
        for (resource, bytes) in resources(key) {
            if let Some(keys) = self.of.get_mut(&resource)
                && keys.remove(key)
                && keys.is_empty()
            {
                self.of.remove(&resource);
                self.bytes -= bytes;
            }
        }
    }
}
