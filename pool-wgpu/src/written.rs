//! Which bytes of which buffers: what was lent, and what was uploaded.

use crate::looks::look;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use wgpu::Texture;

/// Ranges of bytes of buffers, by the number of the buffer. Those that overlap or follow each other are
/// one: the end of each by its buffer and its beginning.
#[derive(Default)]
pub(crate) struct Ranges(BTreeMap<(u64, u64), u64>);

/// A number by which something that wgpu has numbered is found again.
pub(crate) fn hash_of(named: &impl Hash) -> u64 {
    let mut numbers = Numbers::default();
    named.hash(&mut numbers);
    numbers.finish()
}

/// A number for a texture, which no buffer has: wgpu counts the two apart.
pub(crate) fn hash_of_texture(texture: &Texture) -> u64 {
    hash_of(&(1_u64, texture))
}

/// Mixes the numbers by which wgpu knows its resources, one after the other, so that two that differ in the last
/// number are never alike. Each lend hashes one, and each bind group a dozen.
#[derive(Default)]
struct Numbers(u64);

impl Hasher for Numbers {
    fn write_u64(&mut self, number: u64) {
        // The odd number that is next to 2^64 over the golden ratio: each bit of a number reaches the upper half.
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }
    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }
    fn write_isize(&mut self, number: isize) {
        self.write_u64(number.cast_unsigned() as u64);
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

impl Ranges {
    /// Adds a range. One of no bytes counts as its first byte.
    pub(crate) fn add(&mut self, of: u64, bytes: &Range<u64>) {
        look();
        let (mut at, mut end) = (bytes.start, bytes.end.max(bytes.start + 1));
        while let Some((&key, &last)) = self.0.range((of, 0)..=(of, end)).next_back()
            && last >= at
        {
            look();
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
        look();
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
