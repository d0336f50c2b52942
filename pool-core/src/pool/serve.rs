//! A request that is no hit: the stages serve it, or it waits, or it is refused.

use crate::block::record::RecordOwner;
use crate::block::{Key, PoolRequest, Wanted};
use crate::buffer::PooledBuffer;
use crate::error::AllocError;
use crate::observe::EventKind;
use crate::pool::BucketPool;
use crate::pool::waiting::WakeAtEnd;
use crate::port::{DeviceAllocator, DeviceError, StreamClock, StreamOf, Why, ZeroPolicy, Zeroing};
use crate::shard::Grant;
use crate::store::hit::{ALWAYS, OBSERVED};
use crate::store::refusal::Unserved;
use crate::store::{attempt, device, refusal};
use std::mem;

impl<A: DeviceAllocator> BucketPool<A> {
    /// Serves a request that is no plain hit.
    #[inline(never)]
    pub(super) fn allocate_slow(
        &self,
        stream: &StreamOf<A>,
        bytes: u64,
        kind: A::Kind,
        zeroed: bool,
    ) -> Result<PooledBuffer<A>, AllocError> {
        let (wanted, timeout) =
            (Wanted { stream, bytes, kind, zeroed }, self.settings.wait_timeout());
        if let Some(timeout) = timeout
            && self.budget().has_waiters()
        {
            // The request must not overtake the requests that wait already.
            return self.wait_for(wanted, timeout, None);
        }
        let served = self.serve(wanted, timeout.is_some());
        // In a forked child a thread that does not exist may hold the lock of the requests that wait.
        let is_forked = matches!(&served, Err(unserved) if unserved.cause.why == Why::Forked);
        if !is_forked {
            self.budget().wake(); // it may have given more memory back than it needed
        }
        match (served, timeout) {
            (Ok(buffer), _) => Ok(buffer),
            (Err(unserved), Some(timeout)) if self.may_wait(&unserved) => {
                self.wait_for(wanted, timeout, Some(unserved))
            }
            (Err(unserved), _) => {
                Err(refusal::refuse(self.store(), unserved, bytes, self.settings.tag()))
            }
        }
    }

    /// Serves a request, or returns why it cannot. Does not count a refusal. The caller wakes the
    /// requests that wait; after a panic this function wakes them. `joins_line`: the caller waits
    /// in the line if the request is refused.
    pub(super) fn serve(
        &self,
        wanted: Wanted<'_, A>,
        joins_line: bool,
    ) -> Result<PooledBuffer<A>, Unserved> {
        let (watch, woken_by_panic) = (self.store().watch(), WakeAtEnd(self));
        let served = self.search_and_zero(wanted, joins_line);
        mem::forget(woken_by_panic);
        drop(watch);
        if self.store().is_broken()
            && let Some(fault) = self.store().fault()
        {
            return Err(Unserved::early(fault, wanted.bytes)); // the block may be another buffer's too
        }
        served
    }

    fn search_and_zero(
        &self,
        wanted: Wanted<'_, A>,
        joins_line: bool,
    ) -> Result<PooledBuffer<A>, Unserved> {
        let (store, Wanted { stream, bytes, kind, zeroed }) = (self.store(), wanted);
        let zeroes = zeroed || store.settings.zero != ZeroPolicy::Never;
        // If zeroing runs ahead of the stream, the block must be ready ahead too.
        let other = match zeroes && matches!(A::MEMORY.zeroing, Zeroing::Ahead) {
            true => Some(store.allocator.clock().ahead_of(stream)),
            false => store.allocator.clock().reuse_of(stream),
        };
        let on = other.as_ref().unwrap_or(stream);
        if zeroes && let Some((buffer, is_zeroed)) = self.hit_to_zero(wanted, on) {
            if buffer.is_intact() {
                return self.zeroed(buffer, is_zeroed, wanted);
            }
            drop(buffer.detach()); // to the device
        }
        let request = self.pool_request(wanted, on);
        let request = request.map_err(|cause| Unserved::early(cause, bytes))?;
        let request = PoolRequest { joins_line, ..request };
        let (mut buffer, fresh, was_zeroed) = loop {
            let Grant { mut record, fresh } = attempt::allocate(store, &request)?;
            let was_zeroed = record.is_clean();
            if store.flags.any(OBSERVED) || (fresh && store.has_observers()) {
                self.notify_served(&request, &mut record, fresh);
            }
            invariant!(record.bytes >= request.class.bytes.min(bytes), "a block holds its request");
            invariant!(record.requested == bytes, "a block is counted with its request");
            invariant!(record.kind == kind, "a block is of the kind that was requested");
            let buffer = PooledBuffer::new(&self.handle, record);
            if fresh || buffer.is_intact() {
                break (buffer, fresh, was_zeroed);
            }
            drop(buffer.detach()); // to the device
        };
        let is_zeroed = buffer.check_freed(fresh, was_zeroed) && was_zeroed;
        self.zeroed(buffer, is_zeroed, wanted)
    }

    /// As [`BucketPool::hit`], of a block that is to be zeroed before a program has it. Returns also
    /// whether its bytes are zero already.
    fn hit_to_zero(
        &self,
        wanted: Wanted<'_, A>,
        on: &StreamOf<A>,
    ) -> Option<(PooledBuffer<A>, bool)> {
        let (store, Wanted { stream, bytes: requested, kind, .. }) = (self.store(), wanted);
        if store.flags.get() & self.no_hit_at & !ALWAYS != 0 || !store.is_plain_on(stream) {
            return None;
        }
        let fast = store.classes.fast(requested);
        let bytes = fast.or_else(|| store.classes.slow_cached(requested))?;
        let (record, clean) = store.hit_to_zero((stream, on), kind, (bytes, requested))?;
        Some((PooledBuffer::again(record), clean))
    }

    /// Zeroes what is to be zero.
    fn zeroed(
        &self,
        mut buffer: PooledBuffer<A>,
        is_zeroed: bool,
        Wanted { stream, bytes, zeroed, .. }: Wanted<'_, A>,
    ) -> Result<PooledBuffer<A>, Unserved> {
        let bytes_to_zero = match self.store().settings.zero {
            _ if is_zeroed => 0,
            ZeroPolicy::Never if zeroed => bytes,
            ZeroPolicy::Never => 0,
            ZeroPolicy::OnAllocate | ZeroPolicy::OnReturn => buffer.allocated_size(),
        };
        let done = if bytes_to_zero > 0 { buffer.zero(bytes_to_zero, stream) } else { Ok(()) };
        buffer.guard();
        if let Err(cause) = done {
            // The block may be broken: it goes to the device, unless it is a part of a segment.
            drop(buffer.detach());
            return Err(Unserved::early(cause, bytes));
        }
        Ok(buffer)
    }

    /// Notifies the observers of a request that was served.
    #[cold]
    fn notify_served(
        &self,
        request: &PoolRequest<'_, A>,
        record: &mut RecordOwner<A>,
        fresh: bool,
    ) {
        record.tag = self.settings.tag();
        let kind = match (fresh, request.class.is_cached()) {
            (true, true) => EventKind::Miss,
            (true, false) => EventKind::Bypass,
            (false, _) => EventKind::Hit,
        };
        let own = record.marks.get_mut().own();
        self.store().notify(kind, record.event_fields(self.allocator().clock().stream_id(own)));
    }

    /// A request with all that a search needs, for memory that must be ready for `on`.
    ///
    /// # Errors
    ///
    /// Why the pool refuses it before the search.
    pub(super) fn pool_request<'r>(
        &self,
        Wanted { stream, bytes: requested, kind, .. }: Wanted<'r, A>,
        on: &'r StreamOf<A>,
    ) -> Result<PoolRequest<'r, A>, DeviceError> {
        let (store, clock) = (self.store(), self.allocator().clock());
        if let Some(fault) = store.fault() {
            return Err(fault);
        }
        let refused = |why, call| Err(DeviceError::new(why, call));
        if !clock.owns(stream) {
            return refused(Why::Foreign, "allocate on a stream that this device does not have");
        }
        let guarded = requested.checked_add(store.guard_bytes());
        let Some(class) = guarded.and_then(|bytes| store.classes.of(bytes)) else {
            return refused(Why::TooLarge, "round up to a size class");
        };
        if !device::offers(store, kind) {
            return refused(Why::Unsupported, "alignment above the granule");
        }
        let stream_id = clock.stream_id(clock.mark(on));
        let (private, is_untold) = match store.privates.of(stream_id) {
            Some((id, is_untold)) => (Some(id), is_untold),
            None => (None, false),
        };
        if private.is_none() && !clock.takes_work(on) {
            // A graph's memory must not return to the pool before the graph is dropped.
            return refused(
                Why::NotSubmitted,
                "allocate on a stream that another pool's capture has",
            );
        }
        let (key, joins_line) = (Key { kind, stream_id }, false);
        Ok(PoolRequest { on, stream, key, class, requested, private, is_untold, joins_line })
    }
}
