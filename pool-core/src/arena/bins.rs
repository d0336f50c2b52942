//! Free ranges by size: a bit for each size that has some, so that a fitting one is found without a
//! search.
//!
//! ```text
//!   rows:    a bit for each power of two that has anything
//!   columns: in each row 32 steps, 1/32 of the power apart, a bit for each that has anything
//!   heads:   for each step a list of ranges, the one that came last first
//! ```
//!
//! Two-level segregated fit (Masmano et al., ECRTS 2004), with the lists out of band, since the
//! memory may not be ours to write. 32 steps and a look at a few ranges of the request's own step
//! fragment as little as an exact best fit does. A whole arena over it takes half the time of a
//! bare ordered tree up to 10 000 live blocks; from 100 000 on both wait for cache misses
//! (`pool-bench/benches/arena.rs`).
//!
//! Nothing here knows what a range is but its size.

/// No range.
pub(crate) const NONE: u32 = u32::MAX;
/// Steps of a row, as a power of two.
const STEP_BITS: u32 = 5;
const STEPS: usize = 1 << STEP_BITS;
/// Rows: sizes below 2^63 units.
const ROWS: usize = 64 - STEP_BITS as usize;

/// A range as the bins see it: its size, and its place in the list of its step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreeLink {
    pub(crate) bytes: u64,
    older: u32,
    newer: u32,
}

impl FreeLink {
    pub(crate) fn new(bytes: u64) -> Self {
        Self { bytes, older: NONE, newer: NONE }
    }
}

/// The free ranges of one sort, by size.
#[derive(Debug)]
pub(crate) struct Bins {
    rows: u64,
    columns: [u32; ROWS],
    heads: Box<[u32]>,
    /// Sizes are told apart in units of 2 to this power.
    unit_bits: u32,
    bytes: u64,
}

impl Bins {
    pub(crate) fn new(unit_bits: u32) -> Self {
        let heads = vec![NONE; ROWS * STEPS].into_boxed_slice();
        Self { rows: 0, columns: [0; ROWS], heads, unit_bits, bytes: 0 }
    }

    /// The sum of all sizes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The step of a size: exact up to 32 units, from there on 1/32 of a power of two wide.
    #[inline]
    fn step(&self, bytes: u64) -> usize {
        let units = bytes >> self.unit_bits;
        if units < STEPS as u64 {
            return index(units);
        }
        let shift = units.ilog2() - STEP_BITS;
        ((shift as usize + 1) << STEP_BITS) | (index(units >> shift) & (STEPS - 1))
    }

    #[inline]
    pub(crate) fn insert(&mut self, entries: &mut [FreeLink], id: u32) {
        let bytes = entries[id as usize].bytes;
        let step = self.step(bytes);
        let head = std::mem::replace(&mut self.heads[step], id);
        entries[id as usize] = FreeLink { bytes, older: head, newer: NONE };
        if let Some(head) = entries.get_mut(head as usize) {
            head.newer = id;
        }
        self.rows |= 1 << (step >> STEP_BITS);
        self.columns[step >> STEP_BITS] |= 1 << (step & (STEPS - 1));
        self.bytes += bytes;
    }

    #[inline]
    pub(crate) fn remove(&mut self, entries: &mut [FreeLink], id: u32) {
        let FreeLink { bytes, older, newer } = entries[id as usize];
        self.bytes -= bytes;
        if let Some(older) = entries.get_mut(older as usize) {
            older.newer = newer;
        }
        if let Some(newer) = entries.get_mut(newer as usize) {
            newer.older = older;
            return;
        }
        let step = self.step(bytes);
        self.heads[step] = older;
        if older == NONE {
            let row = step >> STEP_BITS;
            self.columns[row] &= !(1 << (step & (STEPS - 1)));
            if self.columns[row] == 0 {
                self.rows &= !(1 << row);
            }
        }
    }

    /// The lists that may hold a range of `bytes` bytes, smaller steps first. In the first, ranges
    /// may be smaller than that; in all others none is.
    #[inline]
    pub(crate) fn lists(&self, bytes: u64) -> impl Iterator<Item = u32> + '_ {
        let mut next = Some(self.step(bytes));
        std::iter::from_fn(move || {
            let step = self.at_or_above(next?)?;
            next = Some(step + 1);
            Some(self.heads[step])
        })
    }

    /// The first step from `step` on that has anything.
    #[inline]
    fn at_or_above(&self, step: usize) -> Option<usize> {
        let row = step >> STEP_BITS;
        let in_row = self.columns.get(row)? & (u32::MAX << (step & (STEPS - 1)));
        if in_row != 0 {
            return Some((row << STEP_BITS) | in_row.trailing_zeros() as usize);
        }
        // Two shifts, since the last row leaves none.
        let above = self.rows & (u64::MAX << row << 1);
        if above == 0 {
            return None;
        }
        let row = above.trailing_zeros() as usize;
        Some((row << STEP_BITS) | self.columns[row].trailing_zeros() as usize)
    }
}

/// A number below 64, or below 32 when it is masked.
#[expect(clippy::cast_possible_truncation, reason = "of at most six bits")]
fn index(units: u64) -> usize {
    units as usize
}

/// The ranges of a list, the one that came last first.
#[inline]
pub(crate) fn list(entries: &[FreeLink], head: u32) -> impl Iterator<Item = (u32, u64)> + '_ {
    let mut id = head;
    std::iter::from_fn(move || {
        let entry = entries.get(id as usize)?;
        Some((std::mem::replace(&mut id, entry.older), entry.bytes))
    })
}

#[cfg(test)]
mod tests;
