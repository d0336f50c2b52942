//! Lists through one slab of nodes.

/// No node.
pub(super) const NONE: u32 = u32::MAX;
/// The two lists that each node is in.
pub(super) const AGE: usize = 0;
pub(super) const STACK: usize = 1;
/// Newest items of a stack that a search looks at.
pub(super) const LOOKED_AT: usize = 32;

#[derive(Debug)]
pub(super) struct Node<T> {
    pub(super) item: Option<T>,
    pub(super) shelf: usize,
    pub(super) bytes: u64,
    pub(super) stamp: u64,
    pub(super) links: [Links; 2],
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    pub(super) older: u32,
    pub(super) newer: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    pub(super) oldest: u32,
    pub(super) newest: u32,
    pub(super) len: usize,
}

impl List {
    pub(super) const EMPTY: Self = Self { oldest: NONE, newest: NONE, len: 0 };

    #[inline]
    pub(super) fn append<T>(&mut self, nodes: &mut [Node<T>], list: usize, id: u32) {
        nodes[id as usize].links[list] = Links { older: self.newest, newer: NONE };
        match nodes.get_mut(self.newest as usize) {
            Some(newest) => newest.links[list].newer = id,
            None => self.oldest = id,
        }
        self.newest = id;
        self.len += 1;
    }

    #[inline]
    pub(super) fn unlink<T>(&mut self, nodes: &mut [Node<T>], list: usize, id: u32) {
        let Links { older, newer } = nodes[id as usize].links[list];
        match nodes.get_mut(older as usize) {
            Some(node) => node.links[list].newer = newer,
            None => self.oldest = newer,
        }
        match nodes.get_mut(newer as usize) {
            Some(node) => node.links[list].older = older,
            None => self.newest = older,
        }
        self.len -= 1;
    }

    #[inline]
    pub(super) fn newest_where<T>(
        &self,
        nodes: &mut [Node<T>],
        accept: impl Fn(&mut T) -> bool,
    ) -> Option<u32> {
        let mut id = self.newest;
        for _ in 0..LOOKED_AT {
            let node = nodes.get_mut(id as usize)?;
            if node.item.as_mut().is_some_and(&accept) {
                return Some(id);
            }
            id = node.links[STACK].older;
        }
        None
    }

    /// The oldest node of this list whose item is not lent.
    pub(super) fn oldest_present<T>(&self, nodes: &[Node<T>], list: usize) -> Option<u32> {
        let mut id = self.oldest;
        loop {
            let node = nodes.get(id as usize)?;
            if node.item.is_some() {
                return Some(id);
            }
            id = node.links[list].newer;
        }
    }

    pub(super) fn oldest_where<T>(
        &self,
        nodes: &mut [Node<T>],
        list: usize,
        accept: impl Fn(&mut T) -> bool,
    ) -> Option<u32> {
        let (mut id, mut turned_down) = (self.oldest, 0);
        while turned_down < LOOKED_AT {
            let node = nodes.get_mut(id as usize)?;
            if let Some(item) = &mut node.item {
                if accept(item) {
                    return Some(id);
                }
                turned_down += 1;
            }
            id = node.links[list].newer;
        }
        None
    }
}
