//! Counts of a thread cache between two calls that tell the book.

use crate::stats::change::Change;

/// Counts of what was taken and put since then: as few additions as give the changes
/// of all three figures.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CacheTally {
    takes: u64,
    puts: u64,
    live_peak: i64,
    requested_out: u64,
    requested_back: u64,
    requested_peak: i64,
    bytes_out: u64,
    /// Bytes in the cache: when the last call told, and the least and most since.
    before: u64,
    least: u64,
    most: u64,
}

/// How buffers, bytes requested and bytes allocated have changed.
pub(crate) struct Changes {
    pub(crate) live: Change,
    pub(crate) requested: Change,
    pub(crate) allocated: Change,
}

impl CacheTally {
    /// Nothing counted, with `idle` bytes in the cache.
    pub(super) fn new(idle: u64) -> Self {
        Self { before: idle, least: idle, most: idle, ..Self::default() }
    }

    /// Counts a block that a buffer has from now on. `idle`: bytes in the cache after that.
    #[inline]
    pub(super) fn out(&mut self, idle: u64, bytes: u64, requested: u64) {
        self.takes += 1;
        self.bytes_out = self.bytes_out.wrapping_add(bytes);
        self.requested_out = self.requested_out.wrapping_add(requested);
        let live = self.takes.wrapping_sub(self.puts).cast_signed();
        if live > self.live_peak {
            self.live_peak = live;
        }
        let requested = self.requested_out.wrapping_sub(self.requested_back).cast_signed();
        if requested > self.requested_peak {
            self.requested_peak = requested;
        }
        if idle < self.least {
            self.least = idle;
        }
    }

    /// Counts a block that a buffer gave back. `idle`: bytes in the cache after that.
    #[inline]
    pub(super) fn back(&mut self, idle: u64, requested: u64) {
        self.puts += 1;
        self.requested_back = self.requested_back.wrapping_add(requested);
        if idle > self.most {
            self.most = idle;
        }
    }

    /// Blocks taken.
    #[inline]
    pub(super) fn takes(&self) -> u64 {
        self.takes
    }

    /// Whether nothing was counted.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.takes | self.puts == 0
    }

    /// All changes, with `idle` bytes in the cache now.
    pub(super) fn changes(&self, idle: u64) -> Changes {
        let since = |a: u64, b: u64| a.wrapping_sub(b).cast_signed();
        Changes {
            live: Change {
                now: since(self.takes, self.puts),
                peak: self.live_peak,
                low: 0,
                total: self.takes,
            },
            requested: Change {
                now: since(self.requested_out, self.requested_back),
                peak: self.requested_peak,
                low: 0,
                total: self.requested_out,
            },
            // What the cache has more, buffers have less.
            allocated: Change {
                now: since(self.before, idle),
                peak: since(self.before, self.least),
                low: since(self.before, self.most),
                total: self.bytes_out,
            },
        }
    }
}
