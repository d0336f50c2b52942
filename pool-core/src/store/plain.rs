//! **The hot paths**: a hit, and a free into a shard. Each is one function that takes one lock, and that asks
//! two words whether anything is special: the flags of the pool (`flags.rs`), and those of a record (`block/flags.rs`). What is
//! not plain is its last call (`not_plain.rs`).
#![expect(unsafe_code, reason = "the store of a block that is freed, which may go with its lock")]

use crate::block::flags::PLAIN;
use crate::block::record::{Record, RecordOwner};
use crate::block::request::Key;

use crate::port::{DeviceAllocator, StreamClock, StreamOf};
use crate::shard::State;
use crate::store::Store;
use crate::store::flags::OF_FREE;
use crate::store::not_plain::{Streams, put_busy, put_locked};
use crate::store::reference::address_of;
use crate::sys::atomic::Ordering::Relaxed;
use crate::sys::thread_number;

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
            return self.hit_not_plain(None, streams, key, sizes);
        };
        let Some(mut state) = self.shards.try_lock_home(&key) else {
            return self.hit_not_plain(None, streams, key, sizes);
        };
        if state.is_round_over() {
            return self.hit_not_plain(Some(state), streams, key, sizes);
        }
        state.note_thread(thread.number);
        // Under the lock: behind what another thread on the stream has freed until now.
        let now = clock.mark(stream);
        let ready = |record: &mut Record<A>| record.is_plain_and_ready(PLAIN, clock, on);
        let Some(mut record) = state.blocks.take_top(key, bytes, ready) else {
            return self.hit_not_plain(Some(state), streams, key, sizes);
        };
        state.count_taken(bytes, requested);
        record.requested = requested;
        if size_of_val(&now) > 0 {
            record.marks.get_mut().restart_plain(now);
        }
        Some(record)
    }

    /// The time at which a block is freed into a shard: allocations of the shard that has most, as far
    /// as other shards know of it.
    #[inline]
    pub(super) fn time_of(&self, state: &State<A>) -> u64 {
        if self.shards.count() > 1 { state.turn.max(self.turn.load(Relaxed)) } else { state.turn }
    }
}

/// Frees a whole block into its shard, which counts the buffer as freed. Returns the block if that cannot
/// be done under the lock of one shard, or if any of the flags `bypass_flags` is set.
///
/// # Safety
///
/// As for [`store_of`](crate::store::reference::store_of).
#[inline]
pub(crate) unsafe fn put<A: DeviceAllocator>(
    mut record: RecordOwner<A>,
    bypass_flags: u32,
) -> Result<(), RecordOwner<A>> {
    // SAFETY: as in `store_of`, until the shard counts the buffer as freed.
    let address = unsafe { address_of(&record) };
    // SAFETY: as in `store_of`, until the shard counts the buffer as freed.
    let store: &Store<A> = unsafe { address.as_ref() };
    let key = State::key_of(store.allocator.clock(), &mut record);
    let Some(mut state) = store.shards.try_lock_home(&key) else {
        // SAFETY: as the caller promises.
        return unsafe { put_busy(address, key, record, bypass_flags) };
    };
    let (bytes, requested) = (record.bytes, record.requested);
    // The flags are read under the lock: a request that begins to wait takes each lock once after
    // it sets its flag. Either it finds the block in the shard, or this read sees the flag.
    if store.flags.get() & OF_FREE == 0 && state.has_room_for(bytes) {
        record.freed_at = store.time_of(&state);
        // The store may be freed as soon as this thread unlocks the shard. No reference into the store
        // is used after that here, and the lock is not accessed after the write that unlocks it
        // (sys/lock.rs, `unlock`).
        match state.blocks.push_again(key, record) {
            Ok(()) => {
                state.count_put(bytes, requested);
                return Ok(());
            }
            Err(refused) => record = refused,
        }
    }
    // SAFETY: as the caller promises.
    unsafe { put_locked(address, key, state, record, bypass_flags) }
}
