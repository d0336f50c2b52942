//! Free memory by its size: a bit for each step of sizes that has any, and the entries of a step as a
//! list or as a tree. Ranges of an arena are such entries, and bins of whole blocks.

#[cfg(test)]
mod tests;
mod tree;

pub(crate) use tree::SizeKey;

/// No entry.
pub(crate) const NONE: u32 = u32::MAX;

/// Entries by number. Their links are in them, and not in the memory that they stand for, which the
/// CPU may not be able to write.
pub(crate) trait Entries {
    /// The place of an entry in the order.
    fn key(&self, id: u32) -> SizeKey;
    fn links(&self, id: u32) -> SizeLinks;
    fn links_mut(&mut self, id: u32) -> &mut SizeLinks;
}

/// The links of an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SizeLinks {
    /// The neighbours in the list of a step, or the children in its tree, or [`NONE`].
    pub(crate) older: u32,
    pub(crate) newer: u32,
    /// The step that it is in.
    pub(crate) step: u16,
}

impl SizeLinks {
    pub(crate) const NONE: Self = Self { older: NONE, newer: NONE, step: 0 };
}

/// Steps of a row, as a power of two.
const STEP_BITS: u32 = 5;
const STEPS: usize = 1 << STEP_BITS;
/// Rows of all sizes.
const ROWS: usize = 65 - STEP_BITS as usize;

/// Entries by size: the free ranges of one list, or bins of blocks.
#[derive(Debug)]
pub(crate) struct SizeSteps {
    rows: u64,
    columns: [u32; ROWS],
    heads: Box<[u32]>,
    /// Sizes are counted in units of 2 to this power.
    unit_bits: u32,
    /// Whether the ranges of a step are a tree in order, not a list.
    ordered: bool,
    bytes: u64,
    /// Of ranges in order, the one that changed last: it is in no tree until another changes. So a range
    /// that is split and coalesced in turns moves in no tree.
    loose: u32,
}

impl SizeSteps {
    pub(crate) fn new(unit_bits: u32, ordered: bool) -> Self {
        let heads = vec![NONE; ROWS * STEPS].into_boxed_slice();
        Self { rows: 0, columns: [0; ROWS], heads, unit_bits, ordered, bytes: 0, loose: NONE }
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
    pub(crate) fn insert<E: Entries>(&mut self, nodes: &mut E, id: u32) {
        let bytes = nodes.key(id).bytes;
        self.bytes = self.bytes.wrapping_add(bytes);
        self.add(nodes, id, self.step(bytes));
    }

    /// Takes a range out whose extent was `was` when it was added.
    #[inline]
    pub(crate) fn remove<E: Entries>(&mut self, nodes: &mut E, id: u32, was: SizeKey) {
        self.bytes = self.bytes.wrapping_sub(was.bytes);
        if self.loose == id {
            self.loose = NONE;
            return;
        }
        self.unlink(nodes, id, was);
    }

    /// Follows a range in step `own` that was `was` and has `bytes` bytes now. In a list it keeps its
    /// place if its step is the same.
    #[expect(clippy::inline_always, reason = "a hit is one function: no calls and no spills")]
    #[inline(always)]
    pub(crate) fn resize<E: Entries>(
        &mut self,
        nodes: &mut E,
        (id, own): (u32, u16),
        was: SizeKey,
        bytes: u64,
    ) {
        self.bytes = self.bytes.wrapping_add(bytes).wrapping_sub(was.bytes);
        if self.ordered {
            if self.loose != id {
                self.loosen(nodes, id, was);
            }
            return;
        }
        let step = self.step(bytes);
        if step != usize::from(own) {
            self.shift(nodes, id, step);
        }
    }

    /// Moves a range of a list to another step.
    #[inline]
    fn shift<E: Entries>(&mut self, nodes: &mut E, id: u32, step: usize) {
        let next = std::mem::replace(&mut self.heads[step], id);
        let links = nodes.links_mut(id);
        let SizeLinks { older, newer, step: own, .. } = *links;
        (links.older, links.newer, links.step) = (next, NONE, short(step));
        if next != NONE {
            nodes.links_mut(next).newer = id;
        }
        self.set_bit(step);
        self.join_neighbours(nodes, usize::from(own), (older, newer));
    }

    /// Takes a range that was `was` out of its tree, unless it is alone there and stays so. The one that
    /// was in no tree goes to the tree of its size.
    #[inline(never)]
    fn loosen<E: Entries>(&mut self, nodes: &mut E, id: u32, was: SizeKey) {
        let SizeLinks { older, newer, .. } = nodes.links(id);
        let alone = (older, newer) == (NONE, NONE);
        if alone && self.heads[self.step(nodes.key(id).bytes)] == id {
            return;
        }
        self.unlink(nodes, id, was);
        let loose = std::mem::replace(&mut self.loose, id);
        if loose != NONE {
            let step = self.step(nodes.key(loose).bytes);
            self.add(nodes, loose, step);
        }
    }

    #[inline]
    fn add<E: Entries>(&mut self, nodes: &mut E, id: u32, step: usize) {
        let head = &mut self.heads[step];
        nodes.links_mut(id).step = short(step);
        if self.ordered {
            tree::insert(nodes, head, id);
        } else {
            let older = std::mem::replace(head, id);
            let links = nodes.links_mut(id);
            (links.older, links.newer) = (older, NONE);
            if older != NONE {
                nodes.links_mut(older).newer = id;
            }
        }
        self.set_bit(step);
    }

    #[inline]
    fn unlink<E: Entries>(&mut self, nodes: &mut E, id: u32, was: SizeKey) {
        let SizeLinks { older, newer, step, .. } = nodes.links(id);
        let step = usize::from(step);
        if !self.ordered {
            return self.join_neighbours(nodes, step, (older, newer));
        }
        tree::remove(nodes, &mut self.heads[step], id, was);
        if self.heads[step] == NONE {
            self.clear_bit(step);
        }
    }

    /// Makes the neighbours of a range that left the list of a step neighbours of each other.
    #[inline]
    fn join_neighbours<E: Entries>(
        &mut self,
        nodes: &mut E,
        step: usize,
        (older, newer): (u32, u32),
    ) {
        if older != NONE {
            nodes.links_mut(older).newer = newer;
        }
        if newer != NONE {
            nodes.links_mut(newer).older = older;
            return;
        }
        self.heads[step] = older;
        if older == NONE {
            self.clear_bit(step);
        }
    }

    /// Sets the bit of a step.
    #[inline]
    fn set_bit(&mut self, step: usize) {
        self.rows |= 1 << (step >> STEP_BITS);
        self.columns[step >> STEP_BITS] |= 1 << (step & (STEPS - 1));
    }

    /// Clears the bit of a step.
    #[inline]
    fn clear_bit(&mut self, step: usize) {
        let row = step >> STEP_BITS;
        self.columns[row] &= !(1 << (step & (STEPS - 1)));
        if self.columns[row] == 0 {
            self.rows &= !(1 << row);
        }
    }

    /// The first range in order from a key on, of steps that are trees.
    #[inline]
    pub(crate) fn first_from<E: Entries>(&self, nodes: &E, key: SizeKey) -> Option<u32> {
        let first = self.first_in_trees(nodes, key);
        match self.loose_key(nodes) {
            Some(loose) if loose >= key && first.is_none_or(|id| loose < nodes.key(id)) => {
                Some(self.loose)
            }
            _ => first,
        }
    }

    /// The place of the range that is in no tree, if there is one.
    #[inline]
    fn loose_key<E: Entries>(&self, nodes: &E) -> Option<SizeKey> {
        (self.loose != NONE).then(|| nodes.key(self.loose))
    }

    fn first_in_trees<E: Entries>(&self, nodes: &E, key: SizeKey) -> Option<u32> {
        let own = self.step(key.bytes);
        let step = self.at_or_above(own)?;
        if let Some(id) = tree::first_from(nodes, self.heads[step], key) {
            return Some(id);
        }
        let step = self.at_or_above(own + 1)?;
        tree::first_from(nodes, self.heads[step], key)
    }

    /// Ranges from a size on: in order if steps are trees, else step by step.
    pub(crate) fn ascending<'s, E: Entries>(
        &'s self,
        nodes: &'s E,
        bytes: u64,
    ) -> impl Iterator<Item = u32> + 's {
        let (mut key, mut step, mut at) = (SizeKey::least(bytes), self.step(bytes), NONE);
        std::iter::from_fn(move || {
            if self.ordered {
                let id = self.first_from(nodes, key)?;
                key = nodes.key(id).above();
                return Some(id);
            }
            if at == NONE {
                let found = self.at_or_above(step)?;
                (step, at) = (found + 1, self.heads[found]);
            }
            let id = at;
            at = nodes.links(id).older;
            Some(id)
        })
    }

    /// Ranges of larger steps first; in order if steps are trees.
    pub(crate) fn descending<'s, E: Entries>(
        &'s self,
        nodes: &'s E,
    ) -> impl Iterator<Item = u32> + 's {
        let (mut key, mut at) = (SizeKey::least(u64::MAX), NONE);
        let mut step = self.at_or_below(ROWS * STEPS - 1);
        std::iter::from_fn(move || {
            if self.ordered {
                let id = self.last_below(nodes, key, &mut step)?;
                key = nodes.key(id);
                return Some(id);
            }
            if at == NONE {
                at = self.heads[step?];
                step = step?.checked_sub(1).and_then(|below| self.at_or_below(below));
            }
            let id = at;
            at = nodes.links(id).older;
            Some(id)
        })
    }

    /// Whether a range is found by the bit of a step, or is in no tree.
    #[cfg(feature = "check")]
    pub(crate) fn finds(&self, id: u32, step: usize) -> bool {
        self.loose == id || self.at_or_above(step) == Some(step)
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

    /// The newest range of a step.
    #[inline]
    pub(crate) fn head(&self, step: usize) -> u32 {
        self.heads[step]
    }

    /// The last range in order of at most this size, of steps that are trees.
    pub(crate) fn last_up_to<E: Entries>(&self, nodes: &E, bytes: u64) -> Option<u32> {
        let last = SizeKey { bytes, born: u32::MAX, offset: u64::MAX };
        self.last_below(nodes, last, &mut self.at_or_below(self.step(bytes)))
    }

    /// The last range in order below a key, in a step or those below it, or in no tree.
    fn last_below<E: Entries>(
        &self,
        nodes: &E,
        key: SizeKey,
        step: &mut Option<usize>,
    ) -> Option<u32> {
        let last = self.last_in_trees(nodes, key, step);
        match self.loose_key(nodes) {
            Some(loose) if loose < key && last.is_none_or(|id| loose > nodes.key(id)) => {
                Some(self.loose)
            }
            _ => last,
        }
    }

    fn last_in_trees<E: Entries>(
        &self,
        nodes: &E,
        key: SizeKey,
        step: &mut Option<usize>,
    ) -> Option<u32> {
        loop {
            let at = (*step)?;
            let found = tree::last_below(nodes, self.heads[at], key);
            if found.is_some() {
                return found;
            }
            *step = self.at_or_below(at.checked_sub(1)?);
        }
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

/// A number of a step; there are fewer than 2^11.
#[expect(clippy::cast_possible_truncation, reason = "below 2^11")]
fn short(step: usize) -> u16 {
    step as u16
}
