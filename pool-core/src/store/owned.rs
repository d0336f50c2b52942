//! The whole blocks that a pool has from its device, in use or free: known by the addresses of their
//! records. It changes with calls to the device only.

use crate::block::record::RecordOwner;
use crate::port::DeviceAllocator;
use std::collections::BTreeMap;

/// The bytes of each block, by the address of its record, which no other live buffer has.
#[derive(Debug, Default)]
pub(crate) struct Owned(BTreeMap<u64, u64>);

impl Owned {
    pub(crate) fn add<A: DeviceAllocator>(&mut self, record: &RecordOwner<A>) {
        self.0.insert(id_of(record), record.bytes);
    }

    pub(crate) fn remove<A: DeviceAllocator>(&mut self, record: &RecordOwner<A>) {
        let known = self.0.remove(&id_of(record));
        invariant!(
            known == Some(record.bytes),
            "a block of the device is known until it goes back"
        );
    }

    /// The number and bytes of each.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().map(|(id, bytes)| (*id, *bytes))
    }
}

/// The number of a record, as events have it.
pub(crate) fn id_of<A: DeviceAllocator>(record: &crate::block::record::Record<A>) -> u64 {
    std::ptr::from_ref(record) as u64
}
