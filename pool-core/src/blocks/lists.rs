//! Lists of free blocks through the links in their records: the stack of a bin, and all blocks of a
//! shard by age.
#![expect(unsafe_code, reason = "records of free blocks are reached by their addresses")]

use crate::block::record::{Link, Links, Record};
use crate::port::DeviceAllocator;
use std::ptr::NonNull;

/// A record that lists own.
pub(super) type Address<A> = NonNull<Record<A>>;

/// The links of a record in a list.
///
/// # Safety
///
/// The record is in the lists of one [`Blocks`](super::Blocks), which is borrowed alone, and no
/// reference to it is in use.
#[inline]
unsafe fn links<'l, A: DeviceAllocator>(of: Address<A>) -> &'l mut Links<A> {
    // SAFETY: as the caller says.
    unsafe { &mut (*of.as_ptr()).links }
}

/// Blocks one upon the other, the one that came last on top.
pub(super) struct Stack<A: DeviceAllocator> {
    pub(super) top: Link<A>,
    pub(super) bottom: Link<A>,
}

impl<A: DeviceAllocator> Stack<A> {
    pub(super) const EMPTY: Self = Self { top: None, bottom: None };

    /// Adds a record on top.
    ///
    /// # Safety
    ///
    /// The record is in no stack, and those of this one are as [`links`] asks for.
    #[inline]
    pub(super) unsafe fn push(&mut self, record: Address<A>) {
        // SAFETY: as the caller says.
        let own = unsafe { links(record) };
        (own.above, own.below) = (None, self.top);
        match self.top.replace(record) {
            // SAFETY: as above; the two are not the same record.
            Some(below) => unsafe { links(below).above = Some(record) },
            None => self.bottom = Some(record),
        }
    }

    /// Takes the record on top out.
    ///
    /// # Safety
    ///
    /// It is the top, and all records of this stack are as [`links`] asks for.
    #[inline]
    pub(super) unsafe fn pop(&mut self, top: Address<A>) {
        // SAFETY: as the caller says.
        self.top = unsafe { links(top) }.below;
        match self.top {
            // SAFETY: as above.
            Some(below) => unsafe { links(below).above = None },
            None => self.bottom = None,
        }
    }

    /// Takes a record out.
    ///
    /// # Safety
    ///
    /// The record is in this stack, and all of it are as [`links`] asks for.
    #[inline]
    pub(super) unsafe fn remove(&mut self, record: Address<A>) {
        // SAFETY: as the caller says.
        let Links { above, below, .. } = *unsafe { links(record) };
        match above {
            // SAFETY: as above.
            Some(above) => unsafe { links(above).below = below },
            None => self.top = below,
        }
        match below {
            // SAFETY: as above.
            Some(below) => unsafe { links(below).above = above },
            None => self.bottom = above,
        }
    }
}

impl<A: DeviceAllocator> Stack<A> {
    /// Moves a record to the bottom.
    ///
    /// # Safety
    ///
    /// As for [`Stack::remove`].
    pub(super) unsafe fn move_to_bottom(&mut self, record: Address<A>) {
        // SAFETY: as the caller says.
        unsafe { self.remove(record) };
        // SAFETY: as above; the record is in no stack now.
        let own = unsafe { links(record) };
        (own.above, own.below) = (self.bottom, None);
        match self.bottom.replace(record) {
            // SAFETY: as above; the two are not the same record.
            Some(above) => unsafe { links(above).below = Some(record) },
            None => self.top = Some(record),
        }
    }
}

/// All blocks of a shard in the order in which they came.
pub(super) struct Ages<A: DeviceAllocator> {
    newest: Link<A>,
    pub(super) oldest: Link<A>,
}

impl<A: DeviceAllocator> Ages<A> {
    pub(super) const EMPTY: Self = Self { newest: None, oldest: None };

    /// Adds a record as the newest.
    ///
    /// # Safety
    ///
    /// The record is not in the list, whose records are as [`links`] asks for.
    #[inline]
    pub(super) unsafe fn push(&mut self, record: Address<A>) {
        // SAFETY: as the caller says.
        let own = unsafe { links(record) };
        (own.newer, own.older) = (None, self.newest);
        match self.newest.replace(record) {
            // SAFETY: as above; the two are not the same record.
            Some(older) => unsafe { links(older).newer = Some(record) },
            None => self.oldest = Some(record),
        }
    }

    /// The record that came last.
    pub(super) fn newest(&self) -> Link<A> {
        self.newest
    }

    /// Moves a record to the place just older than another one.
    ///
    /// # Safety
    ///
    /// The two are different records of the list, whose records are as [`links`] asks for.
    pub(super) unsafe fn move_before(&mut self, record: Address<A>, newer: Address<A>) {
        // SAFETY: as the caller says.
        unsafe { self.remove(record) };
        // SAFETY: as above.
        let older = unsafe { links(newer) }.older.replace(record);
        // SAFETY: as above.
        let own = unsafe { links(record) };
        (own.newer, own.older) = (Some(newer), older);
        match older {
            // SAFETY: as above.
            Some(older) => unsafe { links(older).newer = Some(record) },
            None => self.oldest = Some(record),
        }
    }

    /// Takes a record out.
    ///
    /// # Safety
    ///
    /// The record is in the list, whose records are as [`links`] asks for.
    #[inline]
    pub(super) unsafe fn remove(&mut self, record: Address<A>) {
        // SAFETY: as the caller says.
        let Links { newer, older, .. } = *unsafe { links(record) };
        match newer {
            // SAFETY: as above.
            Some(newer) => unsafe { links(newer).older = older },
            None => self.newest = older,
        }
        match older {
            // SAFETY: as above.
            Some(older) => unsafe { links(older).newer = newer },
            None => self.oldest = newer,
        }
    }
}

// SAFETY: the lists are the owners of their records, which are as good as the records themselves.
unsafe impl<A: DeviceAllocator> Send for Stack<A> where Record<A>: Send {}
// SAFETY: as above.
unsafe impl<A: DeviceAllocator> Send for Ages<A> where Record<A>: Send {}
