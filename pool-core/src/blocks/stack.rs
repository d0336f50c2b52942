//! The stack of a bin through the links in its records.
#![expect(unsafe_code, reason = "records of free blocks are reached by their addresses")]

use crate::block::record::{Link, Links, Record};
use crate::port::DeviceAllocator;
use std::ptr::NonNull;

/// A record that a stack owns.
pub(super) type Address<A> = NonNull<Record<A>>;

/// The links of a record.
///
/// # Safety
///
/// The record is in a stack of one [`Blocks`](super::Blocks), which is borrowed alone, and no
/// reference to it is in use.
#[inline]
unsafe fn links<'l, A: DeviceAllocator>(of: Address<A>) -> &'l mut Links<A> {
    // SAFETY: as the caller says.
    unsafe { &mut (*of.as_ptr()).links }
}

/// Blocks one upon the other in the order in which they came, the newest on top.
pub(super) struct Stack<A: DeviceAllocator> {
    pub(super) top: Link<A>,
    /// Of meaning only if there is a top. So is the link above only below the top: a hit writes to no
    /// other block.
    bottom: Link<A>,
}

impl<A: DeviceAllocator> Stack<A> {
    pub(super) const EMPTY: Self = Self { top: None, bottom: None };

    /// The block that came first.
    #[inline]
    pub(super) fn bottom(&self) -> Link<A> {
        self.top.and(self.bottom)
    }

    /// The block that came after one of this stack.
    ///
    /// # Safety
    ///
    /// The record is in this stack.
    #[inline]
    pub(super) unsafe fn above(&self, of: Address<A>) -> Link<A> {
        if self.top == Some(of) {
            return None;
        }
        // SAFETY: the stack is borrowed, and with it its records.
        unsafe { of.as_ref() }.links.above
    }

    /// Adds a record on top.
    ///
    /// # Safety
    ///
    /// The record is in no stack, and those of this one are as [`links`] asks for.
    #[inline]
    pub(super) unsafe fn push(&mut self, record: Address<A>) {
        // SAFETY: as the caller says.
        unsafe { links(record) }.below = self.top;
        match self.top.replace(record) {
            // SAFETY: as above; the two are not the same record.
            Some(below) => unsafe { links(below) }.above = Some(record),
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
    }

    /// Adds a record between two neighbours; `None`: it is the bottom, or the top.
    ///
    /// # Safety
    ///
    /// The record is in no stack, the two are neighbours of this one, and all of it are as [`links`]
    /// asks for.
    pub(super) unsafe fn insert(&mut self, record: Address<A>, below: Link<A>, above: Link<A>) {
        // SAFETY: as the caller says.
        let own = unsafe { links(record) };
        (own.below, own.above) = (below, above);
        match below {
            // SAFETY: as above; the three are different records.
            Some(below) => unsafe { links(below) }.above = Some(record),
            None => self.bottom = Some(record),
        }
        match above {
            // SAFETY: as above.
            Some(above) => unsafe { links(above) }.below = Some(record),
            None => self.top = Some(record),
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
        let (below, above) = (unsafe { links(record) }.below, unsafe { self.above(record) });
        match above {
            // SAFETY: as above; the two are not the same record.
            Some(above) => unsafe { links(above) }.below = below,
            None => self.top = below,
        }
        match below {
            // SAFETY: as above.
            Some(below) => unsafe { links(below) }.above = above,
            None => self.bottom = above,
        }
    }
}

// SAFETY: a stack is the owner of its records, which is as good as the records themselves.
unsafe impl<A: DeviceAllocator> Send for Stack<A> where Record<A>: Send {}
