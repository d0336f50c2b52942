//! Locked host memory: the system's limit, and forked children.
#![expect(unsafe_code, reason = "a child process is made, so that limits are its own")]
#![expect(clippy::unwrap_used, reason = "a test")]

use pool_core::port::Limit;
use pool_core::{BucketPolicy, BucketPool, KIB, MIB, Why};
use pool_host::{AtLockLimit, PinnedAllocator};

/// Returns the locked bytes of this process (`VmLck`).
fn locked() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmLck:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * KIB
}

/// Runs `work` in a child that may lock `limit` bytes, and returns the child's wait status: 0 if
/// `work` returned true.
fn in_child(limit: u64, work: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child uses the system's allocator, which may be used after `fork`, and ends by
    // `_exit`.
    match unsafe { libc::fork() } {
        0 => {
            let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
            // SAFETY: `limit` is a live local variable that `setrlimit` only reads.
            unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) };
            // The limit does not apply to the superuser, so the child becomes another user.
            // SAFETY: `setuid` has no requirements on memory, and the child has no other thread.
            unsafe { libc::setuid(65_534) };
            let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            // SAFETY: `_exit` has no requirements. It ends the child without running destructors.
            unsafe { libc::_exit(i32::from(!passed.unwrap_or(false))) }
        }
        child => {
            let mut status = 0;
            // SAFETY: `status` is a live local variable that `waitpid` may write to.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            status
        }
    }
}

#[test]
fn blocks_stay_locked_until_the_pool_gives_them_back() {
    assert_eq!(
        in_child(MIB, || {
            let before = locked();
            let pool = BucketPool::new(PinnedAllocator::new());
            let mut buffer = pool.allocate(100 * KIB).unwrap();
            buffer.fill(3);
            assert!(buffer.on(&()).unwrap().is_locked());
            assert_eq!(locked() - before, 128 * KIB);
            drop(buffer);
            assert_eq!(locked() - before, 128 * KIB, "idle, and still locked");
            assert_eq!(pool.allocate(100 * KIB).unwrap()[0], 3);
            pool.clear().unwrap();
            assert_eq!(locked(), before);
            true
        }),
        0
    );
}

#[test]
fn at_the_limit_the_error_names_it_and_its_value() {
    assert_eq!(
        in_child(256 * KIB, || {
            let pool = BucketPool::new(PinnedAllocator::new());
            let held = pool.allocate(128 * KIB).unwrap();
            let error = pool.allocate(256 * KIB).unwrap_err();
            assert_eq!((error.why(), held.size()), (Why::Limit(Limit::Device), 128 * KIB));
            let text = error.to_string();
            assert!(text.contains("RLIMIT_MEMLOCK") && text.contains("262144"), "{text}");
            assert_eq!(pool.stats().reserved_bytes, 128 * KIB);
            drop(held);
            // The pool gives its cached blocks back before it refuses a request.
            assert!(pool.allocate(256 * KIB).is_ok());
            true
        }),
        0
    );
}

#[test]
fn at_the_limit_a_block_may_be_unlocked_and_reports_it() {
    assert_eq!(
        in_child(0, || {
            let pool = BucketPool::new(PinnedAllocator::at_limit(AtLockLimit::Unlocked));
            let mut buffer = pool.allocate(128 * KIB).unwrap();
            buffer.fill(1);
            assert!(!buffer.on(&()).unwrap().is_locked());
            locked() == 0
        }),
        0
    );
}

#[test]
fn a_live_buffer_is_a_copy_in_a_forked_child() {
    let pool = BucketPool::new(PinnedAllocator::new());
    let mut buffer = pool.allocate(4 * KIB).unwrap();
    buffer.fill(7);
    let status = in_child(MIB, || {
        let is_there = buffer.iter().all(|byte| *byte == 7);
        buffer.fill(9); // the child's own copy
        is_there
    });
    assert_eq!(status, 0, "{status:x}");
    assert!(buffer.iter().all(|byte| *byte == 7));
}

#[cfg(feature = "allocator-api2")]
#[test]
fn a_collection_in_a_pool_can_be_read_and_dropped_in_a_forked_child() {
    use pool_host::{InPool, allocator_api2::vec::Vec};

    let pool = BucketPool::new(PinnedAllocator::new());
    let mut names = Vec::new_in(InPool::new(&pool));
    names.extend(["a", "b"].map(str::to_owned));
    let status = in_child(MIB, move || {
        let is_there = names.iter().map(String::as_str).eq(["a", "b"]);
        drop(names); // frees the strings; the block stays with the parent's pool
        is_there
    });
    assert_eq!(status, 0, "{status:x}");
}

#[test]
fn a_forked_child_cannot_allocate_from_its_parents_pool() {
    let pool = BucketPool::new(PinnedAllocator::new());
    drop(pool.allocate(64 * KIB).unwrap());
    let live = pool.allocate(64 * KIB).unwrap();
    let status = in_child(MIB, move || {
        // A cached block would fit, but its pages are not locked in the child.
        let error = pool.allocate(64 * KIB).unwrap_err();
        assert_eq!(error.why(), Why::Forked);
        assert!(live.on(&()).is_err_and(|error| error.why == Why::Forked));
        // New memory of the child does not overlap the pool's memory and stays intact when the
        // pool is dropped.
        let own: Vec<Vec<u8>> = (0..64).map(|_| vec![5; 64 << 10]).collect();
        drop((live, pool));
        own.iter().flatten().all(|byte| *byte == 5)
    });
    assert_eq!(status, 0, "{status:x}");
}

#[test]
fn a_forked_child_can_create_its_own_allocator() {
    let parents = PinnedAllocator::new();
    let status = in_child(MIB, || {
        let before = locked();
        let pool = BucketPool::new(PinnedAllocator::new());
        let buffer = pool.allocate(64 * KIB).unwrap();
        assert!(buffer.on(&()).unwrap().is_locked());
        assert_eq!(locked() - before, 64 * KIB);
        BucketPool::new(parents).allocate(1).is_err_and(|error| error.why() == Why::Forked)
    });
    assert_eq!(status, 0, "{status:x}");
}

#[test]
fn an_alignment_above_a_page_is_refused() {
    let pool = BucketPool::new(PinnedAllocator::new());
    assert_eq!(pool.allocate_aligned(10, 4096).unwrap().as_ptr().addr() % 4096, 0);
    assert_eq!(pool.allocate_aligned(10, 8192).unwrap_err().why(), Why::Unsupported);
}

#[test]
fn a_request_above_the_available_memory_is_refused() {
    let machine = pool_core::DeviceAllocator::total_bytes(&PinnedAllocator::new()).unwrap();
    let pool = BucketPool::new(PinnedAllocator::new());
    let error = pool.allocate(2 * machine).unwrap_err();
    assert_eq!(error.why(), Why::OutOfMemory);
    let said = error.to_string();
    assert!(said.contains("lock more than MemAvailable: out of memory, at most "), "{said}");
    // `MemAvailable` is less than the machine's memory, because the kernel uses some of it, so the
    // block is not locked. The test maps addresses and touches none of them.
    let unlocked = BucketPool::builder(PinnedAllocator::at_limit(AtLockLimit::Unlocked))
        .policy(BucketPolicy::Exact)
        .build();
    let buffer = unlocked.allocate(machine).unwrap();
    assert!(!buffer.on(&()).unwrap().is_locked());
}
