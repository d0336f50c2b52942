//! The table of a thread cache: a stack of blocks for each size, kind and stream. Open addressing,
//! so that a size is found without a search in almost all cases.

use crate::heap::block::record::RecordOwner;
use crate::heap::block::request::Key;
use crate::port::DeviceAllocator;
use std::ops::RangeInclusive;

/// Slots at first, as a power of two.
const FIRST_BITS: u32 = 6;
/// Slots at most. Beyond that a size has no bin, and its blocks go to the book.
const MOST_BITS: u32 = 12;

/// Blocks one upon the other, linked through their records.
struct Stack<A: DeviceAllocator>(Option<RecordOwner<A>>);

impl<A: DeviceAllocator> Stack<A> {
    #[inline]
    fn top(&mut self) -> Option<&mut RecordOwner<A>> {
        self.0.as_mut()
    }

    #[inline]
    fn push(&mut self, mut record: RecordOwner<A>) {
        forget_none(std::mem::replace(&mut record.older, self.0.take()));
        forget_none(self.0.replace(record));
    }

    /// Puts a stack below this one: a step for each block of this one.
    fn push_below(&mut self, lower: Option<RecordOwner<A>>) {
        let mut bottom = &mut self.0;
        while let Some(record) = bottom {
            bottom = &mut record.older;
        }
        *bottom = lower;
    }

    #[inline]
    fn pop(&mut self) -> Option<RecordOwner<A>> {
        let mut record = self.0.take()?;
        let below = record.older.take();
        forget_none(std::mem::replace(&mut self.0, below));
        Some(record)
    }
}

/// Spares the compiler the drop of what is never there.
#[inline]
fn forget_none<T>(none: Option<T>) {
    debug_assert!(none.is_none());
    std::mem::forget(none);
}

/// The blocks of one size, kind and stream, the newest on top.
pub(super) struct Bin<A: DeviceAllocator> {
    /// 0: vacant.
    bytes: u64,
    key: Key<A::Kind>,
    blocks: Stack<A>,
    /// Blocks that it may get without asking the book, under a bucket limit.
    room: u32,
}

impl<A: DeviceAllocator> Bin<A> {
    fn vacant() -> Self {
        let key = Key { kind: A::Kind::default(), stream_id: 0 };
        Self { bytes: 0, key, blocks: Stack(None), room: 0 }
    }

    #[inline]
    fn is_of(&self, key: Key<A::Kind>, bytes: u64) -> bool {
        self.bytes == bytes && self.key == key
    }

    #[inline]
    pub(super) fn top(&mut self) -> Option<&mut RecordOwner<A>> {
        self.blocks.top()
    }

    /// Takes the newest block for a buffer.
    #[inline]
    pub(super) fn take(&mut self) -> Option<RecordOwner<A>> {
        let record = self.blocks.pop()?;
        self.room += 1;
        Some(record)
    }

    /// Takes the newest block for the book. What it had of the room of a bucket goes with it.
    fn give_up(&mut self, limited: bool) -> Option<RecordOwner<A>> {
        let record = self.blocks.pop()?;
        self.room += u32::from(!limited);
        Some(record)
    }

    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.room > 0
    }

    /// How many blocks there are, without a bucket limit.
    fn blocks(&self) -> u32 {
        UNLIMITED - self.room
    }

    /// Adds a block. Call it only if there is room.
    #[inline]
    pub(super) fn put(&mut self, record: RecordOwner<A>) {
        self.room -= 1;
        self.blocks.push(record);
    }
}

/// Room without a bucket limit: more blocks than there can be.
const UNLIMITED: u32 = 1 << 31;

/// All bins of a thread cache.
pub(super) struct Bins<A: DeviceAllocator> {
    slots: Box<[Bin<A>]>,
    /// Bits of a hash that do not name a slot.
    shift: u32,
    /// Slots that are not vacant.
    used: usize,
    /// The slot that is emptied next.
    next: usize,
    /// The number of the stream of all bins, if there is one.
    stream: Option<u64>,
    /// Whether there are bins of several streams.
    several_streams: bool,
    /// No bin can be added until a block leaves.
    full: bool,
    /// Whether bins get their room from the book.
    limited: bool,
}

impl<A: DeviceAllocator> Bins<A> {
    pub(super) fn new(limited: bool) -> Self {
        // One vacant slot, so that a search always ends.
        Self {
            slots: Box::new([Bin::vacant()]),
            shift: u64::BITS - 1,
            used: 0,
            next: 0,
            stream: None,
            several_streams: false,
            full: false,
            limited,
        }
    }

    /// A multiplicative hash (Knuth, *TAOCP* 6.4).
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "below the number of slots")]
    fn first_slot(&self, key: Key<A::Kind>, bytes: u64) -> usize {
        let mixed = (bytes ^ key.stream_id.rotate_right(16)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed >> self.shift) as usize & (self.slots.len() - 1)
    }

    /// The slot of a size, or the vacant one where it would be. There is a vacant one.
    #[inline]
    fn slot(&self, key: Key<A::Kind>, bytes: u64) -> usize {
        let mut at = self.first_slot(key, bytes);
        while self.slots.get(at).is_some_and(|bin| !bin.is_of(key, bytes) && bin.bytes != 0) {
            at = (at + 1) & (self.slots.len() - 1);
        }
        at
    }

    /// Whether bins get their room from the book.
    pub(super) fn are_limited(&self) -> bool {
        self.limited
    }

    /// The bin of a size, if there is one.
    #[inline]
    pub(super) fn find(&mut self, key: Key<A::Kind>, bytes: u64) -> Option<&mut Bin<A>> {
        // Not by index: no branch of a hit is to be a panic.
        self.slots.get_mut(self.slot(key, bytes)).filter(|bin| bin.bytes != 0)
    }

    /// The bin of a size, or a new one if there is a slot for it, with room for `more` blocks more.
    pub(super) fn find_or_add(
        &mut self,
        key: Key<A::Kind>,
        bytes: u64,
        more: u32,
    ) -> Option<&mut Bin<A>> {
        if self.find(key, bytes).is_none() {
            if 2 * (self.used + 1) > self.slots.len() && !self.make_room() {
                return None;
            }
            self.several_streams |= *self.stream.get_or_insert(key.stream_id) != key.stream_id;
            let at = self.slot(key, bytes);
            let bin = &mut self.slots[at];
            (bin.bytes, bin.key) = (bytes, key);
            bin.room = if self.limited { 0 } else { UNLIMITED };
            self.used += 1;
        }
        let bin = self.find(key, bytes)?;
        bin.room += more;
        Some(bin)
    }

    /// Takes away the room that the bin of a size has from the book.
    pub(super) fn take_bin_lease(&mut self, key: Key<A::Kind>, bytes: u64) -> u32 {
        let bin = if self.limited { self.find(key, bytes) } else { None };
        bin.map_or(0, |bin| std::mem::take(&mut bin.room))
    }

    /// Takes away the room that empty bins have from the book. Calls `end` for each that had any.
    pub(super) fn end_bin_leases(&mut self, mut end: impl FnMut(Key<A::Kind>, u64, u32)) {
        if !self.limited {
            return;
        }
        for bin in self.slots.iter_mut().filter(|bin| bin.room > 0) {
            end(bin.key, bin.bytes, std::mem::take(&mut bin.room));
        }
    }

    /// Forgets empty bins, and grows where that is not enough. Returns whether a bin fits then.
    #[cold]
    fn make_room(&mut self) -> bool {
        if self.full {
            return false;
        }
        let limited = self.limited;
        let stays = |bin: &Bin<A>| bin.blocks.0.is_some() || (limited && bin.room > 0);
        let filled = self.slots.iter().filter(|bin| stays(bin)).count();
        let bits = (4 * (filled + 1)).next_power_of_two().ilog2().clamp(FIRST_BITS, MOST_BITS);
        // An eighth of the slots at least is for new sizes, so that not each of them comes here.
        self.full = 2 * filled + (1 << (bits - 3)) > 1 << bits;
        if self.full {
            return false;
        }
        let slots = (0..1 << bits).map(|_| Bin::vacant()).collect();
        let old = std::mem::replace(&mut self.slots, slots);
        (self.shift, self.used, self.next) = (u64::BITS - bits, filled, 0);
        for bin in old.into_iter().filter(stays) {
            let at = self.slot(bin.key, bin.bytes);
            self.slots[at] = bin;
        }
        true
    }

    /// Takes any block out, of one bin after the other; `None` if there is none.
    pub(super) fn pop(&mut self) -> Option<RecordOwner<A>> {
        self.full = false;
        for _ in 0..self.slots.len() {
            let bin = &mut self.slots[self.next];
            if let Some(record) = bin.give_up(self.limited) {
                return Some(record);
            }
            self.next = (self.next + 1) & (self.slots.len() - 1);
        }
        None
    }

    /// Takes a block of one of these sizes and a kind out, of any stream. `from` is the slot to
    /// begin with, and then the one to carry on with. If there is one size, and all bins are of
    /// one stream, one bin is looked at.
    pub(super) fn pop_like(
        &mut self,
        kind: A::Kind,
        sizes: &RangeInclusive<u64>,
        from: &mut usize,
    ) -> Option<RecordOwner<A>> {
        self.full = false;
        if !self.several_streams && sizes.start() == sizes.end() {
            let stream_id = self.stream?;
            let limited = self.limited;
            return self.find(Key { kind, stream_id }, *sizes.start())?.give_up(limited);
        }
        while let Some(bin) = self.slots.get_mut(*from) {
            let is_like = sizes.contains(&bin.bytes) && bin.key.kind == kind;
            if is_like && let Some(record) = bin.give_up(self.limited) {
                return Some(record);
            }
            *from += 1;
        }
        None
    }

    /// Moves all blocks of a size below those of another cache. Returns how many, which are none
    /// where that has no slot for them, and under a bucket limit.
    pub(super) fn move_bin(&mut self, to: &mut Self, key: Key<A::Kind>, bytes: u64) -> u64 {
        let from = if self.limited { None } else { self.find(key, bytes) };
        let Some(from) = from.filter(|from| from.blocks() > 0) else { return 0 };
        let Some(to) = to.find_or_add(key, bytes, 0) else { return 0 };
        let count = from.blocks();
        (from.room, to.room) = (UNLIMITED, to.room - count);
        to.blocks.push_below(from.blocks.0.take());
        self.full = false;
        count.into()
    }

    /// How many blocks of a size there are, without a bucket limit.
    pub(super) fn count(&mut self, key: Key<A::Kind>, bytes: u64) -> u64 {
        let bin = if self.limited { None } else { self.find(key, bytes) };
        bin.map_or(0, |bin| bin.blocks().into())
    }

    /// Looks at each block.
    pub(super) fn each(&self, mut look: impl FnMut(&RecordOwner<A>)) {
        for bin in &self.slots {
            let mut next = bin.blocks.0.as_ref();
            while let Some(record) = next {
                look(record);
                next = record.older.as_ref();
            }
        }
    }
}
