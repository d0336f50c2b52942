//! Bind groups that are cached: a pooled buffer is the same buffer each time, so the group that
//! binds it is too.

use crate::binding::Binding;
use lru::LruCache;
use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;
use std::sync::Arc;
use wgpu::{BindGroup, BindGroupLayout, Buffer, TextureView};

/// Groups that are cached unless the program says otherwise.
const DEFAULT: NonZeroUsize = NonZeroUsize::new(256).unwrap();

/// A layout, and what is bound at each number.
pub(crate) type Key = Arc<(BindGroupLayout, Vec<(u32, Binding)>)>;

/// The groups of one device, the least recently used first to go.
pub(crate) struct Groups {
    cached: LruCache<Key, BindGroup>,
    /// The groups that bind a buffer, or a view of a texture.
    of: HashMap<Held, HashSet<Key>>,
}

/// A resource that goes before the groups that bind it would.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Held {
    Buffer(Buffer),
    Texture(TextureView),
}

impl Held {
    fn of(binding: &Binding) -> Option<Self> {
        match binding {
            Binding::Buffer(buffer, ..) => Some(Self::Buffer(buffer.clone())),
            Binding::Texture(view) => Some(Self::Texture(view.clone())),
            Binding::Sampler(_) => None,
        }
    }
}

impl Default for Groups {
    fn default() -> Self {
        Self { cached: LruCache::new(DEFAULT), of: HashMap::new() }
    }
}

fn held(key: &Key) -> impl Iterator<Item = Held> {
    key.1.iter().filter_map(|(_, binding)| Held::of(binding))
}

impl Groups {
    pub(crate) fn find(&mut self, key: &Key) -> Option<BindGroup> {
        self.cached.get(key).cloned()
    }

    /// Caches a group, and lets the least recently used go for it.
    pub(crate) fn insert(&mut self, key: &Key, group: BindGroup) {
        for held in held(key) {
            self.of.entry(held).or_default().insert(key.clone());
        }
        if let Some((old, _)) = self.cached.push(key.clone(), group)
            && old != *key
        {
            self.unlink(&old);
        }
    }

    /// A buffer goes: its groups go first.
    pub(crate) fn forget_buffer(&mut self, buffer: &Buffer) {
        self.forget_held(&Held::Buffer(buffer.clone()));
    }

    /// A resource goes: its groups go first.
    pub(crate) fn forget(&mut self, binding: &Binding) {
        if let Some(held) = Held::of(binding) {
            self.forget_held(&held);
        }
    }

    fn forget_held(&mut self, held: &Held) {
        for key in self.of.remove(held).into_iter().flatten() {
            self.cached.pop(&key);
            self.unlink(&key);
        }
    }

    /// How many are cached at most from now on.
    pub(crate) fn limit(&mut self, most: NonZeroUsize) {
        while self.cached.len() > most.get() {
            if let Some((old, _)) = self.cached.pop_lru() {
                self.unlink(&old);
            }
        }
        self.cached.resize(most);
    }

    pub(crate) fn len(&self) -> usize {
        self.cached.len()
    }

    fn unlink(&mut self, key: &Key) {
        for held in held(key) {
            if let Some(keys) = self.of.get_mut(&held) {
                keys.remove(key);
                if keys.is_empty() {
                    self.of.remove(&held);
                }
            }
        }
    }
}
