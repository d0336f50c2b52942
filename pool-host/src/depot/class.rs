//! Which size class a layout has: one pure function, asked on each way in and out.
//!
//! Up to 1 KiB a class each 16 bytes; above, eight for each doubling, so that at most an eighth is
//! lost to rounding. No two sizes of a class are told apart afterwards, so a block serves all of
//! them.

use std::alloc::Layout;

/// The number of a size class. Larger numbers are larger classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class(u16);

/// Classes are this far apart below [`FINE`], and blocks are aligned to as much.
pub(crate) const STEP: usize = 16;
/// Up to here a class each [`STEP`] bytes.
const FINE: usize = 1024;
const FINE_CLASSES: usize = FINE / STEP;
/// Classes in a doubling of size, above.
const PER_DOUBLING: usize = 8;
/// Up to here the thread-local front holds blocks.
pub(crate) const FRONT_LARGEST: usize = 256 << 10;
/// Classes of the front.
pub(crate) const FRONT_CLASSES: usize = 128;
/// Up to here anything does: 64 GiB.
const LARGEST: usize = 64 << 30;
/// Classes of sizes above 1 KiB that fronts hold, since to look one up is half as long as to reckon
/// it: a byte for each 128 bytes of size up to 32 KiB, where classes are no closer; then a byte for
/// each 4 KiB.
static TABLE: [u8; COARSE_FROM + FRONT_LARGEST / COARSE_ENTRY] = table();
const FINE_ENTRY: usize = 128;
const FINE_TABLED: usize = 32 << 10;
const COARSE_ENTRY: usize = 4096;
const COARSE_FROM: usize = FINE_TABLED / FINE_ENTRY;

#[expect(clippy::cast_possible_truncation, reason = "classes of fronts are less than 128")]
const fn table() -> [u8; COARSE_FROM + FRONT_LARGEST / COARSE_ENTRY] {
    let mut table = [0; COARSE_FROM + FRONT_LARGEST / COARSE_ENTRY];
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

/// All classes. The model needs fewer, and takes time for each.
pub(crate) const CLASSES: usize = if cfg!(loom) { 3 } else { 272 };

impl Class {
    /// The class of a layout; `None` for what goes past the cache: no bytes, more than 64 GiB, or
    /// aligned to more than 16, which the inner allocator serves in ways of its own.
    #[inline]
    pub(crate) const fn of(layout: Layout) -> Option<Self> {
        let last = layout.size().wrapping_sub(1);
        if last < FRONT_LARGEST || last >= LARGEST || layout.align() > STEP {
            return Self::of_front(layout);
        }
        Some(Self::reckoned(last))
    }

    /// The same for classes that fronts hold, and none else.
    #[inline]
    pub(crate) const fn of_front(layout: Layout) -> Option<Self> {
        let last = layout.size().wrapping_sub(1);
        if layout.align() > STEP {
            return None;
        }
        let number = if last < FINE {
            last / STEP
        } else if last < FINE_TABLED {
            TABLE[last / FINE_ENTRY] as usize
        } else if last < FRONT_LARGEST {
            TABLE[COARSE_FROM + last / COARSE_ENTRY] as usize
        } else {
            return None;
        };
        // The remainder changes nothing, but says that bins need no check.
        Some(Self::numbered(number % FRONT_CLASSES))
    }

    /// The class of a size above 1 KiB, less one.
    #[expect(clippy::cast_possible_truncation, reason = "CLASSES fits")]
    #[inline]
    const fn reckoned(last: usize) -> Self {
        let doubling = last.ilog2();
        let eighth = last >> (doubling - PER_DOUBLING.ilog2());
        let doublings = (doubling - FINE.ilog2()) as usize;
        // The eighths of a doubling are numbered 8 to 15.
        Self((FINE_CLASSES + PER_DOUBLING * doublings + eighth - PER_DOUBLING) as u16)
    }

    #[inline]
    pub(crate) const fn number(self) -> usize {
        self.0 as usize
    }

    /// The class of this number.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "CLASSES fits")]
    pub(crate) const fn numbered(number: usize) -> Self {
        Self(number as u16)
    }

    /// The size of its blocks.
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

    /// Whether fronts hold such blocks.
    #[inline]
    pub(crate) const fn is_of_front(self) -> bool {
        self.number() < FRONT_CLASSES
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test")]

    use super::*;

    fn of(bytes: usize) -> Class {
        Class::of(Layout::from_size_align(bytes, 1).unwrap()).unwrap()
    }

    #[test]
    fn each_class_is_that_of_its_own_size_and_of_nothing_larger() {
        for number in 0..CLASSES {
            let bytes = Class::numbered(number).bytes();
            assert_eq!(of(bytes).number(), number, "{bytes}");
            if number + 1 < CLASSES {
                assert_eq!(of(bytes + 1).number(), number + 1, "{bytes}");
            }
        }
        assert_eq!(Class::numbered(CLASSES - 1).bytes(), LARGEST);
        assert_eq!(Class::numbered(FRONT_CLASSES - 1).bytes(), FRONT_LARGEST);
    }

    #[test]
    fn an_eighth_is_lost_at_most_and_blocks_keep_their_alignment() {
        for bytes in (1..2000).chain((2000..5_000_000).step_by(977)) {
            let held = of(bytes).bytes();
            assert!(held >= bytes && held.is_multiple_of(STEP), "{bytes}: {held}");
            assert!(held - bytes < STEP.max(bytes / 8 + 1), "{bytes}: {held}");
        }
    }

    #[test]
    fn what_has_no_class_goes_past() {
        let layout = |bytes, align| Layout::from_size_align(bytes, align).unwrap();
        for past in [layout(0, 1), layout(LARGEST + 1, 8), layout(64, 32), layout(1 << 20, 4096)] {
            assert_eq!(Class::of(past), None, "{past:?}");
        }
    }
}
