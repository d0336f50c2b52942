//! No request is refused while memory is free, whatever other threads do meanwhile.
#![expect(clippy::unwrap_used, reason = "tests")]

use pool_core::limits::Budget;
use pool_core::port::Sliceable;
use pool_core::{AllocError, ArenaConfig, BucketPool, KIB, MIB, Transfer};
use pool_host::HostAllocator;
use pool_sim::SimDevice;
use pool_sim::conformance;
use std::hint::black_box;
use std::thread;

const THREADS: usize = 4;
const POOLS: u64 = 20;
const REQUESTS: u64 = 200;

/// A pool whose limit is far above what the threads have alive at once.
struct Ample {
    arena: Option<ArenaConfig>,
    reserved: u64,
    cached: Option<u64>,
}

impl Ample {
    fn build<A: Transfer + Sliceable>(&self, device: A) -> BucketPool<A> {
        let mut builder = BucketPool::builder(device).reserved_limit(self.reserved);
        if let Some(config) = &self.arena {
            builder = builder.arena(config.clone());
        }
        if let Some(bytes) = self.cached {
            builder = builder.cached_limit(bytes);
        }
        builder.build()
    }

    /// Four threads with one buffer of at most 9 KB each at a time. Returns the errors.
    fn refusals<A: Transfer + Sliceable>(&self, make: impl Fn() -> A) -> Vec<AllocError> {
        let of_pool = |pool: BucketPool<A>| {
            let requests = || {
                let sizes = (0..REQUESTS).map(|turn| turn * 37 % 9000);
                sizes.filter_map(|bytes| black_box(pool.allocate(bytes)).err()).collect::<Vec<_>>()
            };
            thread::scope(|scope| {
                let threads = [(); THREADS].map(|()| scope.spawn(requests));
                threads.map(|thread| thread.join().unwrap()).into_iter().flatten().collect()
            })
        };
        (0..POOLS).flat_map(|_| -> Vec<_> { of_pool(self.build(make())) }).collect()
    }

    fn assert_served<A: Transfer + Sliceable>(&self, device: &str, make: impl Fn() -> A) {
        let refusals = self.refusals(make);
        let Self { arena, reserved, cached } = self;
        assert!(
            refusals.is_empty(),
            "{device}, {arena:?}, reserved limit {reserved}, cached limit {cached:?}: {} of {} \
             refused, such as: {}",
            refusals.len(),
            THREADS as u64 * POOLS * REQUESTS,
            refusals[0],
        );
    }
}

#[test]
fn segments_under_a_limit_serve_four_threads() {
    let limits = [
        (MIB, Some(256 * KIB)),
        (2 * MIB, Some(256 * KIB)),
        (MIB, None),
        (16 * MIB, Some(256 * KIB)),
    ];
    for (reserved, cached) in limits {
        let ample = Ample { arena: Some(ArenaConfig::segments(MIB)), reserved, cached };
        ample.assert_served("host", HostAllocator::new);
        ample.assert_served("sim", SimDevice::new);
    }
}

#[test]
fn every_kind_of_pool_under_a_limit_serves_four_threads() {
    for cached in [Some(256 * KIB), None] {
        let rows = [
            (None, MIB),
            (None, 128 * KIB),
            (Some(ArenaConfig::grow()), MIB),
            (Some(ArenaConfig::grow()), 256 * KIB),
            (Some(ArenaConfig::torch()), 2 * MIB),
            (Some(ArenaConfig::torch()), 4 * MIB),
            (Some(ArenaConfig::segments(64 * KIB)), MIB),
        ];
        for (arena, reserved) in rows {
            Ample { arena, reserved, cached }.assert_served("host", HostAllocator::new);
        }
    }
}

#[test]
fn an_arena_of_segments_passes_the_suite_twenty_times() {
    for _ in 0..20 {
        conformance::run_arena(HostAllocator::new, &ArenaConfig::segments(MIB));
    }
}

/// As many bytes as the threads have alive at once fit, and no more. Each block belongs to another
/// pool than the one before it.
#[test]
fn pools_that_share_a_tight_budget_serve_all_their_threads() {
    const BYTES: u64 = 9000; // 16 KiB of a power of two
    for (pools, threads) in [(2, 2), (2, 4), (4, 4), (3, 8)] {
        for _ in 0..40 {
            let budget = Budget::new(threads as u64 * 16 * KIB);
            let build = |_| BucketPool::builder(HostAllocator::new()).budget(&budget).build();
            let all: Vec<_> = (0..pools).map(build).collect();
            let requests = |thread: usize| {
                let pool = |turn: usize| &all[(turn * 7 + thread * 3 + turn / 5) % pools];
                (0..300).filter_map(|turn| pool(turn).allocate(BYTES).err()).collect::<Vec<_>>()
            };
            let refused: Vec<AllocError> = thread::scope(|scope| {
                let requests = &requests;
                let threads: Vec<_> =
                    (0..threads).map(|thread| scope.spawn(move || requests(thread))).collect();
                threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
            });
            let first = refused.first().map(ToString::to_string);
            assert_eq!(first, None, "{pools} pools, {threads} threads: {} refused", refused.len());
        }
    }
}
