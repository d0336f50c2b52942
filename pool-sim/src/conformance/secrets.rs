//! The promises of a `ZeroPolicy`: no byte of an owner reaches the next one, and where the policy
//! says so none reaches the device. The rounding tail of a block is part of it.
#![expect(clippy::naive_bytecount, reason = "a test: no need for speed")]
#![expect(unsafe_code, reason = "the port's copies, of whole blocks that a call owns")]

use super::promise::{Served, allocate, contents, promise};
use crate::hooked::{Call, Hooked, Hooks};
use pool_core::limits::CachedLimit;
use pool_core::port::Zeroing;
use pool_core::{BucketPool, DeviceError, PoolBuilder, StreamClock, Transfer, ZeroPolicy};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The byte that owners write.
const CANARY: u8 = 0xC5;
const NO_BYTE_OF_ANOTHER: &str = "`ZeroPolicy::OnReturn`: no owner reads a byte of another";
/// Owners use less of a block of 1 KiB than all of it, and the next one uses more.
const SIZES: [u64; 6] = [1024, 1, 700, 1023, 5, 1024];

/// Counts canaries in every block that goes back to the device.
struct CountsCanaries(Arc<AtomicU64>);

impl<A: Transfer> Hooks<A> for CountsCanaries {
    fn before(&self, inner: &A, call: &Call<'_, A>) -> Result<(), DeviceError> {
        let Call::Free { block, bytes: size, after } = call else { return Ok(()) };
        let on = inner.clock().default_stream().clone();
        let mut bytes = vec![0; usize::try_from(*size).unwrap_or(usize::MAX)];
        let whole = inner.view(block, 0, *size, &on);
        for mark in *after {
            inner.clock().synchronize(*mark)?;
        }
        // SAFETY: the view is the whole block, which the caller gave up; its last uses are done.
        unsafe { inner.read(&whole, 0, &mut bytes, &on)? };
        let canaries = bytes.iter().filter(|byte| **byte == CANARY).count();
        self.0.fetch_add(canaries as u64, Relaxed);
        Ok(())
    }
}

/// The policies that zero, over allocators that `make` makes.
pub(super) fn run<A: Transfer>(make: &impl Fn() -> A) {
    promise(NO_BYTE_OF_ANOTHER, || {
        let hits = no_owner_sees_anothers_bytes(BucketPool::builder(make()));
        assert!(hits > 3, "blocks were reused {hits} times, expected more than 3");
    });
    promise(
        "`ZeroPolicy::OnAllocate`: `zero` fills all of a block, also its rounding tail",
        || {
            a_block_is_zeroed_whole_before_it_is_handed_out(make());
        },
    );
    // Elsewhere a drop may not give the device work, and a block is zeroed when it serves again.
    if A::MEMORY.free_in_drop && matches!(A::MEMORY.zeroing, Zeroing::AtOnce) {
        promise("`ZeroPolicy::OnReturn`: no byte of an owner goes back to the device", || {
            no_byte_reaches_the_device(make());
        });
    }
}

/// The same over pools with an arena, which `make` makes.
pub(super) fn run_arena<A: Transfer>(make: impl Fn() -> PoolBuilder<A>) {
    promise(NO_BYTE_OF_ANOTHER, || {
        no_owner_sees_anothers_bytes(make());
    });
}

fn watched<A: Transfer>(inner: A, zero: ZeroPolicy) -> (BucketPool<Hooked<A>>, Arc<AtomicU64>) {
    let found = Arc::new(AtomicU64::new(0));
    let builder = BucketPool::builder(Hooked::with(inner, CountsCanaries(found.clone())));
    let pool = builder.zero(zero).cached_limit(CachedLimit::Unlimited).build();
    (pool, found)
}

fn use_all<A: Transfer>(pool: &BucketPool<A>, bytes: u64) {
    let mut buffer = allocate(pool, bytes);
    let seen = contents(&buffer).into_iter().filter(|byte| *byte == CANARY).count();
    assert_eq!(seen, 0, "{seen} of {bytes} bytes are another owner's");
    let canaries = vec![CANARY; usize::try_from(bytes).unwrap_or(usize::MAX)];
    buffer.write_at(0, &canaries).served(format_args!("a write of {bytes} bytes"));
}

/// Owners of all sizes follow each other; in a pool with an arena their blocks are split and
/// coalesced. Returns how many were hits.
fn no_owner_sees_anothers_bytes<A: Transfer>(builder: PoolBuilder<A>) -> u64 {
    let pool = builder.zero(ZeroPolicy::OnReturn).cached_limit(CachedLimit::Unlimited).build();
    for turn in 0..3 {
        for bytes in SIZES.into_iter().chain([5000, 40_000]) {
            use_all(&pool, bytes + turn);
        }
    }
    pool.stats().hits
}

/// The first owner used all of the block; the second asks for one byte of it and detaches it, so
/// that the device gets the whole block as it was handed out.
fn a_block_is_zeroed_whole_before_it_is_handed_out<A: Transfer>(inner: A) {
    let (pool, found) = watched(inner, ZeroPolicy::OnAllocate);
    for bytes in SIZES {
        use_all(&pool, bytes);
    }
    allocate(&pool, 1).detach().free().served("`free` of a detached block");
    let found = found.load(Relaxed);
    assert_eq!(found, 0, "{found} bytes of the first owner in the second's rounding tail");
}

fn no_byte_reaches_the_device<A: Transfer>(inner: A) {
    let (pool, found) = watched(inner, ZeroPolicy::OnReturn);
    for bytes in SIZES {
        use_all(&pool, bytes);
    }
    let large = 9 * pool_core::MIB; // larger than what is kept
    use_all(&pool, large);
    let mut detached = allocate(&pool, 700);
    detached.write_at(0, &[CANARY; 700]).served("a write of 700 bytes");
    detached.detach().free().served("`free` of a detached block");
    pool.clear().served("`clear`");
    drop(pool);
    let found = found.load(Relaxed);
    assert_eq!(found, 0, "{found} bytes of an owner reached the device");
}
