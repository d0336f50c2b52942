//! The last few items that came, in the order in which they came: most are taken again from here,
//! before they have cost a place in two lists.

/// How many. A search looks at all of them.
const MOST: usize = 16;
/// How many stay when it is full.
pub(super) const STAY: usize = MOST / 2;

#[derive(Debug)]
pub(super) struct Recent<K, T> {
    /// The newest last. All of them came after all that lies in stacks.
    entries: Vec<Entry<K, T>>,
}

#[derive(Debug)]
pub(super) struct Entry<K, T> {
    pub(super) bytes: u64,
    pub(super) key: K,
    pub(super) stamp: u64,
    pub(super) item: T,
}

impl<K: Copy + Eq, T> Recent<K, T> {
    pub(super) const fn new() -> Self {
        Self { entries: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.entries.len() >= MOST
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry<K, T>> {
        self.entries.iter()
    }

    /// Adds the newest.
    #[inline]
    pub(super) fn push(&mut self, entry: Entry<K, T>) {
        self.entries.push(entry);
    }

    /// Hands all but the newest `stay` to `work`, oldest first.
    pub(super) fn drain(&mut self, stay: usize, work: impl FnMut(Entry<K, T>)) {
        let older = self.entries.len().saturating_sub(stay);
        self.entries.drain(..older).for_each(work);
    }

    /// Takes the newest of this size and key that `accept`s.
    #[inline]
    pub(super) fn take(
        &mut self,
        key: K,
        bytes: u64,
        accept: impl Fn(&mut T) -> bool,
    ) -> Option<T> {
        let newest = self.entries.last_mut()?;
        if newest.bytes == bytes && newest.key == key && accept(&mut newest.item) {
            return self.entries.pop().map(|entry| entry.item);
        }
        self.search(key, bytes, accept)
    }

    fn search(&mut self, key: K, bytes: u64, accept: impl Fn(&mut T) -> bool) -> Option<T> {
        let is = |entry: &mut Entry<K, T>| {
            entry.bytes == bytes && entry.key == key && accept(&mut entry.item)
        };
        let at = self.entries.iter_mut().rposition(is)?;
        Some(self.entries.remove(at).item)
    }
}
