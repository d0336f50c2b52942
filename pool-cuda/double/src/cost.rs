//! Costs of calls: two sets that others have published, and one of this project's runs on an H100.
//! A set says how the costs of one machine relate to each other; they disagree. `cuMemAlloc` and the
//! calls of memory pools are only counted.

/// Nanoseconds of the calls of virtual memory: `cuMemCreate`, `cuMemMap`, `cuMemSetAccess`,
/// `cuMemUnmap` and `cuMemRelease`.
pub(crate) struct Costs {
    create: u64,
    map: u64,
    access: u64,
    unmap: u64,
    release: u64,
    /// For each MiB of memory that is made or given back.
    create_mib: u64,
    release_mib: u64,
    /// Setting access and unmapping cost that for each piece (comment in PyTorch's
    /// `CUDACachingAllocator.cpp`), or for each call.
    by_piece: bool,
}

const PUBLISHED: Costs = Costs {
    create: 0,
    map: 0,
    access: 0,
    unmap: 0,
    release: 0,
    create_mib: 0,
    release_mib: 0,
    by_piece: true,
};

/// An A100 and another machine, in pieces of 2 MiB; and an H100 beside a kernel (docs/gpu.md,
/// question 2).
pub(crate) const SETS: [Costs; 3] = [
    Costs { create: 193_000, map: 1_500, access: 36_000, unmap: 26_000, ..PUBLISHED },
    Costs { create: 7_600, map: 1_000, access: 21_000, unmap: 11_000, ..PUBLISHED },
    Costs {
        create: 20_000,
        map: 1_000,
        access: 40_000,
        unmap: 25_000,
        release: 20_000,
        create_mib: 50,
        release_mib: 250,
        by_piece: false,
    },
];

impl Costs {
    /// Returns the nanoseconds of all calls so far.
    pub(crate) fn total(&self, count: impl Fn(&str) -> u64) -> u64 {
        let (access, unmap) = match self.by_piece {
            true => ("handles: access", "handles: unmap"),
            false => ("cuMemSetAccess", "cuMemUnmap"),
        };
        self.create * count("cuMemCreate")
            + self.map * count("cuMemMap")
            + self.access * count(access)
            + self.unmap * count(unmap)
            + self.release * count("cuMemRelease")
            + self.create_mib * count("MiB: created")
            + self.release_mib * count("MiB: released")
    }
}
