//! The drop of a buffer: a push under the lock of one shard, or the slow way.
#![expect(unsafe_code, reason = "moving the block out of a buffer that is being dropped")]

use crate::block::flags::{CLEAN, PART, PLAIN};
use crate::block::record::RecordOwner;
use crate::buffer::pooled::PooledBuffer;
use crate::invariant::Scope;
use crate::observe::EventKind;
use crate::port::{DeviceAllocator, StreamClock, ZeroPolicy, Zeroing};
use crate::store::flags::{BROKEN, OBSERVED, ZEROES};
use crate::store::not_plain::put_part;
use crate::store::plain::put;
use crate::store::reference::StoreReference;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;

impl<A: DeviceAllocator> Drop for PooledBuffer<A> {
    #[inline]
    fn drop(&mut self) {
        if !self.drop_into_shard(OBSERVED | BROKEN | ZEROES) {
            self.drop_slow();
        }
    }
}

impl<A: DeviceAllocator> PooledBuffer<A> {
    /// Gives the block back to its shard. Returns false if that takes more than one lock of the pool, or if any of
    /// the flags `bypass_flags` is set. Only `drop` calls it.
    #[inline]
    fn drop_into_shard(&mut self, bypass_flags: u32) -> bool {
        let flags = self.record.flags.get_mut();
        debug_assert!(flags & CLEAN == 0, "a buffer's bytes may be anything");
        if flags & !PART != PLAIN || !self.store().is_plain_here() || !self.close_plain() {
            return false;
        }
        // SAFETY: a buffer is dropped once, and if the shard takes the record, it is not used
        // again.
        let record = unsafe { ManuallyDrop::take(&mut self.record) };
        let kept = match flags {
            // SAFETY: `new` filled the store address.
            PLAIN => unsafe { put(record, bypass_flags) },
            // SAFETY: as above.
            _ => unsafe { put_part(record, bypass_flags) },
        };
        let Err(record) = kept else { return true };
        self.record = ManuallyDrop::new(record);
        false
    }

    /// Ends the uses of a plain block that last until the drop. Returns false where there may be more of them than
    /// those that calls told of.
    #[inline]
    fn close_plain(&mut self) -> bool {
        if !A::Clock::UNTIL_DROP {
            return true;
        }
        let (store, _, mut marks) = self.parts();
        marks.close_plain(store.allocator.clock())
    }

    /// If the pool has guards, checks that the block was not written while it was free. Returns
    /// false if it was. Called before the block is zeroed for a request. Ranges of an arena are not
    /// checked, because a range is not the block of one freed buffer.
    pub(crate) fn check_freed(&mut self, fresh: bool, zeroed: bool) -> bool {
        let store = self.store();
        let Some(guards) = &store.guards else { return true };
        if fresh || store.shape.is_arena() {
            return true;
        }
        // SAFETY: the buffer is borrowed exclusively, so no code has a slice of its bytes.
        unsafe { guards.check_freed(&store.allocator, &self.record, zeroed) }
    }

    /// Sets the guard of a buffer that a program receives, if the pool has guards.
    pub(crate) fn guard(&mut self) {
        let store = self.store();
        if let Some(guards) = &store.guards {
            // SAFETY: as in `check_freed`.
            unsafe { guards.set(&store.allocator, &self.record) };
        }
    }

    /// Checks the guard of a buffer that is freed, if the pool has guards.
    #[cold]
    pub(super) fn check_guard(&mut self) {
        let store = self.store();
        if let Some(guards) = &store.guards {
            // SAFETY: as in `check_freed`.
            unsafe { guards.free(&store.allocator, &self.record) };
        }
    }

    /// Notifies the observers that the buffer is freed.
    #[cold]
    pub(super) fn notify_freed(&mut self) {
        let own = self.record.marks.get_mut().own();
        let stream = self.store().allocator.clock().stream_id(own);
        self.store().notify(EventKind::Free, self.record.event_fields(stream));
    }

    /// Zeroes a block that is freed, if the pool zeroes freed blocks, no stream can still read the
    /// block, and the zeroing takes effect at once, so that a drop may do it. Returns whether the
    /// block is zeroed, or the panic of the allocator, which the caller resumes after it has freed
    /// the block.
    #[inline]
    pub(super) fn zero_on_return(&mut self) -> thread::Result<bool> {
        if A::MEMORY.zeroing != Zeroing::AtOnce {
            return Ok(false);
        }
        let (bytes, is_private) = (self.record.bytes, self.record.private().is_some());
        let (store, place, mut marks) = self.parts();
        if store.bounds.zero != ZeroPolicy::OnReturn || is_private {
            return Ok(false); // a launch of the graph may use the memory, now or later
        }
        let clock = store.allocator.clock();
        // A recorded use lasts until now.
        marks.close(clock);
        if !marks.all_are(|mark| clock.is_seen_done(mark)) {
            return Ok(false);
        }
        let zero = || store.zero(place, bytes, clock.default_stream()).is_ok();
        catch_unwind(AssertUnwindSafe(zero))
    }

    /// Frees a block that its shard did not keep at once. Only `drop` calls it.
    #[inline(never)]
    fn drop_slow(&mut self) {
        if self.store().is_unusable() {
            // A thread that does not exist in this process may hold the locks, or the records of the
            // pool are wrong.
            return;
        }
        let _scope = Scope::enter(); // the release of the reference takes the note of this call
        if self.store().flags.any(OBSERVED) {
            self.notify_freed();
            self.check_guard();
            if self.drop_into_shard(BROKEN | ZEROES) {
                return;
            }
        }
        let zeroed = self.zero_on_return();
        // SAFETY: a buffer is dropped once, and no use of it follows in this function.
        let (reference, record) = unsafe { self.move_out() };
        reference.release(|store| {
            invariant!(record.requested <= record.bytes, "a block is as large as its request");
            store.free(record, matches!(zeroed, Ok(true)))
        });
        if let Err(panic) = zeroed {
            resume_unwind(panic);
        }
    }

    /// Moves the reference to the store and the record out of the buffer.
    ///
    /// # Safety
    ///
    /// The buffer is not used again, its `Drop` included.
    #[inline]
    pub(super) unsafe fn move_out(&mut self) -> (StoreReference<A>, RecordOwner<A>) {
        // SAFETY: the caller promises that the record is not taken a second time.
        let record = unsafe { ManuallyDrop::take(&mut self.record) };
        // SAFETY: `new` filled the store address, and the record is taken out once.
        let reference = unsafe { StoreReference::taken_from(&record) };
        let mut record = record; // dropped before the reference if the clock panics
        record.uses_mut().close(reference.store().allocator.clock());
        (reference, record)
    }
}
