//! The size class of a layout: a pure function that each allocation and each free calls.
//!
//! There is one class for every 16 bytes up to 1 KiB, and above eight for each doubling of the size.
//! Rounding adds at most one eighth to the size of a request, or at most 15 bytes to a small one. All
//! requests of a class get blocks of the class's full size, so a cached block serves each of them.
//!
//! Blocks of a class lie one behind the other from the start of a page on, so each begins at a
//! multiple of the largest power of two that divides their size. A request that is aligned to more
//! than 16 bytes is rounded up to a multiple of its alignment, and that size has a class of the same
//! alignment: the sizes between two powers of two are multiples of an eighth of the lower one.

use std::alloc::Layout;

/// The number of a size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class(u16);

/// Bytes between the sizes of two neighbouring classes up to [`FINE`], and the alignment of blocks.
const STEP: usize = 16;
/// Size in bytes up to which there is one class for every [`STEP`] bytes.
const FINE: usize = 1024;
const FINE_CLASSES: usize = FINE / STEP;
/// Classes for each doubling of the size above [`FINE`].
const PER_DOUBLING: usize = 8;
/// Size in bytes of the largest class.
pub(crate) const LARGEST: usize = 256 << 10;
/// Size in bytes of the largest class whose blocks are parts of a span.
pub(crate) const LARGEST_PART: usize = 64 << 10;
/// Largest alignment of a class, in bytes.
const MOST_ALIGN: usize = 4096;
/// Table of the classes of sizes above 1 KiB. A look-up takes half the time of a computation.
///
/// It has one byte for every 128 bytes of size up to 32 KiB, and then one byte for every 4 KiB:
/// neighbouring classes are at least that far apart.
static TABLE: [u8; COARSE_FROM + LARGEST / COARSE_ENTRY] = table();
const FINE_ENTRY: usize = 128;
const FINE_TABLED: usize = 32 << 10;
const COARSE_ENTRY: usize = 4096;
const COARSE_FROM: usize = FINE_TABLED / FINE_ENTRY;

#[expect(clippy::cast_possible_truncation, reason = "classes are fewer than 256")]
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

/// Number of classes.
pub(crate) const CLASSES: usize = 128;

/// For each class, 2^64 divided by its size, rounded up.
static INVERSES: [u64; CLASSES] = {
    let mut inverses = [0; CLASSES];
    let mut number = 0;
    while number < CLASSES {
        inverses[number] = u64::MAX / Class::numbered(number).bytes() as u64 + 1;
        number += 1;
    }
    inverses
};

impl Class {
    /// Returns the class of a layout; `None` for a size of 0 or above 256 KiB, and for an alignment
    /// above 4096 bytes.
    #[inline]
    pub(crate) const fn of(layout: Layout) -> Option<Self> {
        let (bytes, align) = (layout.size(), layout.align());
        if align <= STEP {
            return Self::of_size(bytes);
        }
        if bytes > LARGEST || align > MOST_ALIGN {
            return None;
        }
        Self::of_size((bytes + align - 1) & !(align - 1))
    }

    /// Returns the class of a request that a part of a span serves; `None` for a larger one, and for
    /// an alignment that is no power of two.
    #[inline]
    pub(crate) const fn of_part(bytes: usize, align: usize) -> Option<Self> {
        if bytes > LARGEST_PART || align > MOST_ALIGN || !align.is_power_of_two() {
            return None;
        }
        let bytes = if bytes == 0 { 1 } else { bytes };
        let bytes = if align <= STEP { bytes } else { (bytes + align - 1) & !(align - 1) };
        if bytes > LARGEST_PART { None } else { Self::of_size(bytes) }
    }

    /// Returns the class of blocks of so many bytes.
    #[inline]
    const fn of_size(bytes: usize) -> Option<Self> {
        let last = bytes.wrapping_sub(1);
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
        Some(Self::numbered(number % CLASSES))
    }

    /// Computes the class of a size above 1 KiB. `last` is the size less one.
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
        if number < FINE_CLASSES {
            return (number + 1) * STEP;
        }
        let (doubling, eighth) =
            ((number - FINE_CLASSES) / PER_DOUBLING, (number - FINE_CLASSES) % PER_DOUBLING);
        (PER_DOUBLING + eighth + 1) << (doubling + FINE.ilog2() as usize - 3)
    }

    /// Returns how many blocks of the class have so many bytes together; `None` if that is no whole
    /// number.
    ///
    /// It multiplies instead of dividing (Lemire, Kaser and Kurz, Faster remainder by direct
    /// computation, 2019), exact below 2^32.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of a product")]
    pub(crate) fn blocks_in(self, bytes: u32) -> Option<usize> {
        let inverse = INVERSES[self.number() % CLASSES];
        let product = u128::from(bytes) * u128::from(inverse);
        ((product as u64) < inverse).then_some((product >> u64::BITS) as usize)
    }

    /// Returns the alignment of the class's blocks in bytes, at most 4096.
    pub(crate) const fn align(self) -> usize {
        let most = 1 << self.bytes().trailing_zeros();
        if most > MOST_ALIGN { MOST_ALIGN } else { most }
    }

    /// Returns whether the class's blocks are runs of pages. All others are parts of a span.
    #[inline]
    pub(crate) const fn is_paged(self) -> bool {
        self.bytes() > LARGEST_PART
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    fn of(bytes: usize, align: usize) -> Option<Class> {
        Class::of(Layout::from_size_align(bytes, align).unwrap())
    }

    #[test]
    fn each_class_is_that_of_its_own_size_and_of_nothing_larger() {
        for number in 0..CLASSES {
            let bytes = Class::numbered(number).bytes();
            assert_eq!(of(bytes, 1), Some(Class::numbered(number)), "{bytes}");
            if number + 1 < CLASSES {
                assert_eq!(of(bytes + 1, 1), Some(Class::numbered(number + 1)), "{bytes}");
            }
        }
        assert_eq!(Class::numbered(CLASSES - 1).bytes(), LARGEST);
    }

    #[test]
    fn multiples_of_a_size_are_told_from_other_numbers() {
        for class in Class::all() {
            let bytes = u32::try_from(class.bytes()).unwrap();
            for count in [0, 1, 2, 3, 100] {
                assert_eq!(class.blocks_in(count * bytes), Some(count as usize), "{class:?}");
                assert_eq!(class.blocks_in(count * bytes + 1), None, "{class:?}");
                assert_eq!(class.blocks_in(count * bytes + bytes - 1), None, "{class:?}");
            }
        }
        assert_eq!(of(LARGEST_PART + 1, 1).map(Class::is_paged), Some(true));
        assert_eq!(of(LARGEST_PART, 1).map(Class::is_paged), Some(false));
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
                let whole = bytes.next_multiple_of(align.max(STEP));
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
