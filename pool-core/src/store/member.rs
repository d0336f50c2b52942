//! A pool as a member of its budget: other pools have it trimmed, and requests that wait are told to it.

use crate::limits::{DeviceId, Member};
use crate::port::{DeviceAllocator, Why};
use crate::store::hit::AWAITED;
use crate::store::life::Owner;
use crate::store::{Store, sums, trim};

impl<A: DeviceAllocator> Member for Owner<A>
where
    Store<A>: Send + Sync,
{
    fn set_awaited(&self, on: bool) {
        let store = self.store();
        if store.is_unusable() {
            return; // a thread that does not exist in this process may hold a lock
        }
        store.flags.set(AWAITED, on);
        if on {
            // Every free that did not see the flag has ended, or sees it under its lock.
            (0..store.shards.count()).for_each(|at| drop(store.shards.lock(at)));
        }
    }

    fn look_for_forks(&self) {
        self.store().is_unusable();
    }

    fn trim_short(&self, bytes: u64, to_device: bool) -> u64 {
        let store = self.store();
        if store.is_unusable() {
            return 0;
        }
        let _watch = store.watch();
        let given_back = trim::trim_short(store, bytes);
        if to_device {
            // What the device refuses, the request that needs it is told by the device.
            let _ = store.allocator.give_all_back();
        }
        given_back
    }

    fn lost_bytes(&self) -> u64 {
        let store = self.store();
        match store.fault() {
            Some(fault) if fault.why == Why::Forked => 0,
            Some(fault) if fault.why == Why::Broken => store.ledger.reserved(),
            _ => sums::lost_bytes(store),
        }
    }

    fn claimed_bytes(&self) -> u64 {
        self.store().ledger.claimed()
    }

    fn device(&self) -> DeviceId {
        self.store().device()
    }

    fn address(&self) -> *const () {
        self.store().address()
    }
}
