//! Records: the fields of a block that a buffer has, or that a pool keeps.
//!
//! A record stays at one address, a slot of the book, so handing a block on moves a pointer.
#![expect(unsafe_code, reason = "a record has one owner, which holds its address")]

use crate::heap::block::private::PrivateId;
use crate::heap::block::request::PoolRequest;
use crate::observe::{EventFields, Tag};
use crate::port::{DeviceAllocator, MarkOf, StreamOf};
use crate::stream::LastUses;
use crate::sys::Mutex;
use crate::sys::atomic::AtomicPtr;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Type-erased pointer to the owning store. `reference.rs` writes and reads it.
#[derive(Debug, Default)]
pub(crate) struct StoreAddress(pub(crate) AtomicPtr<()>);

/// A block, and what belongs to it. No two are on one cache line: blocks that threads take at the
/// same time have neighbouring slots.
#[repr(align(64))]
pub(crate) struct Record<A: DeviceAllocator> {
    pub(crate) part: Part<A>,
    pub(crate) marks: Mutex<LastUses<A::Clock>>,
    pub(crate) kind: A::Kind,
    pub(crate) store_address: StoreAddress,
    pub(crate) bytes: u64,
    /// Bytes that its present owner requested.
    pub(crate) requested: u64,
    /// Whether the pool may keep it.
    pub(crate) pooled: bool,
    /// Whether old contents may show.
    pub(crate) unzeroed: bool,
    /// The tag of its request, in a pool with observers.
    pub(crate) tag: Tag,
    /// Allocations so far when it was freed into a thread cache.
    pub(crate) turn: u64,
    /// Blocks that the thread cache had kept until then.
    pub(crate) stamp: u64,
    /// The private pool that it belongs to.
    pub(crate) private: Option<PrivateId>,
    /// The block below it in a bin of a thread cache.
    pub(crate) older: Option<RecordOwner<A>>,
}

/// A range of a segment; without an arena, all of it.
pub(crate) struct Part<A: DeviceAllocator> {
    /// The block of the segment.
    pub(crate) block: NonNull<A::Block>,
    /// Bytes from its start.
    pub(crate) offset: u64,
    /// The number of the range in the book.
    pub(crate) range: u32,
}

// SAFETY: a part is a shared reference to the block of its segment, which is `Sync`.
unsafe impl<A: DeviceAllocator> Send for Part<A> {}
// SAFETY: as above.
unsafe impl<A: DeviceAllocator> Sync for Part<A> {}

impl<A: DeviceAllocator> Part<A> {
    /// The block of the segment.
    pub(crate) fn segment(&self) -> &A::Block {
        // SAFETY: the pointer came from a box, and the book gives a segment back to the device, and
        // its box with it, only when no range of it is live or private. This range is, as long as
        // its record has an owner.
        unsafe { self.block.as_ref() }
    }

    /// The block, where it is lent whole.
    pub(crate) fn whole(&mut self) -> &mut A::Block {
        debug_assert_eq!(self.offset, 0);
        // SAFETY: as above. The part is the only one of its segment in a pool without an arena
        // (book/blocks.rs), and is borrowed alone.
        unsafe { self.block.as_mut() }
    }
}

impl<A: DeviceAllocator> Record<A> {
    /// A record of a block that is lent for a request.
    #[inline]
    pub(crate) fn new(
        part: Part<A>,
        bytes: u64,
        request: &PoolRequest<'_, A>,
        mark: MarkOf<A>,
    ) -> Self {
        Self {
            part,
            marks: Mutex::new(LastUses::new(mark)),
            kind: request.key.kind,
            store_address: StoreAddress::default(),
            bytes,
            requested: request.requested,
            pooled: request.class.is_cached(),
            unzeroed: false,
            tag: Tag::default(),
            turn: 0,
            stamp: 0,
            private: request.private,
            older: None,
        }
    }

    /// The first `bytes` bytes, for work on `on`.
    #[inline]
    pub(crate) fn view<'b>(
        &'b self,
        allocator: &'b A,
        bytes: u64,
        on: &StreamOf<A>,
    ) -> A::View<'b> {
        allocator.view(self.part.segment(), self.part.offset, bytes, on)
    }

    /// Returns the fields of an event of this block, of the stream with this number.
    pub(crate) fn event_fields(&self, stream: u64) -> EventFields {
        EventFields {
            tag: self.tag,
            stream,
            id: std::ptr::from_ref(self) as u64,
            requested: self.requested,
            bytes: self.bytes,
        }
    }

    /// Whether it has the size and the kind of a request.
    pub(crate) fn serves(&self, request: &PoolRequest<'_, A>) -> bool {
        let kept = self.pooled == request.class.is_cached(); // what was detached is not lent again
        kept && request.sizes().contains(&self.bytes) && self.kind == request.key.kind
    }

    /// Removes it from its private pool, behind what that was.
    pub(crate) fn leave_private(&mut self, clock: &A::Clock, behind: &[MarkOf<A>]) {
        self.private = None;
        let marks = self.marks.get_mut();
        for mark in behind {
            marks.end(clock, *mark);
        }
    }
}

/// The block of a segment, in a box whose address its parts have.
pub(crate) struct SegmentBlock<A: DeviceAllocator>(NonNull<A::Block>);

impl<A: DeviceAllocator> SegmentBlock<A> {
    pub(crate) fn new(block: A::Block) -> Self {
        Self(NonNull::from(Box::leak(Box::new(block))))
    }

    /// The address, for a part.
    #[inline]
    pub(crate) fn share(&self) -> NonNull<A::Block> {
        self.0
    }

    /// Moves the block out.
    ///
    /// # Safety
    ///
    /// No range of the segment is lent, private or moving, so no code uses an address that
    /// [`SegmentBlock::share`] gave.
    pub(crate) unsafe fn into_inner(self) -> A::Block {
        // SAFETY: `new` made it from a box, and the caller says that no other code uses it.
        *unsafe { Box::from_raw(self.0.as_ptr()) }
    }
}

// SAFETY: it is the owner of a block, which is `Send`.
unsafe impl<A: DeviceAllocator> Send for SegmentBlock<A> {}
// SAFETY: it gives out an address only.
unsafe impl<A: DeviceAllocator> Sync for SegmentBlock<A> {}

/// The owner of the record in a slot.
#[repr(transparent)]
pub(crate) struct RecordOwner<A: DeviceAllocator>(NonNull<Record<A>>);

impl<A: DeviceAllocator> RecordOwner<A> {
    /// A record in a slot of the book.
    ///
    /// # Safety
    ///
    /// The slot is vacant and stays where it is; no other code uses it until the owner is gone.
    #[inline]
    pub(crate) unsafe fn in_slot(slot: NonNull<Record<A>>, record: Record<A>) -> Self {
        // SAFETY: as the caller says, the slot is valid for a write, and holds nothing to drop.
        unsafe { slot.write(record) };
        Self(slot)
    }

    /// Drops a record in a slot, which is vacant then.
    #[inline]
    pub(crate) fn vacate(self) {
        let mut this = std::mem::ManuallyDrop::new(self);
        let marks = std::ptr::from_mut(&mut this.marks);
        // SAFETY: the marks are all that there is to drop of a record, and its owner is not used
        // again.
        unsafe { marks.drop_in_place() };
    }
}

impl<A: DeviceAllocator> Drop for RecordOwner<A> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the slot holds a record, and its only owner goes.
        unsafe { self.0.drop_in_place() };
    }
}

impl<A: DeviceAllocator> Deref for RecordOwner<A> {
    type Target = Record<A>;
    #[inline]
    fn deref(&self) -> &Record<A> {
        // SAFETY: it points to a record that this owner keeps alive.
        unsafe { self.0.as_ref() }
    }
}

impl<A: DeviceAllocator> DerefMut for RecordOwner<A> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Record<A> {
        // SAFETY: as above, and the only owner is borrowed alone.
        unsafe { self.0.as_mut() }
    }
}

// SAFETY: it is the only owner of its record, so it is as good as the record.
unsafe impl<A: DeviceAllocator> Send for RecordOwner<A> where Record<A>: Send {}
// SAFETY: as above; a shared owner gives shared access to a record.
unsafe impl<A: DeviceAllocator> Sync for RecordOwner<A> where Record<A>: Sync {}

/// Slots of records at fixed addresses, by the numbers of ranges.
pub(crate) struct Slab<T> {
    chunks: Vec<NonNull<[std::mem::MaybeUninit<T>; CHUNK]>>,
}

/// Slots of a chunk. The stacks of a checker's threads are small.
const CHUNK: usize = if cfg!(any(loom, shuttle)) { 2 } else { 256 };

impl<T> Slab<T> {
    pub(crate) fn new() -> Self {
        Self { chunks: Vec::new() }
    }

    /// The slot of a number. Chunks are added until there is one.
    #[inline]
    pub(crate) fn slot(&mut self, number: u32) -> NonNull<T> {
        let (chunk, at) = (number as usize / CHUNK, number as usize % CHUNK);
        while self.chunks.len() <= chunk {
            self.grow();
        }
        // SAFETY: the index is below the length of the chunk, which lives as long as the slab.
        unsafe { self.chunks[chunk].cast::<T>().add(at) }
    }

    /// The address of the slot of a number; 0 if there is none.
    pub(crate) fn address(&self, number: u32) -> u64 {
        let (chunk, at) = (number as usize / CHUNK, number as usize % CHUNK);
        let start = self.chunks.get(chunk).map(|chunk| chunk.addr().get());
        start.map_or(0, |start| (start + at * size_of::<T>()) as u64)
    }

    #[cold]
    fn grow(&mut self) {
        let chunk = Box::new([const { std::mem::MaybeUninit::uninit() }; CHUNK]);
        self.chunks.push(NonNull::from(Box::leak(chunk)));
    }
}

impl<T> Drop for Slab<T> {
    /// Frees the chunks. What is in the slots belongs to its owners, which are gone.
    fn drop(&mut self) {
        for chunk in self.chunks.drain(..) {
            // SAFETY: `grow` made it from a box, and no record is in use any more.
            drop(unsafe { Box::from_raw(chunk.as_ptr()) });
        }
    }
}

// SAFETY: the slab is the owner of its chunks; it gives out addresses only.
unsafe impl<T: Send> Send for Slab<T> {}
