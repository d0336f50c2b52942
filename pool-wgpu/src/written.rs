//! Which bytes of which buffers: what was lent, and what was uploaded.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::ops::Range;

/// Ranges of bytes of buffers, by the number of the buffer. Those that overlap or follow each other are
/// one: the end of each by its buffer and its beginning.
#[derive(Default)]
pub(crate) struct Ranges(BTreeMap<(u64, u64), u64>);

/// A number for a buffer or a texture, by which it is found again.
pub(crate) fn hash_of(named: &impl Hash) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(named)
}

impl Ranges {
    /// Adds a range. One of no bytes counts as its first byte.
    pub(crate) fn add(&mut self, of: u64, bytes: &Range<u64>) {
        let (mut at, mut end) = (bytes.start, bytes.end.max(bytes.start + 1));
        while let Some((&key, &last)) = self.0.range((of, 0)..=(of, end)).next_back()
            && last >= at
        {
            if key.1 <= at && last >= end {
                return; // it is there
            }
            self.0.remove(&key);
            (at, end) = (at.min(key.1), end.max(last));
        }
        self.0.insert((of, at), end);
    }

    /// Whether some of these bytes are in it.
    pub(crate) fn has(&self, of: u64, bytes: &Range<u64>) -> bool {
        let before = self.0.range((of, 0)..(of, bytes.end)).next_back();
        before.is_some_and(|(_, end)| *end > bytes.start)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::Ranges;

    #[test]
    fn ranges_are_unions_whatever_their_order() {
        let orders =
            [[(0, 4), (8, 12), (4, 8)], [(8, 12), (4, 8), (0, 4)], [(0, 12), (2, 3), (4, 8)]];
        for order in orders {
            let mut ranges = Ranges::default();
            for (at, end) in order {
                ranges.add(1, &(at..end));
            }
            assert_eq!(ranges.0.len(), 1, "{order:?}");
            assert!(ranges.has(1, &(0..1)) && ranges.has(1, &(11..20)) && ranges.has(1, &(5..6)));
            assert!(
                !ranges.has(1, &(12..20)) && !ranges.has(2, &(0..12)) && !ranges.has(0, &(0..12))
            );
        }
    }

    #[test]
    fn no_bytes_are_one() {
        let mut ranges = Ranges::default();
        ranges.add(7, &(16..16));
        assert!(ranges.has(7, &(0..17)) && !ranges.has(7, &(0..16)));
    }
}
