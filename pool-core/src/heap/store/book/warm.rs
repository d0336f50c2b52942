//! Memory taken ahead of time.

use crate::heap::block::request::PoolRequest;
use crate::heap::store::Store;
use crate::limits::InTransit;
use crate::port::{DeviceAllocator, DeviceError, Limit, StreamClock};
use crate::stream::Pending;

/// Live ranges that no buffer has. They are free when it is dropped, also by a panic of the device.
struct Taken<'s, A: DeviceAllocator> {
    store: &'s Store<A>,
    ids: Vec<u32>,
    /// A request that finds none of them waits until they are free.
    _in_transit: InTransit<'s>,
}

impl<A: DeviceAllocator> Drop for Taken<'_, A> {
    fn drop(&mut self) {
        let mut state = self.store.book.lock();
        for id in std::mem::take(&mut self.ids) {
            let node = &mut state.book.nodes[id];
            let (marks, unzeroed) = (std::mem::take(&mut node.marks), node.unzeroed);
            state.book.free(self.store.allocator.clock(), id, marks, unzeroed);
        }
    }
}

impl<A: DeviceAllocator> Store<A> {
    /// Takes memory until `count` blocks of a request's size fit at once. Counts no request.
    pub(crate) fn warm_up_ranges(
        &self,
        request: &PoolRequest<'_, A>,
        count: usize,
    ) -> Result<(), DeviceError> {
        let mut ranges =
            Taken { store: self, ids: Vec::new(), _in_transit: InTransit::new(self.transit()) };
        let mut result = Ok(());
        for _ in 0..count {
            let free = self.free_range(request);
            let is_fresh = free.is_none();
            match free.map_or_else(|| self.grow_range(request), Ok) {
                Ok(id) => {
                    let mut state = self.book.lock();
                    let node = &mut state.book.nodes[id];
                    if is_fresh && !A::MEMORY.cpu_touches {
                        // The device, and the streams that used parts of it, were waited for on the
                        // stream of the request only.
                        node.marks = Pending::One(self.allocator.clock().mark(request.on));
                    }
                    let bytes = node.bytes;
                    state.book.count_out(bytes);
                    ranges.ids.push(id);
                }
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        drop(ranges);
        let mut state = self.book.lock();
        if result.is_ok() && state.excess(self.bounds.cached) > 0 {
            result = Err(DeviceError::limit(Limit::Cached));
        }
        drop(state);
        if result.is_err() {
            // What passes the limit goes back with the next call that may; here that is this one.
            let _ = self.trim_to_cached_limit();
        }
        result
    }

    /// A live range out of free memory, which is not lent.
    fn free_range(&self, request: &PoolRequest<'_, A>) -> Option<u32> {
        let requester = self.requester(request);
        self.book.lock().book.take(&self.book.book_request(request), &requester)
    }
}
