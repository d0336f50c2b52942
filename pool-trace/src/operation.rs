//! The operations of a trace.

use std::collections::BTreeSet;

/// One operation of a program, or of the allocator that was recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operation {
    /// The kind of operation.
    pub kind: Kind,
    /// The number of the allocation, which no other allocation of the log has; 0 where `kind` has
    /// none.
    pub id: u64,
    /// Bytes requested, or taken from a device and given back to it; 0 where `kind` has none.
    pub bytes: u64,
    /// The number of the thread or stream.
    pub lane: u32,
    /// Nanoseconds since the operation before.
    pub dt_ns: u64,
    /// The number of a tag, from 1 on ([`Log::tags`]); 0 for none.
    pub tag: u32,
    /// The number of a call stack, from 1 on ([`Log::stacks`]); 0 for none.
    pub stack: u32,
    /// The line, or the entry, that it was read from.
    pub line: u64,
}

/// The kinds of operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// An allocation.
    #[default]
    Allocate,
    /// A free was requested.
    Free,
    /// A free was completed, where that is later: uses on other streams have passed.
    FreeCompleted,
    /// A use on another lane was recorded.
    Use,
    /// A request was refused.
    Refuse,
    /// An event was recorded, or waited for.
    Event,
    /// The recorded allocator took memory from the device.
    DeviceAllocate,
    /// The recorded allocator gave memory back to the device.
    DeviceFree,
}

/// The operations of a program in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// The program, or the log that this one was made from.
    pub source: String,
    /// The operations.
    pub operations: Vec<Operation>,
    /// The names of tags, by their numbers less 1.
    pub tags: Vec<String>,
    /// Call stacks, by their numbers less 1: names of functions, innermost first, joined by `;`.
    pub stacks: Vec<String>,
    /// Operations that were not recorded, because the recorder could not keep up.
    pub lost: u64,
    /// Whether the file ends in the middle of a zstd frame or of a line: the program was killed,
    /// and its last operations are missing.
    pub is_cut_off: bool,
}

impl Log {
    /// Returns the numbers of the allocations whose free was completed later than it was requested.
    pub(crate) fn completed_later(&self) -> BTreeSet<u64> {
        let completed = self.operations.iter().filter(|one| one.kind == Kind::FreeCompleted);
        completed.map(|one| one.id).collect()
    }

    /// Returns the operations without where they were read from, for comparisons.
    #[must_use]
    pub fn without_lines(mut self) -> Self {
        for operation in &mut self.operations {
            operation.line = 0;
        }
        self
    }
}

/// Numbers names from 1 on, in the order in which they come.
#[derive(Debug, Default)]
pub(crate) struct Names {
    numbers: std::collections::HashMap<String, u32>,
    pub(crate) names: Vec<String>,
}

impl Names {
    /// Returns the number of a name, and whether it is new; 0 for an empty one.
    pub(crate) fn number(&mut self, name: &str) -> (u32, bool) {
        if name.is_empty() {
            return (0, false);
        }
        if let Some(number) = self.numbers.get(name) {
            return (*number, false);
        }
        self.names.push(name.to_owned());
        let number = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        self.numbers.insert(name.to_owned(), number);
        (number, true)
    }
}
