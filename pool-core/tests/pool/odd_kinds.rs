//! A safe backend whose kinds are equal at some times and not at others: nothing undefined follows
//! from that, as for the keys of a map. Miri runs this.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "tests")]

use pool_core::port::{Immediate, Memory, Request};
use pool_core::{BucketPool, DeviceAllocator, DeviceError, limits::CachedLimit};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::cell::Cell;
use std::hash::{Hash, Hasher};

thread_local! {
    static ALL_EQUAL: Cell<bool> = const { Cell::new(false) };
}

#[derive(Clone, Copy, Debug, Default)]
struct Odd(u8);

impl PartialEq for Odd {
    fn eq(&self, other: &Self) -> bool {
        ALL_EQUAL.get() || self.0 == other.0
    }
}
impl Eq for Odd {}
impl Hash for Odd {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u8(0);
    }
}

struct Memories;

impl DeviceAllocator for Memories {
    type Block = Box<[u8]>;
    type View<'b> = &'b [u8];
    type Kind = Odd;
    type Clock = Immediate;
    const MEMORY: Memory = Memory::HOST;
    fn clock(&self) -> &Immediate {
        &Immediate
    }
    fn aligned(&self, kind: Odd, _: u64) -> Result<Odd, DeviceError> {
        Ok(kind)
    }
    fn allocate(&self, request: Request<Odd>, (): &()) -> Result<Box<[u8]>, DeviceError> {
        Ok(vec![0; usize::try_from(request.bytes).unwrap()].into())
    }
    fn free(&self, block: Box<[u8]>, _: &[()]) -> Result<(), DeviceError> {
        drop(block);
        Ok(())
    }
    fn view<'b>(&'b self, block: &'b Box<[u8]>, offset: u64, bytes: u64, (): &()) -> &'b [u8] {
        let [from, bytes] = [offset, bytes].map(|at| usize::try_from(at).unwrap());
        &block[from..from + bytes]
    }
    fn zero(&self, block: &mut Box<[u8]>, bytes: u64, (): &()) -> Result<(), DeviceError> {
        block[..usize::try_from(bytes).unwrap()].fill(0);
        Ok(())
    }
}

/// Calls `work` while all kinds are equal.
fn all_equal<R>(work: impl FnOnce() -> R) -> R {
    ALL_EQUAL.set(true);
    let result = work();
    ALL_EQUAL.set(false);
    result
}

fn pool(limit: CachedLimit) -> BucketPool<Memories> {
    BucketPool::builder(Memories).cached_limit(limit).shards(1).build()
}

#[test]
fn a_block_that_is_evicted_leaves_the_stack_that_it_is_in() {
    let pool = pool(CachedLimit::Unlimited);
    let (a, b) = (pool.allocate(512).unwrap(), pool.allocate_kind(&(), 512, Odd(1)).unwrap());
    drop(a); // its class is found first
    drop(b); // alone in the class of its kind
    drop(pool.allocate(512).unwrap()); // now `b` is the oldest of all
    assert_eq!(all_equal(|| pool.trim(1)).unwrap(), 512);
    let again = pool.allocate_kind(&(), 512, Odd(1)).unwrap();
    assert_eq!(again.on(&()).unwrap().len(), 512);
    assert_eq!(pool.stats().misses, 3, "the block of its kind went back");
}

#[test]
fn classes_of_equal_kinds_keep_their_blocks_when_the_table_grows() {
    let pool = pool(CachedLimit::Unlimited);
    for round in 0..3 {
        let kinds = (0..8).map(|kind| pool.allocate_kind(&(), 512, Odd(kind)).unwrap());
        drop(kinds.collect::<Vec<_>>());
        // New sizes: the table makes room.
        all_equal(|| {
            let sizes = (1..64_u64).map(|size| pool.allocate(1024 * (size + 64 * round)).unwrap());
            drop(sizes.collect::<Vec<_>>());
        });
    }
    let held: Vec<_> =
        (0..8).map(|kind| pool.allocate_kind(&(), 512, Odd(kind)).unwrap()).collect();
    assert!(held.iter().all(|buffer| buffer.on(&()).unwrap().len() == 512));
    drop(held);
    let cached = pool.stats().cached_bytes;
    assert_eq!(all_equal(|| pool.clear()).unwrap(), cached);
    assert_eq!(pool.reserved_bytes(), 0);
}

#[test]
fn a_random_program_with_odd_kinds_ends() {
    let (pool, mut held) = (pool(CachedLimit::Bytes(16 * 1024)), Vec::new());
    let mut random = StdRng::seed_from_u64(14);
    for _ in 0..if cfg!(miri) { 100 } else { 20_000 } {
        ALL_EQUAL.set(random.random_range(0..4) == 0);
        match random.random_range(0..8) {
            0 => {
                let _ = pool.trim(512);
            }
            1..4 if !held.is_empty() => drop(held.swap_remove(random.random_range(0..held.len()))),
            _ => {
                let (bytes, kind) =
                    (512 * random.random_range(1..5), Odd(random.random_range(0..6)));
                held.extend(pool.allocate_kind(&(), bytes, kind));
            }
        }
        held.truncate(32);
    }
    ALL_EQUAL.set(false);
    drop(held);
    assert_eq!(pool.allocated_bytes(), 0);
}
