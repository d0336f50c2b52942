//! Guards of pools of host memory: they find what a program writes where it must not, and nothing
//! else.
#![expect(unsafe_code, clippy::unwrap_used, reason = "tests write where a program must not")]

use pool_core::observe::{Damage, Misuse};
use pool_core::{ArenaConfig, BucketPolicy, BucketPool, KIB, PoolBuilder, ZeroPolicy};
use pool_host::HostAllocator;
use std::sync::{Arc, Mutex};

/// A pool with guards, and what they have found.
fn guarded(
    builder: PoolBuilder<HostAllocator>,
) -> (BucketPool<HostAllocator>, Arc<Mutex<Vec<Damage>>>) {
    let found = Arc::new(Mutex::new(Vec::new()));
    let report = found.clone();
    let pool = builder.guards(move |damage| report.lock().unwrap().push(*damage)).build();
    (pool, found)
}

fn builder() -> PoolBuilder<HostAllocator> {
    BucketPool::builder(HostAllocator::new())
}

#[test]
fn a_write_behind_the_end_is_found_when_the_buffer_is_freed() {
    for arena in [false, true] {
        let builder = if arena { builder().arena(ArenaConfig::grow()) } else { builder() };
        let (pool, found) = guarded(builder);
        let mut buffer = pool.tagged("tile").allocate(1024).unwrap();
        assert!(buffer.allocated_size() >= 1040);
        buffer.fill(1);
        // SAFETY: inside of the block, which has at least 16 bytes more than the buffer.
        let behind = unsafe { buffer.as_mut_ptr().add(1027) };
        // SAFETY: as above; no other code has these bytes.
        unsafe { behind.write(7) };
        assert!(found.lock().unwrap().is_empty());
        drop(buffer);
        let found = found.lock().unwrap();
        assert_eq!((found.len(), found[0].at, found[0].tag), (1, 1027, "tile"));
        assert_eq!((found[0].misuse, found[0].requested_bytes), (Misuse::WrittenBehindEnd, 1024));
        assert_eq!(found[0].to_string(), "byte 1027 of a buffer of 1024 was written, tag \"tile\"");
    }
}

#[test]
fn a_write_to_freed_memory_is_found_when_it_is_handed_out_again() {
    let (pool, found) = guarded(builder());
    let mut buffer = pool.allocate(1000).unwrap();
    let freed = buffer.as_mut_ptr();
    drop(buffer);
    // SAFETY: inside of the block, whose memory is there as long as the pool caches it.
    let inside = unsafe { freed.add(5) };
    // SAFETY: as above; no other code has it now.
    unsafe { inside.write(7) };
    let again = pool.allocate(1000).unwrap();
    assert_eq!(again.as_ptr(), freed.cast_const());
    let found = found.lock().unwrap();
    assert_eq!((found.len(), found[0].at, found[0].misuse), (1, 5, Misuse::WrittenAfterFree));
}

/// The pool zeroes the memory when it is freed, or when it is handed out again.
#[test]
fn a_write_to_freed_memory_is_found_though_the_memory_is_zeroed() {
    for zero in [ZeroPolicy::Never, ZeroPolicy::OnAllocate, ZeroPolicy::OnReturn] {
        let (pool, found) = guarded(builder().zero(zero));
        let mut buffer = pool.allocate(1000).unwrap();
        let freed = buffer.as_mut_ptr();
        drop(buffer);
        // SAFETY: as above.
        let inside = unsafe { freed.add(5) };
        // SAFETY: as above.
        unsafe { inside.write(7) };
        let again = pool.tagged("next").allocate_zeroed(1000).unwrap();
        assert_eq!((again.as_ptr(), &*again), (freed.cast_const(), &[0; 1000][..]), "{zero:?}");
        let found = found.lock().unwrap();
        assert_eq!((found.len(), found[0].at, found[0].tag), (1, 5, "next"), "{zero:?}");
        assert_eq!(found[0].misuse, Misuse::WrittenAfterFree);
    }
}

#[test]
fn a_program_that_writes_its_own_bytes_only_is_not_accused() {
    for arena in [false, true] {
        let builder = builder().policy(BucketPolicy::Exact);
        let builder = if arena { builder.arena(ArenaConfig::grow()) } else { builder };
        let (pool, found) = guarded(builder);
        pool.warm_up(&[(KIB, 2)]).unwrap();
        for round in 0..3 {
            let sizes = [0, 1, 63, 64, 1000, KIB, 100_000];
            let mut held = sizes.map(|bytes| pool.allocate(bytes).unwrap());
            for buffer in &mut held {
                buffer.fill(round);
            }
            drop(held);
            let zeroed = sizes.map(|bytes| pool.allocate_zeroed(bytes).unwrap());
            assert!(zeroed.iter().all(|buffer| buffer.iter().all(|byte| *byte == 0)));
            std::thread::scope(|scope| scope.spawn(|| drop(zeroed)).join()).unwrap();
            drop(pool.allocate(KIB).unwrap().detach());
        }
        assert!(pool.stats().hits > 10);
        assert!(found.lock().unwrap().is_empty(), "{:?}", found.lock().unwrap());
    }
}

#[test]
fn freed_memory_does_not_show_what_was_there() {
    let (pool, _) = guarded(builder());
    pool.allocate(100).unwrap().fill(9);
    assert_eq!(*pool.allocate(100).unwrap(), [0xDD; 100]);
}
