//! The ranges of one size step in order: smaller ranges first. Of equal ones, as `PyTorch`'s rules
//! need them, the oldest segment, then the lowest offset; and of blocks that are lent whole the one
//! that came into the book first.
//!
//! A treap (Seidel and Aragon, *Algorithmica* 1996) whose links are in the nodes: `older` is the
//! left child, `newer` the right one. Priorities are hashes of the numbers, so a tree of `n` ranges
//! is about `2 ln n` deep whatever the order of the calls.

use crate::heap::book::node::{NONE, Nodes, RangeNode};

/// The place of a range in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RangeKey {
    pub(crate) bytes: u64,
    born: u32,
    offset: u64,
}

impl RangeKey {
    /// The least key of a size.
    pub(crate) fn least(bytes: u64) -> Self {
        Self { bytes, born: 0, offset: 0 }
    }

    #[inline]
    pub(crate) fn of<M>(node: &RangeNode<M>) -> Self {
        Self::at(node, node.bytes, node.offset)
    }

    /// The key that a range had with another size and offset. Of blocks that are lent whole, which
    /// all are at offset 0, the one that came into the book first is first.
    #[inline]
    pub(crate) fn at<M>(node: &RangeNode<M>, bytes: u64, offset: u64) -> Self {
        Self { bytes, born: node.born, offset: offset + node.freed_nth }
    }

    /// The least key above all of a size.
    pub(crate) fn above_size(bytes: u64) -> Self {
        Self::least(bytes + 1)
    }

    /// The least key above this one.
    pub(crate) fn above(self) -> Self {
        Self { offset: self.offset + 1, ..self }
    }
}

/// A multiplicative hash (Knuth, *TAOCP* 6.4).
#[inline]
fn priority(id: u32) -> u32 {
    id.wrapping_mul(0x9E37_79B1)
}

/// A child of a node, or the root.
#[derive(Clone, Copy)]
enum Link {
    Root,
    Left(u32),
    Right(u32),
}

#[inline]
fn set<M>(nodes: &mut Nodes<M>, root: &mut u32, link: Link, to: u32) {
    match link {
        Link::Root => *root = to,
        Link::Left(id) => nodes[id].older = to,
        Link::Right(id) => nodes[id].newer = to,
    }
}

/// Adds a range.
pub(crate) fn insert<M>(nodes: &mut Nodes<M>, root: &mut u32, id: u32) {
    if *root == NONE {
        (nodes[id].older, nodes[id].newer) = (NONE, NONE);
        *root = id;
        return;
    }
    let key = RangeKey::of(&nodes[id]);
    let (mut link, mut at) = (Link::Root, *root);
    while at != NONE && priority(at) >= priority(id) {
        let node = &nodes[at];
        (link, at) = match key < RangeKey::of(node) {
            true => (Link::Left(at), node.older),
            false => (Link::Right(at), node.newer),
        };
    }
    set(nodes, root, link, id);
    // What was there is divided between the children of the new node.
    let (mut less, mut more) = (Link::Left(id), Link::Right(id));
    while at != NONE {
        let node = &nodes[at];
        if RangeKey::of(node) < key {
            let next = node.newer;
            set(nodes, root, less, at);
            (less, at) = (Link::Right(at), next);
        } else {
            let next = node.older;
            set(nodes, root, more, at);
            (more, at) = (Link::Left(at), next);
        }
    }
    set(nodes, root, less, NONE);
    set(nodes, root, more, NONE);
}

/// Takes a range out that was added with a key.
pub(crate) fn remove<M>(nodes: &mut Nodes<M>, root: &mut u32, id: u32, key: RangeKey) {
    if *root == id && (nodes[id].older, nodes[id].newer) == (NONE, NONE) {
        *root = NONE;
        return;
    }
    let (mut link, mut at) = (Link::Root, *root);
    while at != id {
        if at == NONE {
            debug_assert!(false, "range {id} is not in the tree");
            return;
        }
        let node = &nodes[at];
        (link, at) = match key < RangeKey::of(node) {
            true => (Link::Left(at), node.older),
            false => (Link::Right(at), node.newer),
        };
    }
    // Its children are merged in its place.
    let (mut less, mut more) = (nodes[id].older, nodes[id].newer);
    while less != NONE && more != NONE {
        if priority(less) >= priority(more) {
            set(nodes, root, link, less);
            (link, less) = (Link::Right(less), nodes[less].newer);
        } else {
            set(nodes, root, link, more);
            (link, more) = (Link::Left(more), nodes[more].older);
        }
    }
    let rest = if less == NONE { more } else { less };
    set(nodes, root, link, rest);
}

/// The first range from a key on.
pub(crate) fn first_from<M>(nodes: &Nodes<M>, root: u32, key: RangeKey) -> Option<u32> {
    let (mut found, mut at) = (NONE, root);
    while at != NONE {
        let node = &nodes[at];
        if RangeKey::of(node) >= key {
            (found, at) = (at, node.older);
        } else {
            at = node.newer;
        }
    }
    (found != NONE).then_some(found)
}

/// The last range below a key.
pub(crate) fn last_below<M>(nodes: &Nodes<M>, root: u32, key: RangeKey) -> Option<u32> {
    let (mut found, mut at) = (NONE, root);
    while at != NONE {
        let node = &nodes[at];
        if RangeKey::of(node) < key {
            (found, at) = (at, node.newer);
        } else {
            at = node.older;
        }
    }
    (found != NONE).then_some(found)
}
