//! Accounts of a shard: a few additions for each block, and the peaks as they happen.

use crate::observe::{Stat, StatArray};
use crate::size::MIB;

/// The largest request of the small class, as `PyTorch` counts.
const SMALL: u64 = MIB;

/// A figure of small and large blocks, and of both.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Count {
    all: Level,
    /// Small, large.
    classes: [Level; 2],
}

impl Count {
    #[inline]
    pub(crate) fn up(&mut self, class: BlockClass, by: u64) {
        self.all.up(by);
        self.classes[class.0].up(by);
    }

    #[inline]
    pub(crate) fn down(&mut self, class: BlockClass, by: u64) {
        self.all.down(by);
        self.classes[class.0].down(by);
    }

    /// Counts `was` down and `is` up.
    #[inline]
    pub(crate) fn replace(&mut self, class: BlockClass, was: u64, is: u64) {
        for level in [&mut self.all, &mut self.classes[class.0]] {
            level.down(was);
            level.up(is);
        }
    }

    /// The figure as it is read.
    pub(crate) fn stat(&self) -> StatArray {
        class_stats(&self.all, &self.classes)
    }

    /// Sets the peaks to the current figures.
    pub(crate) fn reset_peaks(&mut self) {
        self.all.reset_peak();
        self.classes.iter_mut().for_each(Level::reset_peak);
    }

    /// Sets the sums of what was counted up and down to 0.
    pub(crate) fn reset_counts(&mut self) {
        self.all.reset_counts();
        self.classes.iter_mut().for_each(Level::reset_counts);
    }
}

fn class_stats(all: &Level, [small, large]: &[Level; 2]) -> StatArray {
    StatArray { all: all.stat(), small: small.stat(), large: large.stat() }
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
    /// The peak less the figure, so that one subtraction tells a new peak. The figure may be negative: in a shard
    /// into which more was freed than was taken there.
    below_peak: i64,
    peak: i64,
    total: u64,
    /// The values of `total`, and of what was counted down, at the last reset.
    before: (u64, u64),
}

impl Level {
    #[inline]
    pub(crate) fn up(&mut self, by: u64) {
        self.total = self.total.wrapping_add(by);
        self.below_peak = self.below_peak.wrapping_sub_unsigned(by);
        if self.below_peak < 0 {
            self.raise_peak();
        }
    }

    #[inline]
    pub(crate) fn down(&mut self, by: u64) {
        self.below_peak = self.below_peak.wrapping_add_unsigned(by);
    }

    /// Adds the figure of another shard, but for the peak.
    fn add(&mut self, other: &Self) {
        self.below_peak = self.below_peak.wrapping_sub(other.signed());
        self.total = self.total.wrapping_add(other.total);
        self.before.0 = self.before.0.wrapping_add(other.before.0);
        self.before.1 = self.before.1.wrapping_add(other.before.1);
    }

    pub(crate) fn set_peak(&mut self, peak: u64) {
        let now = self.signed();
        self.peak = peak.cast_signed();
        self.below_peak = self.peak.wrapping_sub(now);
    }

    /// The figure now, of a shard alone.
    #[inline]
    pub(crate) fn signed(&self) -> i64 {
        self.peak.wrapping_sub(self.below_peak)
    }

    /// The figure now, and at most.
    pub(crate) fn now(&self) -> (u64, u64) {
        (self.signed().max(0).cast_unsigned(), self.peak.max(0).cast_unsigned())
    }

    /// The figure as it is read.
    pub(crate) fn stat(&self) -> Stat {
        let (current, peak) = self.now();
        Stat {
            current,
            peak,
            allocated: self.total.wrapping_sub(self.before.0),
            freed: self.freed().wrapping_sub(self.before.1),
        }
    }

    /// All that came. Resets do not change it.
    #[inline]
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// All that went. Wraps in a shard alone into which more was freed than was taken there.
    pub(crate) fn freed(&self) -> u64 {
        self.total.wrapping_sub(self.signed().cast_unsigned())
    }

    /// [`Level::reset_peak`] in a call, so that the figure is not kept for it.
    #[cold]
    #[inline(never)]
    fn raise_peak(&mut self) {
        self.reset_peak();
    }

    /// Makes the figure now the peak.
    #[inline]
    fn reset_peak(&mut self) {
        self.peak = self.signed();
        self.below_peak = 0;
    }

    fn reset_counts(&mut self) {
        self.before = (self.total, self.freed());
    }
}

/// Buffers of a shard, and their bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Accounts {
    /// Buffers; the freed ones are counted when the free has ended.
    pub(crate) live: Level,
    /// Bytes that live buffers were requested with.
    pub(crate) requested: Level,
    /// Bytes of their blocks.
    pub(crate) allocated: Level,
    /// The three for small and large blocks; under `PyTorch`'s rules only.
    classes: Option<Box<[[Level; 2]; 3]>>,
}

impl Accounts {
    /// Counts that tell small and large blocks apart, or not.
    pub(crate) fn new(classes: bool) -> Self {
        Self { classes: classes.then(Box::default), ..Self::default() }
    }

    /// Adds the figures of another shard of a pool that does not tell small and large blocks apart.
    pub(crate) fn add(&mut self, other: &Self) {
        self.live.add(&other.live);
        self.requested.add(&other.requested);
        self.allocated.add(&other.allocated);
    }

    /// Sets the peaks to the current figures.
    pub(crate) fn reset_peaks(&mut self) {
        self.levels().for_each(Level::reset_peak);
    }

    /// Sets the sums to 0.
    pub(crate) fn reset_counts(&mut self) {
        self.levels().for_each(Level::reset_counts);
    }

    fn levels(&mut self) -> impl Iterator<Item = &mut Level> {
        let classes = self.classes.iter_mut().flat_map(|classes| classes.as_flattened_mut());
        [&mut self.live, &mut self.requested, &mut self.allocated].into_iter().chain(classes)
    }

    /// Counts a whole block out.
    #[inline]
    pub(crate) fn out_whole(&mut self, bytes: u64, requested: u64) {
        self.live.up(1);
        self.requested.up(requested);
        self.allocated.up(bytes);
    }

    /// Counts a block out.
    #[inline]
    pub(crate) fn out(&mut self, bytes: u64, requested: u64) {
        self.out_whole(bytes, requested);
        if self.classes.is_some() {
            self.count_class::<true>(bytes, requested);
        }
    }

    /// Counts a block of its class, out or back.
    #[inline(never)]
    fn count_class<const OUT: bool>(&mut self, bytes: u64, requested: u64) {
        let Some(classes) = &mut self.classes else { return };
        for (levels, by) in classes.iter_mut().zip([1, requested, bytes]) {
            let level = &mut levels[BlockClass::of(bytes).0];
            if OUT { level.up(by) } else { level.down(by) }
        }
    }

    /// Counts a whole block that is freed, but for the buffer.
    #[inline]
    pub(crate) fn freed_whole(&mut self, bytes: u64, requested: u64) {
        self.requested.down(requested);
        self.allocated.down(bytes);
    }

    /// Counts a block that is freed, but for the buffer.
    #[inline]
    pub(crate) fn freed(&mut self, bytes: u64, requested: u64) {
        self.freed_whole(bytes, requested);
        if self.classes.is_some() {
            self.count_class::<false>(bytes, requested);
        }
    }

    /// Whether small and large requests are counted apart.
    pub(crate) fn are_by_class(&self) -> bool {
        self.classes.is_some()
    }

    /// Blocks, bytes requested and bytes allocated as they are read.
    pub(crate) fn stats(&self) -> [StatArray; 3] {
        let all = [&self.live, &self.requested, &self.allocated];
        match &self.classes {
            Some(classes) => [0, 1, 2].map(|at| class_stats(all[at], &classes[at])),
            None => all.map(|all| StatArray { all: all.stat(), ..StatArray::default() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    /// A figure and its peak, kept apart.
    #[derive(Default)]
    struct Plain {
        now: i64,
        peak: i64,
    }

    #[test]
    fn a_figure_and_its_peak_are_what_two_plain_numbers_say() {
        for seed in 0..if cfg!(miri) { 2 } else { 40 } {
            println!("seed {seed}");
            let mut random = StdRng::seed_from_u64(seed);
            let (mut level, mut plain) = (Level::default(), Plain::default());
            let (mut was_negative, mut new_peaks) = (false, 0);
            for _ in 0..500 {
                let by = random.random_range(0..100_u64);
                match random.random_range(0..20) {
                    0 => {
                        level.reset_peak();
                        plain.peak = plain.now;
                    }
                    1 => {
                        level.set_peak(by);
                        plain.peak = by.cast_signed();
                    }
                    2 => {
                        let mut other = Level::default();
                        other.down(by);
                        level.add(&other);
                        plain.now -= by.cast_signed();
                    }
                    3..=11 => {
                        level.up(by);
                        plain.now += by.cast_signed();
                        new_peaks += i32::from(plain.now > plain.peak);
                        plain.peak = plain.peak.max(plain.now);
                    }
                    _ => {
                        level.down(by);
                        plain.now -= by.cast_signed();
                    }
                }
                was_negative |= plain.now < 0;
                let now = plain.now.max(0).cast_unsigned();
                let expected = (plain.now, (now, plain.peak.max(0).cast_unsigned()));
                assert_eq!((level.signed(), level.now()), expected);
            }
            assert!(was_negative && new_peaks > 5, "seed {seed} reaches what it is about");
        }
    }
}
