//! Counts of a book: a few additions for each block, and the peaks as they happen.

use crate::size::MIB;

/// The largest request of the small class, as `PyTorch` counts.
const SMALL: u64 = MIB;

/// A figure of small and large blocks, and of both.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Count {
    /// Small, large.
    now: [u64; 2],
    peak: [u64; 2],
    total: [u64; 2],
    all: u64,
    all_peak: u64,
}

impl Count {
    #[inline]
    pub(crate) fn up(&mut self, class: BlockClass, by: u64) {
        let at = class.0;
        self.total[at] = self.total[at].wrapping_add(by);
        self.now[at] += by;
        self.peak[at] = self.peak[at].max(self.now[at]);
        self.all += by;
        self.all_peak = self.all_peak.max(self.all);
    }

    #[inline]
    pub(crate) fn down(&mut self, class: BlockClass, by: u64) {
        self.now[class.0] -= by;
        self.all -= by;
    }

    /// The sum of both classes.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.all
    }

    #[inline]
    pub(crate) fn peak(&self) -> u64 {
        self.all_peak
    }
}

/// Small or large, as an index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockClass(usize);

impl BlockClass {
    #[inline]
    pub(crate) fn of(bytes: u64) -> Self {
        Self(usize::from(bytes > SMALL))
    }
}

/// Counts of a book.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BookFigures {
    /// Blocks that live buffers have.
    pub(crate) blocks: Count,
    /// Bytes that live buffers were requested with.
    pub(crate) requested: Count,
    /// Bytes of their blocks.
    pub(crate) allocated: Count,
}

impl BookFigures {
    /// Counts a block out.
    #[inline]
    pub(crate) fn out(&mut self, bytes: u64, requested: u64) {
        let class = BlockClass::of(bytes);
        self.blocks.up(class, 1);
        self.requested.up(class, requested);
        self.allocated.up(class, bytes);
    }

    /// Counts a block that is freed.
    #[inline]
    pub(crate) fn freed(&mut self, bytes: u64, requested: u64) {
        let class = BlockClass::of(bytes);
        self.blocks.down(class, 1);
        self.requested.down(class, requested);
        self.allocated.down(class, bytes);
    }
}
