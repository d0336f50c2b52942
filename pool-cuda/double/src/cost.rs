//! Costs of calls, by measurements that others have published. None is a figure of this project: a
//! set says how the costs of one machine relate to each other, and the two sets disagree.
//! `cuMemAlloc` and the calls of memory pools are only counted: no published figure was at hand.

/// Nanoseconds of the calls of virtual memory, for one piece of 2 MiB: `cuMemCreate`, `cuMemMap`,
/// `cuMemSetAccess` and `cuMemUnmap`. The cost follows the number of pieces, whatever their size
/// (comment in PyTorch's `CUDACachingAllocator.cpp`).
pub(crate) struct Costs {
    create: u64,
    map: u64,
    access: u64,
    unmap: u64,
}

/// An A100, and another machine.
pub(crate) const SETS: [Costs; 2] = [
    Costs { create: 193_000, map: 1_500, access: 36_000, unmap: 26_000 },
    Costs { create: 7_600, map: 1_000, access: 21_000, unmap: 11_000 },
];

impl Costs {
    /// Returns the nanoseconds of all calls so far.
    pub(crate) fn total(&self, count: impl Fn(&str) -> u64) -> u64 {
        self.create * count("cuMemCreate")
            + self.map * count("cuMemMap")
            + self.access * count("handles: access")
            + self.unmap * count("handles: unmap")
    }
}
