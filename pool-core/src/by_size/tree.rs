//! The entries of one step in order: smaller ones first. Of equal ones, as `PyTorch`'s rules need
//! them, that of the oldest segment, then that of the lowest offset.
//!
//! A treap (Seidel and Aragon, *Algorithmica* 1996) whose links are in the entries: `older` is the
//! left child, `newer` the right one. Priorities are hashes of the numbers, so a tree of `n` entries
//! is about `2 ln n` deep whatever the order of the calls.

use crate::by_size::{Entries, NONE};

/// The place of an entry in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SizeKey {
    pub(crate) bytes: u64,
    pub(crate) born: u32,
    pub(crate) offset: u64,
}

impl SizeKey {
    /// The least key of a size.
    pub(crate) fn least(bytes: u64) -> Self {
        Self { bytes, born: 0, offset: 0 }
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
fn set<E: Entries>(nodes: &mut E, root: &mut u32, link: Link, to: u32) {
    match link {
        Link::Root => *root = to,
        Link::Left(id) => nodes.links_mut(id).older = to,
        Link::Right(id) => nodes.links_mut(id).newer = to,
    }
}

/// Adds a range.
pub(crate) fn insert<E: Entries>(nodes: &mut E, root: &mut u32, id: u32) {
    if *root == NONE {
        let links = nodes.links_mut(id);
        (links.older, links.newer) = (NONE, NONE);
        *root = id;
        return;
    }
    let key = nodes.key(id);
    let (mut link, mut at) = (Link::Root, *root);
    while at != NONE && priority(at) >= priority(id) {
        let node = nodes.links(at);
        (link, at) = match key < nodes.key(at) {
            true => (Link::Left(at), node.older),
            false => (Link::Right(at), node.newer),
        };
    }
    set(nodes, root, link, id);
    // What was there is divided between the children of the new node.
    let (mut less, mut more) = (Link::Left(id), Link::Right(id));
    while at != NONE {
        let node = nodes.links(at);
        if nodes.key(at) < key {
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
pub(crate) fn remove<E: Entries>(nodes: &mut E, root: &mut u32, id: u32, key: SizeKey) {
    let own = nodes.links(id);
    if *root == id && (own.older, own.newer) == (NONE, NONE) {
        *root = NONE;
        return;
    }
    let (mut link, mut at) = (Link::Root, *root);
    while at != id {
        invariant!(at != NONE, "a range that is taken out of a tree is in it");
        if at == NONE {
            return;
        }
        let node = nodes.links(at);
        (link, at) = match key < nodes.key(at) {
            true => (Link::Left(at), node.older),
            false => (Link::Right(at), node.newer),
        };
    }
    // Its children are merged in its place.
    let (mut less, mut more) = (own.older, own.newer);
    while less != NONE && more != NONE {
        if priority(less) >= priority(more) {
            set(nodes, root, link, less);
            (link, less) = (Link::Right(less), nodes.links(less).newer);
        } else {
            set(nodes, root, link, more);
            (link, more) = (Link::Left(more), nodes.links(more).older);
        }
    }
    let rest = if less == NONE { more } else { less };
    set(nodes, root, link, rest);
}

/// The first range from a key on.
pub(crate) fn first_from<E: Entries>(nodes: &E, root: u32, key: SizeKey) -> Option<u32> {
    let (mut found, mut at) = (NONE, root);
    while at != NONE {
        let node = nodes.links(at);
        if nodes.key(at) >= key {
            (found, at) = (at, node.older);
        } else {
            at = node.newer;
        }
    }
    (found != NONE).then_some(found)
}

/// The last range below a key.
pub(crate) fn last_below<E: Entries>(nodes: &E, root: u32, key: SizeKey) -> Option<u32> {
    let (mut found, mut at) = (NONE, root);
    while at != NONE {
        let node = nodes.links(at);
        if nodes.key(at) < key {
            (found, at) = (at, node.newer);
        } else {
            at = node.older;
        }
    }
    (found != NONE).then_some(found)
}
