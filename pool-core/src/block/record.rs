//! Records: the fields of a block that a buffer has, or that a pool keeps.
//!
//! A record stays at one address, so handing a block on moves a pointer. That of a whole block is in
//! a box of its own; that of a part of a segment is in a slot of its shard.
#![expect(unsafe_code, reason = "a record has one owner, which holds its address")]

use crate::block::flags::{BYPASS, BlockFlags, CLEAN, PART, PLAIN, PRIVATE, UsesGuard};
use crate::block::{PoolRequest, PrivateId};
use crate::observe::{EventFields, Tag};
use crate::port::{DeviceAllocator, MarkOf, StreamOf};
use crate::stream::{Access, LastUses};
use crate::sys::Lock;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// A block, and what belongs to it. No two are on one cache line: blocks that threads take at the
/// same time may have neighbouring slots.
#[repr(align(64))]
pub(crate) struct Record<A: DeviceAllocator> {
    /// Its neighbours among the free blocks of its bin (`blocks/table.rs`).
    pub(crate) links: Links<A>,
    /// Its place among the free blocks of its shard by age (`blocks/by_age.rs`).
    pub(crate) came: u64,
    /// The slot of the bin that it was in last (`blocks/table.rs`).
    pub(crate) slot: u32,
    pub(crate) bytes: u64,
    /// Bytes that its present owner requested.
    pub(crate) requested: u64,
    /// The store of its pool, without its type (`store/life.rs`). Written when a whole block
    /// comes from the device, and each time a part is lent.
    pub(crate) store: Option<NonNull<()>>,
    pub(crate) flags: BlockFlags,
    pub(crate) marks: Lock<LastUses<A::Clock>>,
    pub(crate) kind: A::Kind,
    /// The tag of its request, in a pool with observers.
    pub(crate) tag: Tag,
    /// The time of its shard when it was freed.
    pub(crate) freed_at: u64,
    /// The private pool that it belongs to.
    pub(super) private: Option<PrivateId>,
    pub(crate) place: Place<A>,
}

/// Where a block is.
pub(crate) enum Place<A: DeviceAllocator> {
    /// A whole block of the device, which its record owns.
    Whole(A::Block),
    /// A part of a segment.
    Part(Part<A>),
}

/// A range of a segment.
pub(crate) struct Part<A: DeviceAllocator> {
    /// The block of the segment.
    block: NonNull<A::Block>,
    /// Bytes from its start.
    pub(crate) offset: u64,
    /// The number of the range in its shard, and of the shard.
    pub(crate) range: u32,
    pub(crate) shard: u32,
}

/// Neighbours of a free block in the stack of its bin. That above the top means nothing.
pub(crate) struct Links<A: DeviceAllocator> {
    pub(crate) above: Link<A>,
    pub(crate) below: Link<A>,
}

/// The address of a record that the same lists have.
pub(crate) type Link<A> = Option<NonNull<Record<A>>>;

impl<A: DeviceAllocator> Links<A> {
    const NONE: Self = Self { above: None, below: None };
}

// SAFETY: links are addresses, which only the owner of the lists that they belong to follows.
unsafe impl<A: DeviceAllocator> Send for Links<A> {}
// SAFETY: as above.
unsafe impl<A: DeviceAllocator> Sync for Links<A> {}
// SAFETY: a part is a shared reference to the block of its segment, which is `Sync`.
unsafe impl<A: DeviceAllocator> Send for Part<A> {}
// SAFETY: as above.
unsafe impl<A: DeviceAllocator> Sync for Part<A> {}
// SAFETY: the address of the store is followed by `store/life.rs` alone, which says why that
// is sound on any thread; the other fields are `Send`.
unsafe impl<A: DeviceAllocator> Send for Record<A> where LastUses<A::Clock>: Send {}
// SAFETY: as above.
unsafe impl<A: DeviceAllocator> Sync for Record<A> where LastUses<A::Clock>: Send {}

impl<A: DeviceAllocator> Part<A> {
    pub(crate) fn new(segment: &SegmentBlock<A>, offset: u64, (range, shard): (u32, u32)) -> Self {
        Self { block: segment.0, offset, range, shard }
    }

    /// The block of the segment.
    #[inline]
    pub(crate) fn segment(&self) -> &A::Block {
        // SAFETY: the pointer came from a box, and a shard gives a segment back to the device, and
        // its box with it, only when no range of it is live or private. This range is, as long as
        // its record has an owner.
        unsafe { self.block.as_ref() }
    }
}

impl<A: DeviceAllocator> Record<A> {
    /// A record of a block that is lent for a request.
    #[inline]
    pub(crate) fn new(
        place: Place<A>,
        bytes: u64,
        request: &PoolRequest<'_, A>,
        mark: MarkOf<A>,
    ) -> Self {
        let flags = if matches!(place, Place::Part(_)) { PART } else { 0 }
            | if request.class.is_cached() { 0 } else { BYPASS }
            | if request.private.is_some() { PRIVATE } else { 0 }
            | CLEAN;
        let sizes = (bytes, request.requested);
        let record = Self::with_flags(flags, place, sizes, request.key.kind, mark);
        Self { private: request.private, ..record }
    }

    /// A record of a block that is in no private pool, and that knows no store yet.
    #[inline]
    fn with_flags(
        flags: u32,
        place: Place<A>,
        (bytes, requested): (u64, u64),
        kind: A::Kind,
        mark: MarkOf<A>,
    ) -> Self {
        Self {
            links: Links::NONE,
            came: 0,
            slot: 0,
            bytes,
            requested,
            store: None,
            flags: BlockFlags::new(flags),
            marks: Lock::new(LastUses::new(mark)),
            kind,
            tag: Tag::default(),
            freed_at: 0,
            private: None,
            place,
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
        match &self.place {
            Place::Whole(block) => allocator.view(block, 0, bytes, on),
            Place::Part(part) => allocator.view(part.segment(), part.offset, bytes, on),
        }
    }

    /// Whether a free block is plain but for the flags `but`, and may be taken for work on a stream.
    #[inline]
    pub(crate) fn is_plain_and_ready(
        &mut self,
        but: u32,
        clock: &A::Clock,
        on: &StreamOf<A>,
    ) -> bool {
        self.flags.get_mut() & !but == PLAIN
            && self.marks.get_mut().own_is_ready(clock, on, A::MEMORY.cpu_touches)
    }

    /// Whether the pool may keep it.
    #[inline]
    pub(crate) fn is_pooled(&self) -> bool {
        !self.flags.any(BYPASS)
    }

    /// Whether its bytes are zero.
    #[inline]
    pub(crate) fn is_clean(&self) -> bool {
        self.flags.any(CLEAN)
    }

    /// The private pool that it belongs to.
    #[inline]
    pub(crate) fn private(&self) -> Option<PrivateId> {
        self.private
    }

    /// Begins a use ([`LastUses::begin_alone`]), if no other thread is there.
    #[inline]
    pub(crate) fn begin_alone(&self, clock: &A::Clock, on: &StreamOf<A>, access: Access) -> bool {
        let Some(mut uses) = self.marks.try_lock() else { return false };
        let is_alone = uses.begin_alone(clock, on, access);
        if is_alone {
            self.flags.note_open(true);
        }
        is_alone
    }

    /// Ends a use ([`LastUses::end_alone`]), if no other thread is there.
    #[inline]
    pub(crate) fn end_alone(&self, clock: &A::Clock, mark: MarkOf<A>, access: Access) -> bool {
        let Some(mut uses) = self.marks.try_lock() else { return false };
        let is_alone = uses.end_alone(clock, mark, access);
        if is_alone && !uses.is_open_on_own() {
            self.flags.note_open(false);
        }
        is_alone
    }

    /// The uses, under their lock.
    #[inline]
    pub(crate) fn uses(
        &self,
    ) -> UsesGuard<'_, A::Clock, impl DerefMut<Target = LastUses<A::Clock>> + '_> {
        UsesGuard::new(&self.flags, self.marks.lock())
    }

    /// The uses, for who has the record alone.
    #[inline]
    pub(crate) fn uses_mut(&mut self) -> UsesGuard<'_, A::Clock, &mut LastUses<A::Clock>> {
        UsesGuard::new(&self.flags, self.marks.get_mut())
    }

    /// The part of a segment that it is; `None` for a whole block.
    #[inline]
    pub(crate) fn part(&self) -> Option<&Part<A>> {
        match &self.place {
            Place::Whole(_) => None,
            Place::Part(part) => Some(part),
        }
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
        let kept = self.is_pooled() == request.class.is_cached(); // what was detached is not lent again
        kept && request.sizes().contains(&self.bytes) && self.kind == request.key.kind
    }

    /// Makes it a block of a private pool, or of none.
    pub(crate) fn join_private(&mut self, private: Option<PrivateId>) {
        self.private = private;
        self.flags.set(PRIVATE, private.is_some());
    }

    /// Removes it from its private pool, behind what that was.
    pub(crate) fn leave_private(&mut self, clock: &A::Clock, behind: &[MarkOf<A>]) {
        self.join_private(None);
        let mut marks = self.uses_mut();
        for mark in behind {
            marks.end(clock, *mark, Access::Write);
        }
    }
}

/// The block of a segment, in a box whose address its parts have.
pub(crate) struct SegmentBlock<A: DeviceAllocator>(NonNull<A::Block>);

impl<A: DeviceAllocator> SegmentBlock<A> {
    pub(crate) fn new(block: A::Block) -> Self {
        Self(NonNull::from(Box::leak(Box::new(block))))
    }

    /// The address, for a range that is in no list.
    pub(crate) fn share(&self) -> NonNull<A::Block> {
        self.0
    }

    /// Moves the block out.
    ///
    /// # Safety
    ///
    /// No range of the segment is lent, private or moving, so no code uses the address that a
    /// [`Part`] or a piece of it has.
    pub(crate) unsafe fn into_inner(self) -> A::Block {
        // SAFETY: `new` made it from a box, and the caller says that no other code uses it.
        *unsafe { Box::from_raw(self.0.as_ptr()) }
    }
}

// SAFETY: it is the owner of a block, which is `Send`.
unsafe impl<A: DeviceAllocator> Send for SegmentBlock<A> {}
// SAFETY: it gives out an address only.
unsafe impl<A: DeviceAllocator> Sync for SegmentBlock<A> {}

/// The owner of a record.
#[repr(transparent)]
pub(crate) struct RecordOwner<A: DeviceAllocator>(NonNull<Record<A>>);

impl<A: DeviceAllocator> RecordOwner<A> {
    /// A record of a whole block, in a box.
    pub(crate) fn boxed(record: Record<A>) -> Self {
        debug_assert!(record.part().is_none(), "parts have slots");
        Self(NonNull::from(Box::leak(Box::new(record))))
    }

    /// A record of a part, in a slot.
    ///
    /// # Safety
    ///
    /// The slot is vacant and stays where it is; no other code uses it until the owner is gone. The
    /// record is that of a part.
    #[inline]
    pub(crate) unsafe fn in_slot(slot: NonNull<Record<A>>, record: Record<A>) -> Self {
        debug_assert!(record.part().is_some(), "whole blocks have boxes");
        // SAFETY: as the caller says, the slot is valid for a write, and holds nothing to drop.
        unsafe { slot.write(record) };
        Self(slot)
    }

    /// Writes the record of a part that serves a plain request into its slot. Its bytes may be anything.
    ///
    /// # Safety
    ///
    /// As for [`RecordOwner::in_slot`].
    #[expect(clippy::inline_always, reason = "no copy of the record is made and moved")]
    #[inline(always)]
    pub(crate) unsafe fn plain_in_slot(
        slot: NonNull<Record<A>>,
        part: Part<A>,
        sizes: (u64, u64),
        kind: A::Kind,
        mark: MarkOf<A>,
        store: Option<NonNull<()>>,
    ) -> Self {
        let record = Record::with_flags(PART, Place::Part(part), sizes, kind, mark);
        // SAFETY: as the caller promises.
        unsafe { Self::in_slot(slot, Record { store, ..record }) }
    }

    /// Gives the record to a list, which owns it by its address.
    #[inline]
    pub(crate) fn into_address(self) -> NonNull<Record<A>> {
        std::mem::ManuallyDrop::new(self).0
    }

    /// Takes a record out of a list.
    ///
    /// # Safety
    ///
    /// The address came from [`RecordOwner::into_address`], and no other code uses it from now on.
    #[inline]
    pub(crate) unsafe fn of_address(address: NonNull<Record<A>>) -> Self {
        Self(address)
    }

    /// Ends a record. Returns its whole block, or nothing for a part, whose slot is vacant then.
    pub(crate) fn into_block(self) -> Option<A::Block> {
        let address = self.into_address();
        // SAFETY: this was the only owner.
        if unsafe { address.as_ref() }.part().is_some() {
            // SAFETY: as above; the slot itself belongs to the shard.
            unsafe { address.drop_in_place() };
            return None;
        }
        // SAFETY: the record of a whole block is in a box (`boxed`).
        let record = *unsafe { Box::from_raw(address.as_ptr()) };
        match record.place {
            Place::Whole(block) => Some(block),
            Place::Part(_) => None,
        }
    }

    /// Ends the record of a part, whose slot is vacant then.
    #[inline]
    pub(crate) fn vacate(self) {
        debug_assert!(self.part().is_some(), "whole blocks have boxes");
        let mut this = std::mem::ManuallyDrop::new(self);
        let marks = std::ptr::from_mut(&mut this.marks);
        // SAFETY: the marks are all that there is to drop of the record of a part, and its owner is
        // not used again.
        unsafe { marks.drop_in_place() };
    }
}

impl<A: DeviceAllocator> Drop for RecordOwner<A> {
    /// Loses the block: only a panic of foreign code drops an owner.
    #[cold]
    fn drop(&mut self) {
        drop(Self(self.0).into_block());
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

/// Slots of records at fixed addresses, by the numbers of ranges in a shard.
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
