//! Blocks that were freed a moment ago and are kept whole, since a request of the same size often
//! follows: then nothing is split and nothing coalesces.

use super::node::NONE;

/// Slots of the table.
const SLOTS: usize = 128;
/// Blocks of a slot.
const DEEP: usize = 10;
/// Refusals after which a part of the table is to coalesce: what is there is not what is requested.
const REFUSALS: u32 = 64;

/// The blocks of one size and kind.
#[derive(Clone, Copy, Debug)]
struct QuickSlot<K> {
    bytes: u64,
    kind: K,
    blocks: [u32; DEEP],
    len: u8,
}

/// A table of freed blocks by exact size.
#[derive(Debug)]
pub(crate) struct QuickTable<K> {
    slots: Box<[QuickSlot<K>; SLOTS]>,
    bytes: u64,
    refusals: u32,
    /// The slot that is emptied next.
    next: usize,
    /// Sizes are counted in units of 2 to this power.
    unit_bits: u32,
}

impl<K: Copy + Eq> QuickTable<K> {
    /// Blocks that it holds at most.
    pub(crate) const BLOCKS: usize = SLOTS * DEEP;

    /// An empty table of sizes that are multiples of 2 to the power of `unit_bits`.
    pub(crate) fn new(unit_bits: u32, kind: K) -> Self {
        let slot = QuickSlot { bytes: 0, kind, blocks: [NONE; DEEP], len: 0 };
        Self { slots: Box::new([slot; SLOTS]), bytes: 0, refusals: 0, next: 0, unit_bits }
    }

    /// The bytes of all blocks.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A multiplicative hash of the size (Knuth, *TAOCP* 6.4).
    #[inline]
    fn slot(&self, bytes: u64) -> usize {
        ((bytes >> self.unit_bits).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 57) as usize
    }

    /// Keeps a block if its slot has room and the table holds at most `limit` bytes then.
    #[inline]
    pub(crate) fn keep(&mut self, id: u32, kind: K, bytes: u64, limit: u64) -> bool {
        let at = self.slot(bytes);
        let slot = &mut self.slots[at];
        if slot.len == 0 {
            (slot.bytes, slot.kind) = (bytes, kind);
        }
        let full = usize::from(slot.len) == DEEP || self.bytes + bytes > limit;
        if full || slot.bytes != bytes || slot.kind != kind {
            self.refusals += 1;
            return false;
        }
        slot.blocks[usize::from(slot.len)] = id;
        slot.len += 1;
        self.bytes += bytes;
        true
    }

    /// The newest block of a size.
    #[inline]
    pub(crate) fn newest(&self, kind: K, bytes: u64) -> Option<u32> {
        let slot = &self.slots[self.slot(bytes)];
        if slot.bytes != bytes || slot.kind != kind {
            return None;
        }
        slot.blocks.get(usize::from(slot.len).wrapping_sub(1)).copied()
    }

    /// Takes out the block that [`QuickTable::newest`] gave.
    #[inline]
    pub(crate) fn take_newest(&mut self, bytes: u64) {
        let at = self.slot(bytes);
        self.slots[at].len -= 1;
        self.bytes -= bytes;
    }

    /// Takes the newest block of a size that `ready` accepts.
    #[cold]
    pub(crate) fn take(&mut self, kind: K, bytes: u64, ready: impl Fn(u32) -> bool) -> Option<u32> {
        let at = self.slot(bytes);
        let slot = &mut self.slots[at];
        let len = usize::from(slot.len);
        if slot.bytes != bytes || slot.kind != kind {
            return None;
        }
        let at = slot.blocks[..len].iter().rposition(|id| ready(*id))?;
        let id = slot.blocks[at];
        slot.blocks.copy_within(at + 1..len, at);
        slot.len -= 1;
        self.bytes -= bytes;
        Some(id)
    }

    /// Whether 64 blocks were refused, so that a part of the table is to coalesce.
    #[inline]
    pub(crate) fn is_stale(&self) -> bool {
        self.refusals >= REFUSALS
    }

    /// Takes any block out; `None` if the table is empty.
    pub(crate) fn pop(&mut self) -> Option<u32> {
        self.refusals = 0;
        if self.bytes == 0 {
            return None;
        }
        for _ in 0..SLOTS {
            let slot = &mut self.slots[self.next];
            if slot.len > 0 {
                slot.len -= 1;
                self.bytes -= slot.bytes;
                return Some(slot.blocks[usize::from(slot.len)]);
            }
            self.next = (self.next + 1) % SLOTS;
        }
        None
    }

    /// All blocks with their sizes, for a check.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u64)> {
        let of = |slot: &QuickSlot<K>| (slot.blocks, slot.bytes, usize::from(slot.len));
        self.slots.iter().map(of).flat_map(|(blocks, bytes, len)| {
            blocks.into_iter().take(len).map(move |id| (id, bytes))
        })
    }
}
