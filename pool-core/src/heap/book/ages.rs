//! Free blocks in the order in which they came into the book, through links in their nodes.

use crate::heap::book::node::{NONE, Nodes};

/// Blocks that are looked at for the place of one.
const LOOKS: usize = 64;

/// The ends of the line.
#[derive(Debug)]
pub(super) struct Ages {
    oldest: u32,
    newest: u32,
    /// Blocks that were added as the newest so far.
    added: u64,
}

impl Ages {
    pub(super) const EMPTY: Self = Self { oldest: NONE, newest: NONE, added: 0 };

    /// The block that has been free for longest.
    pub(super) fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// Adds a block: as the newest, or if it has a number from an earlier time where it was then.
    /// Looks at a bounded number of blocks for that.
    #[inline]
    pub(super) fn add<M>(&mut self, nodes: &mut Nodes<M>, id: u32) {
        let nth = nodes[id].freed_nth;
        let (mut before, mut after) = (self.newest, NONE);
        if nth == 0 {
            self.added += 1;
            nodes[id].freed_nth = self.added;
        } else {
            (before, after) = (NONE, self.oldest);
            for _ in 0..LOOKS {
                if after == NONE || nodes[after].freed_nth > nth {
                    break;
                }
                (before, after) = (after, nodes[after].freed_after);
            }
        }
        (nodes[id].freed_before, nodes[id].freed_after) = (before, after);
        match before {
            NONE => self.oldest = id,
            before => nodes[before].freed_after = id,
        }
        match after {
            NONE => self.newest = id,
            after => nodes[after].freed_before = id,
        }
    }

    /// Takes a block out, which keeps its number.
    #[inline]
    pub(super) fn remove<M>(&mut self, nodes: &mut Nodes<M>, id: u32) {
        let (before, after) = (nodes[id].freed_before, nodes[id].freed_after);
        match before {
            NONE => self.oldest = after,
            before => nodes[before].freed_after = after,
        }
        match after {
            NONE => self.newest = before,
            after => nodes[after].freed_before = before,
        }
    }

    /// All blocks, the oldest first.
    pub(super) fn iter<M>(&self, nodes: &Nodes<M>) -> impl Iterator<Item = u32> {
        let some = |id: u32| (id != NONE).then_some(id);
        std::iter::successors(some(self.oldest), move |id| some(nodes[*id].freed_after))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_with_a_number_is_put_where_it_was() {
        for taken in 0..4 {
            let (mut nodes, mut ages) = (Nodes::<()>::new(), Ages::EMPTY);
            let ids = [(); 4].map(|()| nodes.add(0, (0, 64), (NONE, NONE)));
            for id in ids {
                ages.add(&mut nodes, id);
            }
            ages.remove(&mut nodes, ids[taken]);
            assert_eq!(ages.iter(&nodes).count(), 3);
            ages.add(&mut nodes, ids[taken]);
            assert_eq!(ages.iter(&nodes).collect::<Vec<_>>(), ids, "of {taken}");
            assert_eq!((ages.oldest, ages.newest), (ids[0], ids[3]));
        }
    }

    #[test]
    fn a_block_whose_place_is_far_from_the_oldest_is_put_near_it() {
        let (mut nodes, mut ages) = (Nodes::<()>::new(), Ages::EMPTY);
        let ids: Vec<u32> = (0..LOOKS + 9).map(|_| nodes.add(0, (0, 64), (NONE, NONE))).collect();
        for id in &ids {
            ages.add(&mut nodes, *id);
        }
        let last = ids[LOOKS + 8];
        ages.remove(&mut nodes, last);
        ages.add(&mut nodes, last);
        let place = ages.iter(&nodes).position(|id| id == last);
        assert_eq!(place, Some(LOOKS), "no more blocks than this are looked at");
        assert_eq!(ages.newest, ids[LOOKS + 7]);
    }
}
