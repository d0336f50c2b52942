//! Memory taken ahead of time.

use crate::block::request::PoolRequest;
use crate::limits::InTransit;
use crate::port::{Allocating, DeviceAllocator, DeviceError, Limit, StreamClock, Why};
use crate::store::Store;
use crate::store::free::{Freed, Room};
use crate::stream::Pending;

/// Live ranges that no buffer has. They are free when it is dropped, also by a panic of the device.
struct WarmRanges<'s, A: DeviceAllocator> {
    store: &'s Store<A>,
    /// Their shards and numbers.
    ids: Vec<(usize, u32)>,
    /// A request that finds none of them waits until they are free.
    _in_transit: InTransit<'s>,
}

impl<A: DeviceAllocator> Drop for WarmRanges<'_, A> {
    fn drop(&mut self) {
        let shards = &self.store.shards;
        for (at, id) in std::mem::take(&mut self.ids) {
            let state = &mut *shards.lock(at);
            let node = &mut state.ranges.nodes[id];
            let (marks, unzeroed) = (std::mem::take(&mut node.marks), node.unzeroed);
            let when = (unzeroed, state.turn);
            state.ranges.free(self.store.allocator.clock(), id, marks, when);
            state.publish_used(shards.published(at));
        }
    }
}

impl<A: DeviceAllocator> Store<A> {
    /// Allocates `count` free blocks of a request's size from the device ahead of time. Counts no
    /// request.
    pub(crate) fn warm_up(
        &self,
        request: &PoolRequest<'_, A>,
        count: usize,
    ) -> Result<(), DeviceError> {
        if !request.class.is_cached() {
            let call = "warm up a size that goes past the pool";
            return Err(DeviceError::new(Why::Unsupported, call));
        }
        match self.shape.is_arena() {
            false => (0..count).try_for_each(|_| self.warm_up_block(request)),
            true => self.warm_up_ranges(request, count),
        }
    }

    fn warm_up_block(&self, request: &PoolRequest<'_, A>) -> Result<(), DeviceError> {
        self.has_room(request)?;
        let _in_transit = InTransit::new(self.transit()); // until it is free memory
        let mut record = self.new_block(request)?;
        if self.moves_blocks() {
            self.note_needed(request);
        }
        if A::MEMORY.allocating == Allocating::AtOnce {
            record.marks.get_mut().belong_to_nobody();
        }
        let (at, stays, evicted) = {
            let Room { at, mut state, limit, evicted } = self.lock_with_room(&mut record);
            let state = &mut *state;
            state.turn += 1;
            record.freed_at = self.time_of(state);
            // Other threads may have filled the room while the device was called.
            let stays = state.keep_or_defer(request.key, record, limit, &self.bounds.keeping);
            (at, stays, evicted)
        };
        self.give_back_in_drop(Freed { at, segment: None, evicted });
        if stays {
            return Ok(());
        }
        // One of the two, which other threads have reached meanwhile.
        let is_full = self.is_in_full_bucket(request);
        Err(DeviceError::limit(if is_full { Limit::Bucket } else { Limit::Cached }))
    }

    /// Whether a free block more stays under the limits.
    fn has_room(&self, request: &PoolRequest<'_, A>) -> Result<(), DeviceError> {
        let (bytes, limit) = (request.class.bytes, self.cached_limit());
        if bytes > self.bounds.keeping.full_pool.largest(limit)
            || self.sum().kept.saturating_add(bytes) > limit
        {
            return Err(DeviceError::limit(Limit::Cached));
        }
        match self.is_in_full_bucket(request) {
            true => Err(DeviceError::limit(Limit::Bucket)),
            false => Ok(()),
        }
    }

    /// Whether the bucket of a request's size has as many blocks as its limit.
    fn is_in_full_bucket(&self, request: &PoolRequest<'_, A>) -> bool {
        let most = self.bounds.keeping.bucket.of(request.class.bytes);
        most != usize::MAX && self.count_in_buckets(request.key, request.class.bytes) >= most
    }

    /// Takes memory until `count` ranges of a request's size fit at once.
    fn warm_up_ranges(
        &self,
        request: &PoolRequest<'_, A>,
        count: usize,
    ) -> Result<(), DeviceError> {
        let (home, shards) = (self.home(request), self.shards.count());
        let in_transit = InTransit::new(self.transit());
        let mut taken = WarmRanges { store: self, ids: Vec::new(), _in_transit: in_transit };
        let mut result = Ok(());
        for _ in 0..count {
            let mut from_home = (0..shards).map(|step| (home + step) % shards);
            let free = from_home.find_map(|at| Some((at, self.free_range(at, request)?)));
            let is_fresh = free.is_none();
            match free.map_or_else(|| Ok((home, self.grow_range(home, request)?)), Ok) {
                Ok((at, id)) => {
                    let state = &mut *self.shards.lock(at);
                    let node = &mut state.ranges.nodes[id];
                    if is_fresh && !A::MEMORY.cpu_touches {
                        // The device, and the streams that used parts of it, were waited for on the
                        // stream of the request only.
                        node.marks = Pending::One(self.allocator.clock().mark(request.on));
                    }
                    let bytes = node.bytes;
                    state.turn += 1;
                    state.ranges.count_out(bytes);
                    state.publish_used(self.shards.published(at));
                    taken.ids.push((at, id));
                }
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        drop(taken);
        let kept = self.sum().kept; // the limit may take all locks
        if result.is_ok() && kept > self.cached_limit() {
            result = Err(DeviceError::limit(Limit::Cached));
        }
        if result.is_err() {
            // What passes the limit goes back with the next call that may; here that is this one.
            let _ = self.give_back_to_limit(None);
        }
        result
    }

    /// A live range out of free memory, which is not lent.
    fn free_range(&self, at: usize, request: &PoolRequest<'_, A>) -> Option<u32> {
        let (requester, wanted) = (self.requester(request), self.shape.range_request(request));
        self.shards.lock(at).ranges.take_with_marks(&wanted, &requester)
    }
}
