//! The memory that is left for this process: the least of the machine's memory, what its control
//! groups leave, `RLIMIT_AS` and `RLIMIT_DATA`.
//!
//! The tcache asks before its first block, so nothing here allocates.

mod file;
mod groups;

use crate::system;
pub(crate) use file::{Path, read};
use groups::Room;
use pool_core::GIB;

/// Divisor of the limit of a control group: from that part on, what is cached is lent.
const LENT_PART: u64 = 4;

/// The memory of a process in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// What is left for the process; `None` if the system names no limit.
    left: Option<u64>,
    /// The least limit of the control groups that is below the memory of the machine.
    group: Option<u64>,
}

impl Memory {
    /// Returns what this process has now.
    pub(crate) fn read() -> Self {
        Self::read_under(b"")
    }

    /// Reads the files of the control groups below `root`.
    fn read_under(root: &[u8]) -> Self {
        let machine = system::physical_bytes();
        let room = Room::of_process(root, machine);
        let group = room.limit.filter(|limit| machine.is_none_or(|machine| *limit < machine));
        let own = [system::address_limit_bytes(), system::data_limit_bytes()];
        let limits = [machine, room.left].into_iter().chain(own);
        Self { left: limits.flatten().min(), group }
    }

    /// Returns the cached limit of a pool or tcache whose user sets none: an eighth of what is
    /// left, and at most 1 GiB. It is 128 MiB if the system names no limit.
    pub(crate) fn cached_limit(self) -> u64 {
        self.left.map_or(GIB / 8, |bytes| GIB.min(bytes / 8))
    }

    /// Returns the bytes of an allocator from which on it lets the system have what it caches when
    /// memory is short: a quarter of a container's limit. The system ends a process of a container
    /// for want of memory, and does not refuse it any.
    pub(crate) fn lent_from(self) -> u64 {
        self.group.map_or(u64::MAX, |bytes| bytes / LENT_PART)
    }
}

#[cfg(all(test, not(any(miri, shuttle))))]
mod tests;
