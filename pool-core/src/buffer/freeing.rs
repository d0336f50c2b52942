//! The drop of a buffer: a push under the lock of one shard, or the slow way.
#![expect(unsafe_code, reason = "moving the block out of a buffer that is being dropped")]

use crate::block::flags::{CLEAN, PART, PLAIN};
use crate::block::record::RecordOwner;
use crate::buffer::PooledBuffer;
use crate::invariant::Scope;
use crate::observe::EventKind;
use crate::port::{DeviceAllocator, DeviceError, StreamClock, StreamOf, ZeroPolicy, Zeroing};
use crate::store::hit::{BROKEN, OBSERVED, ZEROES, free_part, free_plain};
use crate::store::life::StoreReference;
use crate::store::{captures, device, free};
use crate::stream::Access;
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
    /// Drops the buffer behind the work that `stream` was given so far, to which it goes next. It is
    /// for code that orders its streams itself, as the `deallocate` of a C++ resource with a stream
    /// does: the caller has ordered `stream` behind the uses of the buffer on other streams. Uses that
    /// last until the drop ([`PooledBuffer::record_stream`], [`PooledBuffer::use_until_drop`]) count on
    /// their streams still. A stream that has ended may be named: its last event is behind all its work.
    /// Makes no device call that a plain drop does not make.
    ///
    /// # Errors
    ///
    /// [`Why::Foreign`] if the stream belongs to another device, [`Why::NotSubmitted`] for a page-locked
    /// buffer on a stream under capture, and the reason if the device is lost. The buffer is dropped in
    /// any case: after an error behind its own uses, and behind `stream` if that is of this device.
    ///
    /// [`Why::Foreign`]: crate::Why::Foreign
    /// [`Why::NotSubmitted`]: crate::Why::NotSubmitted
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, StreamClock, DeviceAllocator, sim::SimDevice};
    ///
    /// let device = SimDevice::new();
    /// let pool = BucketPool::new(device.clone());
    /// let (load, compute) = (device.stream(), device.stream());
    /// let tile = pool.allocate_on(&load, 4096)?;
    /// device.kernel(&load, &*tile.on(&load)?);
    /// device.clock().order(&compute, &[device.clock().mark(&load)])?; // by the program
    /// tile.drop_on(&compute)?;
    /// device.kernel(&compute, &*pool.allocate_on(&compute, 4096)?.on(&compute)?); // the same block
    /// assert_eq!((pool.stats().hits, device.hazards()), (1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn drop_on(mut self, stream: &StreamOf<A>) -> Result<(), DeviceError> {
        let is_ours = self.allocator().clock().has_owned(stream);
        let may = match is_ours && !self.allocator().clock().owns(stream) {
            true => Ok(()), // it has ended
            false => self.may_use_on(stream),
        };
        let (store, _, mut marks) = self.parts();
        let clock = store.allocator.clock();
        match &may {
            Ok(()) => marks.hand_to(clock, clock.mark(stream)),
            Err(_) if is_ours => marks.end(clock, clock.mark(stream), Access::Write),
            Err(_) => {}
        }
        may
    }

    /// Gives the block back to its shard. Returns false if the shard has no room for it, or something is special of the pool, or if any of
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
            PLAIN => unsafe { free_plain(record, bypass_flags) },
            // SAFETY: as above.
            _ => unsafe { free_part(record, bypass_flags) },
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
        if fresh || store.layout.is_arena() {
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
        if store.settings.zero != ZeroPolicy::OnReturn || is_private {
            return Ok(false); // a launch of the graph may use the memory, now or later
        }
        let clock = store.allocator.clock();
        // A recorded use lasts until now.
        marks.close(clock);
        if !marks.all_are(|mark| clock.is_seen_done(mark)) {
            return Ok(false);
        }
        let zero = || device::zero(store, place, bytes, clock.default_stream()).is_ok();
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
            match record.private() {
                Some(_) => captures::free(store, record),
                None => free::free(store, record, matches!(zeroed, Ok(true))),
            }
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
