//! What is not plain of a hit and of a free into a shard (`plain.rs`): blocks that are not on top, memory that is
//! zeroed or split, rounds that end, limits of buckets, requests that wait.
//!
//! A request that is no hit goes on in `stages.rs`, a block that its shard does not keep in `free.rs`.
#![expect(unsafe_code, reason = "the store of a block that is freed, which may go with its lock")]

use crate::block::flags::CLEAN;
use crate::block::record::{Record, RecordOwner};
use crate::block::request::{Key, PoolRequest};
use crate::limits::{Budget, WakeBudget};
use crate::port::{DeviceAllocator, StreamClock, StreamOf};
use crate::shard::{Grant, State};
use crate::store::Store;
use crate::store::flags::{AWAITED, CLOSED, LIMITED};
use crate::store::reference::address_of;
use crate::sys::{LockGuard, has_no_padding, thread_number};
use std::ptr::NonNull;

/// The stream that uses the memory, and the one that it must be ready for: another one where zeroes run
/// ahead.
pub(super) type Streams<'s, A> = (&'s StreamOf<A>, &'s StreamOf<A>);

impl<A: DeviceAllocator> Store<A> {
    /// The end of a hit where the block that came last is not plain, a larger one may serve, a round ends,
    /// another thread is in the shard, or this one has no home yet.
    #[inline(never)]
    pub(super) fn hit_not_plain(
        &self,
        locked: Option<LockGuard<'_, State<A>>>,
        (stream, on): Streams<'_, A>,
        key: Key<A::Kind>,
        (bytes, requested): (u64, u64),
    ) -> Option<RecordOwner<A>> {
        let mut state = locked.unwrap_or_else(|| self.shards.lock_home(&key));
        state.note_thread(thread_number::get());
        let now = self.allocator.clock().mark(stream); // under the lock, as in `hit`
        let (requester, statistics) = (self.requester_on(on), self.bounds.statistics);
        let up_to = if self.larger_blocks_serve { self.classes.largest_for(bytes) } else { bytes };
        let found = state.take_block(key, bytes..=up_to, requested, &requester, statistics);
        self.unlock(state);
        let mut record = found?;
        record.requested = requested;
        record.uses_mut().restart(now);
        record.flags.set(CLEAN, false); // the program may write it
        Some(record)
    }

    /// As [`Store::hit`], of a block that is to be zeroed, which may be zeroed already. Returns whether
    /// it is.
    pub(crate) fn hit_to_zero(
        &self,
        (stream, on): Streams<'_, A>,
        kind: A::Kind,
        (bytes, requested): (u64, u64),
    ) -> Option<(RecordOwner<A>, bool)> {
        let clock = self.allocator.clock();
        let key = Key { kind, stream_id: clock.stream_id(clock.mark(on)) };
        let mut state = self.shards.lock_home(&key);
        state.note_thread(thread_number::get());
        let now = clock.mark(stream); // under the lock, as in `hit`
        let ready = |record: &mut Record<A>| record.is_plain_and_ready(CLEAN, clock, on);
        let found = state.blocks.take_top(key, bytes, ready).map(|record| {
            let clean = record.is_clean();
            state.count_taken(bytes, requested);
            state.untouched_hits += u64::from(clean && self.bounds.statistics);
            (record, clean)
        });
        self.unlock(state);
        let (mut record, clean) = found?;
        record.requested = requested;
        record.uses_mut().restart(now);
        record.flags.set(CLEAN, false); // the program may write it
        Some((record, clean))
    }

    /// As [`Store::hit`], where memory is split.
    #[inline]
    pub(crate) fn hit_range(
        &self,
        (stream, on): Streams<'_, A>,
        kind: A::Kind,
        (bytes, requested): (u64, u64),
    ) -> Option<RecordOwner<A>> {
        let clock = self.allocator.clock();
        let now = clock.mark(stream);
        let key = Key { kind, stream_id: clock.stream_id(now) };
        let (request, home) = (self.shape.range_of(key, bytes), self.shards.home_of(&key));
        let thread = thread_number::get();
        let mut state = home.lock();
        state.note_thread(thread);
        let record = match state.ranges.take(&request, &self.requester_on(on)) {
            Some(served) => {
                let store = (self.own_address(), self.bounds.statistics);
                // Under the lock: behind what another thread on the stream has freed since `now`.
                state.lend_served(&served, (kind, requested), clock.mark(stream), store)
            }
            None => None,
        };
        state.publish_used(&home.published);
        self.unlock(state);
        record
    }

    /// As [`Store::hit`], for any request.
    pub(crate) fn take_own(&self, request: &PoolRequest<'_, A>) -> Option<Grant<A>> {
        let (requester, statistics) = (self.requester(request), self.bounds.statistics);
        let mark = requester.clock.mark(request.stream);
        let taken = if self.shape.is_arena() {
            let home = self.shards.home_of(&request.key);
            let mut state = home.lock();
            state.note_thread(thread_number::get());
            let served = state.ranges.take(&self.shape.range_request(request), &requester);
            let lent =
                served.and_then(|it| state.lend_free_range(it.id, request, mark, statistics));
            state.publish_used(&home.published);
            self.unlock(state);
            lent
        } else {
            let mut state = self.shards.lock_home(&request.key);
            state.note_thread(thread_number::get());
            let taken = state.take_for(request, &requester, statistics);
            self.unlock(state);
            taken
        };
        Some(Grant::new(taken?, request, requester.clock, false))
    }

    /// Unlocks a shard after a hit, and ends its round if that is over.
    #[inline]
    fn unlock(&self, state: LockGuard<'_, State<A>>) {
        if state.is_round_over() {
            self.unlock_after_round(state);
        }
    }

    /// Ends the round of a shard, unlocks it, and takes more shards if it is crowded.
    #[cold]
    #[inline(never)]
    fn unlock_after_round(&self, mut state: LockGuard<'_, State<A>>) {
        let crowded = self.end_round(&mut state);
        drop(state);
        if let Some(count) = crowded {
            self.spread(count);
        }
    }
}

/// [`put`] where another thread is in the shard, or this one has no home yet.
///
/// # Safety
///
/// As for [`put`], and `address` is that of the store.
#[cold]
#[inline(never)]
pub(super) unsafe fn put_busy<A: DeviceAllocator>(
    address: NonNull<Store<A>>,
    key: Key<A::Kind>,
    record: RecordOwner<A>,
    bypass_flags: u32,
) -> Result<(), RecordOwner<A>> {
    // SAFETY: as in `put`.
    let store: &Store<A> = unsafe { address.as_ref() };
    let state = store.shards.lock_home(&key);
    // SAFETY: as the caller promises.
    unsafe { put_locked(address, key, state, record, bypass_flags) }
}

/// [`put`] with all that is special, in the locked shard that the block goes to. The store comes by its address,
/// since it may be gone when the lock is, and the guard refers to cells alone ([`has_no_padding`]).
///
/// # Safety
///
/// As for [`put_busy`]; `state` is a shard of the store.
#[cold]
#[inline(never)]
pub(super) unsafe fn put_locked<A: DeviceAllocator>(
    address: NonNull<Store<A>>,
    key: Key<A::Kind>,
    mut state: LockGuard<'_, State<A>>,
    mut record: RecordOwner<A>,
    bypass_flags: u32,
) -> Result<(), RecordOwner<A>> {
    const { assert!(has_no_padding::<State<A>>(), "a guard refers to nothing outside of cells") };
    // SAFETY: as in `put`.
    let store: &Store<A> = unsafe { address.as_ref() };
    let (flags, keeping) = (store.flags.get(), &store.bounds.keeping); // under the lock, as in `put`
    let (bytes, requested) = (record.bytes, record.requested);
    if flags & (bypass_flags | CLOSED) != 0
        || (flags & LIMITED != 0 && state.is_bucket_full(key, bytes, keeping))
        || !state.has_room_for(bytes)
    {
        return Err(record);
    }
    record.freed_at = store.time_of(&state);
    state.blocks.push(key, record);
    state.count_put(bytes, requested);
    if flags & AWAITED != 0 {
        call_waiters(store.awaited(), state);
    }
    Ok(())
}

/// As [`put`], of a part of a segment.
///
/// # Safety
///
/// As for [`put`].
#[inline(never)]
pub(crate) unsafe fn put_part<A: DeviceAllocator>(
    mut record: RecordOwner<A>,
    bypass_flags: u32,
) -> Result<(), RecordOwner<A>> {
    // SAFETY: as in `put`.
    let store = unsafe { address_of(&record) };
    // SAFETY: as in `put`.
    let store: &Store<A> = unsafe { store.as_ref() };
    let Some(part) = record.part() else { return Err(record) };
    let shard = store.shards.get(part.shard as usize);
    let mut state = shard.lock();
    let flags = store.flags.get(); // under the lock, as in `put`
    if flags & (bypass_flags | CLOSED) != 0 {
        return Err(record);
    }
    record.freed_at = store.time_of(&state);
    // The store may be freed as soon as this thread unlocks the shard, as in `put`.
    let Some(watch) = store.watch_plain(false) else { return Err(record) };
    let kept = state.put_range(store.allocator.clock(), record);
    drop(watch);
    state.publish_used(&shard.published);
    if flags & AWAITED != 0 && kept.is_ok() {
        call_waiters(store.awaited(), state);
    }
    kept
}

/// After a free while a request waits, if that is to be called.
#[cold]
#[inline(never)]
fn call_waiters<A: DeviceAllocator>(awaited: Option<Budget>, state: LockGuard<'_, State<A>>) {
    let awaited = awaited.map(WakeBudget);
    drop(state);
    drop(awaited);
}
