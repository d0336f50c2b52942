//! Free ranges by size: a bit for each size step that has any, so that no search is needed.
//!
//! ```text
//!   rows:    a bit for each power of two that has a range
//!   columns: in each row 32 steps, 1/32 of the power apart, a bit for each that has a range
//!   heads:   for each step a list of ranges, the newest first
//! ```
//!
//! Two-level segregated fit (Masmano et al., ECRTS 2004). The links are in the nodes, not in the
//! memory, which the CPU may not be able to write.

use super::node::{NONE, Nodes};

/// Steps of a row, as a power of two.
const STEP_BITS: u32 = 5;
const STEPS: usize = 1 << STEP_BITS;
/// Rows: sizes below 2^63 units.
const ROWS: usize = 64 - STEP_BITS as usize;

/// The free ranges of one list, by size.
#[derive(Debug)]
pub(crate) struct SizeSteps {
    rows: u64,
    columns: [u32; ROWS],
    heads: Box<[u32]>,
    /// Sizes are counted in units of 2 to this power.
    unit_bits: u32,
    bytes: u64,
}

impl SizeSteps {
    pub(crate) fn new(unit_bits: u32) -> Self {
        let heads = vec![NONE; ROWS * STEPS].into_boxed_slice();
        Self { rows: 0, columns: [0; ROWS], heads, unit_bits, bytes: 0 }
    }

    /// The sum of all sizes.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The step of a size: exact up to 32 units, then 1/32 of a power of two wide.
    #[inline]
    pub(crate) fn step(&self, bytes: u64) -> usize {
        let units = bytes >> self.unit_bits;
        let shift = (units | STEPS as u64).ilog2() - STEP_BITS;
        ((shift as usize) << STEP_BITS) + index(units >> shift)
    }

    /// Adds a range as the newest of its step.
    #[inline]
    pub(crate) fn insert<M>(&mut self, nodes: &mut Nodes<M>, id: u32) {
        let bytes = nodes[id].bytes;
        let step = self.step(bytes);
        let head = std::mem::replace(&mut self.heads[step], id);
        let node = &mut nodes[id];
        (node.older, node.newer) = (head, NONE);
        if head != NONE {
            nodes[head].newer = id;
        }
        self.rows |= 1 << (step >> STEP_BITS);
        self.columns[step >> STEP_BITS] |= 1 << (step & (STEPS - 1));
        self.bytes += bytes;
    }

    /// Takes a range out.
    #[inline]
    pub(crate) fn remove<M>(&mut self, nodes: &mut Nodes<M>, id: u32) {
        let node = &nodes[id];
        let (bytes, older, newer) = (node.bytes, node.older, node.newer);
        self.bytes -= bytes;
        self.unlink(nodes, self.step(bytes), (older, newer));
    }

    #[inline]
    fn unlink<M>(&mut self, nodes: &mut Nodes<M>, step: usize, (older, newer): (u32, u32)) {
        if older != NONE {
            nodes[older].newer = newer;
        }
        if newer != NONE {
            nodes[newer].older = older;
            return;
        }
        self.heads[step] = older;
        if older == NONE {
            let row = step >> STEP_BITS;
            self.columns[row] &= !(1 << (step & (STEPS - 1)));
            if self.columns[row] == 0 {
                self.rows &= !(1 << row);
            }
        }
    }

    /// Follows a range whose size was `was` and has changed. It keeps its place in the list if its
    /// step is the same, so most splits and coalesces touch no list.
    #[inline]
    pub(crate) fn resize<M>(&mut self, nodes: &mut Nodes<M>, id: u32, was: u64) {
        let node = &nodes[id];
        let (bytes, links) = (node.bytes, (node.older, node.newer));
        let step = self.step(was);
        if step == self.step(bytes) {
            self.bytes = self.bytes.wrapping_add(bytes).wrapping_sub(was);
            return;
        }
        self.bytes -= was;
        self.unlink(nodes, step, links);
        self.insert(nodes, id);
    }

    /// The newest range of a step, or [`NONE`].
    #[cfg(test)]
    pub(crate) fn head(&self, step: usize) -> u32 {
        self.heads[step]
    }

    /// The first step from `step` on that has a range.
    #[inline]
    pub(crate) fn at_or_above(&self, step: usize) -> Option<usize> {
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

    /// The newest range of each step from that of `bytes` on, smaller steps first.
    #[inline]
    pub(crate) fn upward(&self, bytes: u64) -> impl Iterator<Item = u32> + '_ {
        let mut next = self.step(bytes);
        std::iter::from_fn(move || {
            let step = self.at_or_above(next)?;
            next = step + 1;
            Some(self.heads[step])
        })
    }

    /// The newest range of each step, larger steps first.
    pub(crate) fn downward(&self) -> impl Iterator<Item = u32> + '_ {
        let mut next = Some(ROWS * STEPS - 1);
        std::iter::from_fn(move || {
            let step = self.at_or_below(next?)?;
            next = step.checked_sub(1);
            Some(self.heads[step])
        })
    }

    /// The last step up to `step` that has a range.
    pub(crate) fn at_or_below(&self, step: usize) -> Option<usize> {
        let row = step >> STEP_BITS;
        let in_row = self.columns.get(row)? & (u32::MAX >> (STEPS - 1 - (step & (STEPS - 1))));
        if in_row != 0 {
            return Some((row << STEP_BITS) | in_row.ilog2() as usize);
        }
        let below = self.rows & ((1 << row) - 1);
        if below == 0 {
            return None;
        }
        let row = below.ilog2() as usize;
        Some((row << STEP_BITS) | self.columns[row].ilog2() as usize)
    }
}

/// A number below 64.
#[expect(clippy::cast_possible_truncation, reason = "of at most six bits")]
fn index(units: u64) -> usize {
    units as usize
}
