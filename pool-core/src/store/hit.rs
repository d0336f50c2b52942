//! **The hot paths**: a hit, and a free into a shard. Each is one function that takes one lock, and that asks
//! two words whether anything is special: the flags of the pool ([`Flags`]), and those of a record
//! (`block/flags.rs`). Where something is, its last call goes on: [`Store::hit_special`], [`free_special`].
//!
//! A request that is no hit goes on in `attempt.rs`, a block that its shard does not keep in `free.rs`.
//!
//! A hit reads the flags before it locks its shard; a free reads them under the lock of its shard. Whoever has set
//! [`AWAITED`] or [`CLOSED`] locks each shard once afterwards: a free then either ended before, or sees the flag.
//! A hit ([`OF_HIT`]) that is under way may end after the flag is set: a flag that must stop hits is to be read
//! under the lock.
#![expect(unsafe_code, reason = "the store of a block that is freed, which may go with its lock")]

use crate::block::flags::{CLEAN, PLAIN};
use crate::block::record::{Record, RecordOwner};
use crate::block::{Key, PoolRequest};
use crate::limits::{Budget, WakeBudget};
use crate::port::{DeviceAllocator, StreamClock, StreamOf};
use crate::shard::{Grant, Heap};
use crate::store::life::address_of;
use crate::store::{Store, spread};
use crate::sys::atomic::Ordering::{Relaxed, SeqCst};
use crate::sys::modelled::AtomicU32;
use crate::sys::{LockGuard, has_no_padding, thread_number};
use std::ptr::NonNull;

/// The pool has observers or guards.
pub(crate) const OBSERVED: u32 = 1;
/// A request waits for memory.
pub(crate) const AWAITED: u32 = 2;
/// Blocks are zeroed when they are freed.
pub(crate) const ZEROES: u32 = 4;
/// A stream is bound to a private pool.
pub(crate) const BOUND: u32 = 8;
/// An invariant is broken, and the pool serves no more.
pub(crate) const BROKEN: u32 = 16;
/// The pool limits its buckets.
pub(crate) const LIMITED: u32 = 32;
/// The pool is closed.
pub(crate) const CLOSED: u32 = 64;
/// The pool splits its memory.
pub(crate) const ARENA: u32 = 128;
/// Nothing is reused.
pub(crate) const UNCACHED: u32 = 512;
/// Always set. A handle whose requests are never plain (they are zeroed, say) asks about it.
pub(crate) const ALWAYS: u32 = 256;

/// The flags that every free of a whole block asks about.
pub(crate) const OF_FREE: u32 = OBSERVED | AWAITED | ZEROES | BROKEN | LIMITED | CLOSED;
/// The flags that every hit asks about.
pub(crate) const OF_HIT: u32 = OBSERVED | BOUND | BROKEN | ARENA | UNCACHED;

/// The flags of a pool.
#[derive(Debug)]
pub(crate) struct Flags(AtomicU32);

impl Flags {
    pub(crate) fn new(flags: u32) -> Self {
        Self(AtomicU32::new(flags | ALWAYS))
    }

    /// Whether any of these is set.
    #[inline]
    pub(crate) fn any(&self, of: u32) -> bool {
        self.0.load(Relaxed) & of != 0
    }

    /// All flags that are set.
    #[inline]
    pub(crate) fn get(&self) -> u32 {
        self.0.load(Relaxed)
    }

    pub(crate) fn set(&self, flag: u32, on: bool) {
        match on {
            true => self.0.fetch_or(flag, SeqCst),
            false => self.0.fetch_and(!flag, SeqCst),
        };
    }
}

/// The stream that uses the memory, and the one that it must be ready for: another one where zeroes run
/// ahead.
pub(super) type Streams<'s, A> = (&'s StreamOf<A>, &'s StreamOf<A>);

impl<A: DeviceAllocator> Store<A> {
    /// Whether the device and this process can serve a plain request, or a plain use, on a stream.
    #[inline]
    pub(crate) fn is_plain_on(&self, stream: &StreamOf<A>) -> bool {
        let clock = self.allocator.clock();
        clock.owns(stream) && self.is_plain_here() && clock.takes_work(stream)
    }

    /// Whether nothing is wrong with the device, and the locks were looked at in this process: in a forked
    /// child the first call goes the slow way, which looks at them.
    #[inline]
    pub(crate) fn is_plain_here(&self) -> bool {
        self.forks.is_known_usable() && self.allocator.clock().fault().is_none()
    }

    /// Serves a plain request from free memory of its own shard and stream, or of no stream, that
    /// needs no call to the device: a look into a table, the block on top of a stack, a few additions.
    /// `sizes`: bytes of the class, and as requested.
    #[expect(clippy::inline_always, reason = "a hit is one function: no calls and no spills")]
    #[inline(always)]
    pub(crate) fn hit(
        &self,
        streams: Streams<'_, A>,
        kind: A::Kind,
        sizes: (u64, u64),
    ) -> Option<RecordOwner<A>> {
        let ((stream, on), (bytes, requested)) = (streams, sizes);
        let clock = self.allocator.clock();
        let key = Key { kind, stream_id: clock.stream_id(clock.mark(stream)) };
        let Some(thread) = thread_number::known() else {
            return self.hit_special(None, streams, key, sizes);
        };
        let Some(mut heap) = self.shards.try_lock_home(&key) else {
            return self.hit_special(None, streams, key, sizes);
        };
        if heap.is_round_over() {
            return self.hit_special(Some(heap), streams, key, sizes);
        }
        heap.note_thread(thread.number);
        // Under the lock: behind what another thread on the stream has freed until now.
        let now = clock.mark(stream);
        let ready = |record: &mut Record<A>| record.is_plain_and_ready(PLAIN, clock, on);
        let Some(mut record) = heap.blocks.pop_top(key, bytes, ready) else {
            return self.hit_special(Some(heap), streams, key, sizes);
        };
        heap.count_taken(bytes, requested);
        record.requested = requested;
        // Where streams have no marks there is nothing to start again.
        if size_of_val(&now) > 0 {
            record.marks.get_mut().restart_plain(now);
        }
        Some(record)
    }

    /// The time at which a block is freed into a shard: allocations of the shard that has most, as far
    /// as other shards know of it.
    #[inline]
    pub(super) fn time_of(&self, heap: &Heap<A>) -> u64 {
        if self.shards.count() > 1 { heap.time.max(self.time.load(Relaxed)) } else { heap.time }
    }
}

/// Frees a whole block into its shard, which counts the buffer as freed. Returns the block if that cannot
/// be done under the lock of one shard, or if any of the flags `bypass_flags` is set.
///
/// # Safety
///
/// As for [`store_of`](crate::store::life::store_of).
#[inline]
pub(crate) unsafe fn free_plain<A: DeviceAllocator>(
    mut record: RecordOwner<A>,
    bypass_flags: u32,
) -> Result<(), RecordOwner<A>> {
    // SAFETY: as in `store_of`, until the shard counts the buffer as freed.
    let address = unsafe { address_of(&record) };
    // SAFETY: as in `store_of`, until the shard counts the buffer as freed.
    let store: &Store<A> = unsafe { address.as_ref() };
    let key = Heap::key_of(store.allocator.clock(), &mut record);
    let Some(mut heap) = store.shards.try_lock_home(&key) else {
        // SAFETY: as the caller promises.
        return unsafe { free_busy(address, key, record, bypass_flags) };
    };
    let (bytes, requested) = (record.bytes, record.requested);
    // The flags are read under the lock: a request that begins to wait takes each lock once after
    // it sets its flag. Either it finds the block in the shard, or this read sees the flag.
    if store.flags.get() & OF_FREE == 0 && heap.has_room_for(bytes) {
        record.freed_at = store.time_of(&heap);
        // The store may be freed as soon as this thread unlocks the shard. No reference into the store
        // is used after that here, and the lock is not accessed after the write that unlocks it
        // (sys/lock.rs, `unlock`).
        match heap.blocks.push_again(key, record) {
            Ok(()) => {
                heap.count_put(bytes, requested);
                return Ok(());
            }
            Err(refused) => record = refused,
        }
    }
    // SAFETY: as the caller promises.
    unsafe { free_special(address, key, heap, record, bypass_flags) }
}

impl<A: DeviceAllocator> Store<A> {
    /// The end of a hit where the block that came last is not plain, a larger one may serve, a round ends,
    /// another thread is in the shard, or this one has no home yet.
    #[inline(never)]
    pub(super) fn hit_special(
        &self,
        locked: Option<LockGuard<'_, Heap<A>>>,
        (stream, on): Streams<'_, A>,
        key: Key<A::Kind>,
        (bytes, requested): (u64, u64),
    ) -> Option<RecordOwner<A>> {
        let mut heap = locked.unwrap_or_else(|| self.shards.lock_home(&key));
        heap.note_thread(thread_number::get());
        let now = self.allocator.clock().mark(stream); // under the lock, as in `hit`
        let (requester, statistics) = (self.requester_on(on), self.settings.statistics);
        let up_to = if self.larger_blocks_serve { self.classes.largest_for(bytes) } else { bytes };
        let found = heap.lend_block(key, bytes..=up_to, requested, &requester, statistics);
        self.unlock(heap);
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
        let mut heap = self.shards.lock_home(&key);
        heap.note_thread(thread_number::get());
        let now = clock.mark(stream); // under the lock, as in `hit`
        let ready = |record: &mut Record<A>| record.is_plain_and_ready(CLEAN, clock, on);
        let found = heap.blocks.pop_top(key, bytes, ready).map(|record| {
            let clean = record.is_clean();
            heap.count_taken(bytes, requested);
            heap.untouched_hits += u64::from(clean && self.settings.statistics);
            (record, clean)
        });
        self.unlock(heap);
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
        let (home, thread) = (self.shards.home_of(&key), thread_number::get());
        let mut heap = home.lock();
        heap.note_thread(thread);
        let request = heap.ranges.config.request(&key, bytes);
        let record = match heap.ranges.take(&request, &self.requester_on(on)) {
            Some(served) => {
                let store = (self.own_address(), self.settings.statistics);
                // Under the lock: behind what another thread on the stream has freed since `now`.
                heap.lend_served(&served, (kind, requested), clock.mark(stream), store)
            }
            None => None,
        };
        home.published.note(&heap);
        self.unlock(heap);
        record
    }

    /// As [`Store::hit`], for any request.
    pub(crate) fn hit_any(&self, request: &PoolRequest<'_, A>) -> Option<Grant<A>> {
        let requester = self.requester(request);
        let mut heap = match self.layout.is_arena() {
            true => self.shards.home_of(&request.key).lock(),
            false => self.shards.lock_home(&request.key),
        };
        heap.note_thread(thread_number::get());
        let lent = heap.lend_own(request, &requester, self.settings.statistics);
        self.shards.publish(&heap);
        self.unlock(heap);
        Some(Grant::new(lent?, request, requester.clock, false))
    }

    /// Unlocks a shard after a hit, and ends its round if that is over.
    #[inline]
    fn unlock(&self, heap: LockGuard<'_, Heap<A>>) {
        if heap.is_round_over() {
            self.unlock_after_round(heap);
        }
    }

    /// Ends the round of a shard, unlocks it, and takes more shards if it is crowded.
    #[cold]
    #[inline(never)]
    fn unlock_after_round(&self, mut heap: LockGuard<'_, Heap<A>>) {
        let crowded = spread::end_round(self, &mut heap);
        drop(heap);
        if let Some(count) = crowded {
            spread::spread(self, count);
        }
    }
}

/// [`free_plain`] where another thread is in the shard, or this one has no home yet.
///
/// # Safety
///
/// As for [`free_plain`], and `address` is that of the store.
#[cold]
#[inline(never)]
pub(super) unsafe fn free_busy<A: DeviceAllocator>(
    address: NonNull<Store<A>>,
    key: Key<A::Kind>,
    record: RecordOwner<A>,
    bypass_flags: u32,
) -> Result<(), RecordOwner<A>> {
    // SAFETY: as in `free_plain`.
    let store: &Store<A> = unsafe { address.as_ref() };
    let heap = store.shards.lock_home(&key);
    // SAFETY: as the caller promises.
    unsafe { free_special(address, key, heap, record, bypass_flags) }
}

/// [`free_plain`] with all that is special, in the locked shard that the block goes to. The store comes by its address,
/// since it may be gone when the lock is, and the guard refers to cells alone ([`has_no_padding`]).
///
/// # Safety
///
/// As for [`free_busy`]; `heap` is that of a shard of the store.
#[cold]
#[inline(never)]
pub(super) unsafe fn free_special<A: DeviceAllocator>(
    address: NonNull<Store<A>>,
    key: Key<A::Kind>,
    mut heap: LockGuard<'_, Heap<A>>,
    mut record: RecordOwner<A>,
    bypass_flags: u32,
) -> Result<(), RecordOwner<A>> {
    const { assert!(has_no_padding::<Heap<A>>(), "a guard refers to nothing outside of cells") };
    // SAFETY: as in `free_plain`.
    let store: &Store<A> = unsafe { address.as_ref() };
    let (flags, rules) = (store.flags.get(), &store.settings.rules); // under the lock, as in `free_plain`
    let (bytes, requested) = (record.bytes, record.requested);
    if flags & (bypass_flags | CLOSED) != 0
        || (flags & LIMITED != 0 && heap.is_bucket_full(key, bytes, rules))
        || !heap.has_room_for(bytes)
    {
        return Err(record);
    }
    record.freed_at = store.time_of(&heap);
    heap.blocks.push(key, record);
    heap.count_put(bytes, requested);
    if flags & AWAITED != 0 {
        call_waiters(store.awaited(), heap);
    }
    Ok(())
}

/// As [`free_plain`], of a part of a segment.
///
/// # Safety
///
/// As for [`free_plain`].
#[inline(never)]
pub(crate) unsafe fn free_part<A: DeviceAllocator>(
    mut record: RecordOwner<A>,
    bypass_flags: u32,
) -> Result<(), RecordOwner<A>> {
    // SAFETY: as in `free_plain`.
    let store = unsafe { address_of(&record) };
    // SAFETY: as in `free_plain`.
    let store: &Store<A> = unsafe { store.as_ref() };
    let Some(part) = record.part() else { return Err(record) };
    let shard = store.shards.get(part.shard as usize);
    let mut heap = shard.lock();
    let flags = store.flags.get(); // under the lock, as in `free_plain`
    if flags & (bypass_flags | CLOSED) != 0 {
        return Err(record);
    }
    record.freed_at = store.time_of(&heap);
    // The store may be freed as soon as this thread unlocks the shard, as in `free_plain`.
    let Some(watch) = store.watch_plain(false) else { return Err(record) };
    let kept = heap.free_part(store.allocator.clock(), record);
    drop(watch);
    shard.published.note(&heap);
    if flags & AWAITED != 0 && kept.is_ok() {
        call_waiters(store.awaited(), heap);
    }
    kept
}

/// After a free while a request waits, if that is to be called.
#[cold]
#[inline(never)]
fn call_waiters<A: DeviceAllocator>(awaited: Option<Budget>, heap: LockGuard<'_, Heap<A>>) {
    let awaited = awaited.map(WakeBudget);
    drop(heap);
    drop(awaited);
}
