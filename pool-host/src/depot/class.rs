//! The size class of a layout: a pure function that each allocation and each free calls.
//!
//! ```text
//!   0..128     align to 16 bytes   one class for every 16 bytes up to 1 KiB; above, eight classes
//!                                  for each doubling of the size
//!   111..128   from 64 KiB         whole pages, aligned to a page (4096 bytes)
//!   128..192   align up to 4096    the sizes above, up to 64 KiB, that are multiples of 64, less
//!                                  16 bytes
//! ```
//!
//! Rounding adds at most one eighth to the size of a request, or at most 15 bytes to a small one.
//! All requests of a class get blocks of the class's full size, so a cached block serves each of
//! them.
//!
//! The size of an aligned block is 16 bytes less than a multiple of its alignment. glibc keeps 16
//! bytes between two blocks, so these blocks are adjacent in its heap; blocks of the full multiple
//! would leave a gap after each block.

use std::alloc::Layout;

/// The number of a size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class(u16);

/// Bytes between the sizes of two neighbouring classes up to [`FINE`], and the alignment of blocks.
pub(crate) const STEP: usize = 16;
/// Size in bytes up to which there is one class for every [`STEP`] bytes.
const FINE: usize = 1024;
const FINE_CLASSES: usize = FINE / STEP;
/// Classes for each doubling of the size above [`FINE`].
const PER_DOUBLING: usize = 8;
/// Size in bytes of the largest class.
pub(crate) const LARGEST: usize = 256 << 10;
/// Number of plain classes: their blocks are aligned to [`STEP`] only, or are whole pages.
const PLAIN: usize = 128;
/// Size in bytes from which a block is whole pages.
const PAGED_FROM: usize = 64 << 10;
/// Largest alignment of a class, in bytes.
const MOST_ALIGN: usize = 4096;
/// Bytes between two neighbouring aligned classes up to [`FINE`].
const ALIGNED_STEP: usize = 64;
const ALIGNED_FINE_CLASSES: usize = FINE / ALIGNED_STEP;
/// Bytes that glibc keeps between two blocks.
const BETWEEN: usize = 16;
/// Table of the classes of sizes above 1 KiB. A look-up takes half the time of a computation.
///
/// It has one byte for every 128 bytes of size up to 32 KiB, and then one byte for every 4 KiB:
/// neighbouring classes are at least that far apart.
static TABLE: [u8; COARSE_FROM + LARGEST / COARSE_ENTRY] = table();
const FINE_ENTRY: usize = 128;
const FINE_TABLED: usize = 32 << 10;
const COARSE_ENTRY: usize = 4096;
const COARSE_FROM: usize = FINE_TABLED / FINE_ENTRY;

#[expect(clippy::cast_possible_truncation, reason = "plain classes are less than 128")]
const fn table() -> [u8; COARSE_FROM + LARGEST / COARSE_ENTRY] {
    let mut table = [0; COARSE_FROM + LARGEST / COARSE_ENTRY];
    let mut at = 0;
    while at < table.len() {
        let last =
            if at < COARSE_FROM { at * FINE_ENTRY } else { (at - COARSE_FROM) * COARSE_ENTRY };
        if last >= FINE {
            table[at] = Class::reckoned(last).0 as u8;
        }
        at += 1;
    }
    table
}

/// Number of classes. A loom model has 3, because each class costs it time.
pub(crate) const CLASSES: usize = if cfg!(loom) { 3 } else { 192 };

impl Class {
    /// Returns the class of a layout; `None` for a size of 0 or above 256 KiB, and for an alignment
    /// above 4096 bytes.
    #[inline]
    pub(crate) const fn of(layout: Layout) -> Option<Self> {
        let last = layout.size().wrapping_sub(1);
        if layout.align() > STEP {
            return Self::of_aligned(layout);
        }
        let number = if last < FINE {
            last / STEP
        } else if last < FINE_TABLED {
            TABLE[last / FINE_ENTRY] as usize
        } else if last < LARGEST {
            TABLE[COARSE_FROM + last / COARSE_ENTRY] as usize
        } else {
            return None;
        };
        // The remainder does not change the number; it lets the compiler omit bounds checks on
        // arrays of bins.
        Some(Self::numbered(number % PLAIN))
    }

    /// Returns the class of a layout whose alignment is above 16 bytes.
    const fn of_aligned(layout: Layout) -> Option<Self> {
        let (bytes, align) = (layout.size(), layout.align());
        if bytes == 0 || bytes > LARGEST || align > MOST_ALIGN {
            return None;
        }
        let step = if align < ALIGNED_STEP { ALIGNED_STEP } else { align };
        let held = (bytes + BETWEEN).next_multiple_of(step);
        if held >= PAGED_FROM {
            let last = if bytes < PAGED_FROM { PAGED_FROM - 1 } else { bytes - 1 };
            return Some(Self::reckoned(last));
        }
        let number = if held <= FINE {
            held / ALIGNED_STEP - 1
        } else {
            ALIGNED_FINE_CLASSES + Self::reckoned(held - 1).number() - FINE_CLASSES
        };
        Some(Self::numbered(PLAIN + number))
    }

    /// Computes the plain class of a size above 1 KiB. `last` is the size less one.
    #[expect(clippy::cast_possible_truncation, reason = "CLASSES fits")]
    #[inline]
    const fn reckoned(last: usize) -> Self {
        let doubling = last.ilog2();
        let eighth = last >> (doubling - PER_DOUBLING.ilog2());
        let doublings = (doubling - FINE.ilog2()) as usize;
        // The eighths of a doubling are numbered 8 to 15.
        Self((FINE_CLASSES + PER_DOUBLING * doublings + eighth - PER_DOUBLING) as u16)
    }

    /// Returns the number of the class.
    #[inline]
    pub(crate) const fn number(self) -> usize {
        self.0 as usize
    }

    /// Returns the class with this number, which must be below [`CLASSES`].
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "CLASSES fits")]
    pub(crate) const fn numbered(number: usize) -> Self {
        Self(number as u16)
    }

    /// Returns all classes, in the order of their numbers.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..CLASSES).map(Self::numbered)
    }

    /// Returns the size of the class's blocks in bytes.
    #[inline]
    pub(crate) const fn bytes(self) -> usize {
        let number = self.number();
        if number >= PLAIN { aligned_size(number - PLAIN) - BETWEEN } else { plain_size(number) }
    }

    /// Returns the least alignment of the class's blocks in bytes.
    pub(crate) const fn align(self) -> usize {
        if self.number() < PLAIN {
            return if self.is_paged() { MOST_ALIGN } else { STEP };
        }
        let most = 1 << aligned_size(self.number() - PLAIN).trailing_zeros();
        if most > MOST_ALIGN { MOST_ALIGN } else { most }
    }

    /// Returns whether the class's blocks are whole pages.
    #[inline]
    pub(crate) const fn is_paged(self) -> bool {
        self.number() < PLAIN && self.bytes() >= PAGED_FROM
    }
}

/// Returns the size of a plain class's blocks in bytes.
const fn plain_size(number: usize) -> usize {
    if number < FINE_CLASSES {
        return (number + 1) * STEP;
    }
    let (doubling, eighth) =
        ((number - FINE_CLASSES) / PER_DOUBLING, (number - FINE_CLASSES) % PER_DOUBLING);
    (PER_DOUBLING + eighth + 1) << (doubling + FINE.ilog2() as usize - 3)
}

/// Returns the size of an aligned class's blocks and of the [`BETWEEN`] bytes behind each.
const fn aligned_size(number: usize) -> usize {
    if number < ALIGNED_FINE_CLASSES {
        return (number + 1) * ALIGNED_STEP;
    }
    plain_size(number - ALIGNED_FINE_CLASSES + FINE_CLASSES)
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test")]

    use super::*;

    fn of(bytes: usize, align: usize) -> Option<Class> {
        Class::of(Layout::from_size_align(bytes, align).unwrap())
    }

    #[test]
    fn each_class_is_that_of_its_own_size_and_of_nothing_larger() {
        for number in 0..PLAIN {
            let bytes = Class::numbered(number).bytes();
            assert_eq!(of(bytes, 1), Some(Class::numbered(number)), "{bytes}");
            if number + 1 < PLAIN {
                assert_eq!(of(bytes + 1, 1), Some(Class::numbered(number + 1)), "{bytes}");
            }
        }
        assert_eq!(Class::numbered(PLAIN - 1).bytes(), LARGEST);
        for number in PLAIN..CLASSES {
            let class = Class::numbered(number);
            if class.bytes() + BETWEEN < PAGED_FROM {
                assert_eq!(of(class.bytes(), class.align()), Some(class));
            }
        }
    }

    #[test]
    fn an_eighth_is_lost_at_most_and_blocks_keep_their_alignment() {
        for bytes in (1..2000).chain((2000..LARGEST).step_by(97)) {
            let held = of(bytes, 1).unwrap().bytes();
            assert!(held >= bytes && held.is_multiple_of(STEP), "{bytes}: {held}");
            assert!(held - bytes < STEP.max(bytes / 8 + 1), "{bytes}: {held}");
        }
    }

    #[test]
    fn an_aligned_block_is_large_enough_and_as_aligned_as_was_asked() {
        let step = if cfg!(miri) { 97 } else { 1 };
        let sizes = (1..3000).step_by(step).chain((3000..LARGEST).step_by(61 * step));
        let sizes = sizes.chain([LARGEST]);
        for align in [32, 64, 128, 256, 512, 1024, 2048, 4096] {
            for bytes in sizes.clone() {
                let class = of(bytes, align).unwrap();
                assert!(class.bytes() >= bytes, "{bytes}, {align}: {class:?}");
                assert!(class.align() >= align, "{bytes}, {align}: {class:?}");
                let whole = (bytes + BETWEEN).next_multiple_of(align.max(ALIGNED_STEP));
                assert!(class.bytes() <= whole + whole / 8, "{bytes}, {align}: {class:?}");
            }
        }
    }

    #[test]
    fn some_layouts_have_no_class() {
        for (bytes, align) in [(0, 1), (0, 64), (LARGEST + 1, 8), (LARGEST + 1, 64), (1, 8192)] {
            assert_eq!(of(bytes, align), None, "{bytes}, {align}");
        }
    }
}
