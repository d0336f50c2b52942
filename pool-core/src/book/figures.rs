//! Counts of a book: a few additions for each block, and the peaks as they happen.

use crate::device_stats::{Stat, StatArray};
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
    /// The values of `total`, and of what was counted down, at the last reset.
    before: [(u64, u64); 2],
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

    /// The counts as they are read.
    pub(crate) fn stat(&self) -> StatArray {
        let class = |at: usize| {
            let (allocated, freed) = (self.total[at], self.total[at].wrapping_sub(self.now[at]));
            let (allocated_before, freed_before) = self.before[at];
            Stat {
                current: self.now[at],
                peak: self.peak[at],
                allocated: allocated.wrapping_sub(allocated_before),
                freed: freed.wrapping_sub(freed_before),
            }
        };
        let (small, large) = (class(0), class(1));
        let all = Stat {
            current: self.all,
            peak: self.all_peak,
            allocated: small.allocated.wrapping_add(large.allocated),
            freed: small.freed.wrapping_add(large.freed),
        };
        StatArray { all, small, large }
    }

    /// Sets the sums of what was counted up and down to 0, and the peaks to the current figures.
    pub(crate) fn reset(&mut self) {
        (self.peak, self.all_peak) = (self.now, self.all);
        for at in [0, 1] {
            self.before[at] = (self.total[at], self.total[at].wrapping_sub(self.now[at]));
        }
    }
}

/// Small or large, as an index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockClass(usize);

impl BlockClass {
    #[inline]
    pub(crate) fn small_if(small: bool) -> Self {
        Self(usize::from(!small))
    }

    pub(crate) fn index(self) -> usize {
        self.0
    }

    #[inline]
    pub(crate) fn of(bytes: u64) -> Self {
        Self(usize::from(bytes > SMALL))
    }
}

/// A figure that goes up and down.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Level {
    pub(crate) now: u64,
    pub(crate) peak: u64,
    total: u64,
    /// The values of `total`, and of what was counted down, at the last reset.
    before: (u64, u64),
}

impl Level {
    #[inline]
    pub(crate) fn up(&mut self, by: u64) {
        self.now += by;
        self.total = self.total.wrapping_add(by);
        if self.now > self.peak {
            self.peak = self.now;
        }
    }

    #[inline]
    pub(crate) fn down(&mut self, by: u64) {
        self.now -= by;
    }

    /// The figure as it is read.
    pub(crate) fn stat(&self) -> Stat {
        Stat {
            current: self.now,
            peak: self.peak,
            allocated: self.total.wrapping_sub(self.before.0),
            freed: self.total.wrapping_sub(self.now).wrapping_sub(self.before.1),
        }
    }

    fn reset(&mut self) {
        self.peak = self.now;
        self.before = (self.total, self.total.wrapping_sub(self.now));
    }
}

/// Counts of a book.
#[derive(Clone, Debug, Default)]
pub(crate) struct BookFigures {
    /// Buffers; the freed ones are counted when the free has ended.
    pub(crate) live: Level,
    /// Bytes that live buffers were requested with.
    pub(crate) requested: Level,
    /// Bytes of their blocks.
    pub(crate) allocated: Level,
    /// The three for small and large blocks; under `PyTorch`'s rules only.
    classes: Option<Box<[Count; 3]>>,
}

impl BookFigures {
    /// Counts that tell small and large blocks apart, or not.
    pub(crate) fn new(classes: bool) -> Self {
        Self { classes: classes.then(Box::default), ..Self::default() }
    }

    /// Sets the sums to 0, and the peaks to the current figures.
    pub(crate) fn reset(&mut self) {
        for level in [&mut self.live, &mut self.requested, &mut self.allocated] {
            level.reset();
        }
        for count in self.classes.iter_mut().flat_map(|classes| classes.iter_mut()) {
            count.reset();
        }
    }

    /// Counts a block out.
    #[inline]
    pub(crate) fn out(&mut self, bytes: u64, requested: u64) {
        self.live.up(1);
        self.requested.up(requested);
        self.allocated.up(bytes);
        if let Some(classes) = &mut self.classes {
            for (count, by) in classes.iter_mut().zip([1, requested, bytes]) {
                count.up(BlockClass::of(bytes), by);
            }
        }
    }

    /// Counts a block that is freed, but for the buffer.
    #[inline]
    pub(crate) fn freed(&mut self, bytes: u64, requested: u64) {
        self.requested.down(requested);
        self.allocated.down(bytes);
        if let Some(classes) = &mut self.classes {
            for (count, by) in classes.iter_mut().zip([1, requested, bytes]) {
                count.down(BlockClass::of(bytes), by);
            }
        }
    }

    /// Blocks, bytes requested and bytes allocated as they are read.
    pub(crate) fn stats(&self) -> [StatArray; 3] {
        match &self.classes {
            Some(classes) => classes.each_ref().map(Count::stat),
            None => [&self.live, &self.requested, &self.allocated]
                .map(|level| StatArray { all: level.stat(), ..StatArray::default() }),
        }
    }
}
