//! Memory that stays where it is, and the system's limit on it.
#![expect(unsafe_code, reason = "a child process is made, so that limits are its own")]
#![expect(clippy::unwrap_used, reason = "a test")]

use pool_core::{BucketPolicy, BucketPool, KIB, MIB, Why};
use pool_host::{AtLockLimit, PinnedAllocator};

/// What the system says is locked, in bytes.
fn locked() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmLck:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * KIB
}

/// Runs `work` in a child that may lock so many bytes, and returns its exit status.
fn in_child(limit: u64, work: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child allocates, which the system's allocator allows after `fork`, and ends.
    match unsafe { libc::fork() } {
        0 => {
            let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
            // SAFETY: reads the value that it is given.
            unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) };
            // The limit does not bind the superuser.
            // SAFETY: changes a number of this process.
            unsafe { libc::setuid(65_534) };
            let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!passed.unwrap_or(false))) }
        }
        child => {
            let mut status = 0;
            // SAFETY: waits for our child, and writes to the number that it is given.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            status
        }
    }
}

#[test]
fn what_is_pooled_is_locked_and_what_goes_back_is_not() {
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
            assert_eq!((error.why(), held.size()), (Why::Limit, 128 * KIB));
            let text = error.to_string();
            assert!(text.contains("RLIMIT_MEMLOCK") && text.contains("262144"), "{text}");
            assert_eq!(pool.stats().reserved_bytes, 128 * KIB);
            drop(held);
            // What is idle goes back before anybody is refused.
            assert!(pool.allocate(256 * KIB).is_ok());
            true
        }),
        0
    );
}

#[test]
fn or_it_is_not_locked_and_says_so() {
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
        drop(names); // its strings go; its block stays with the pool of the parent
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
        // A cached block would fit, and its pages are not locked here.
        let error = pool.allocate(64 * KIB).unwrap_err();
        assert_eq!(error.why(), Why::Forked);
        assert!(live.on(&()).is_err_and(|error| error.why == Why::Forked));
        // New memory of the child does not land in that of the pool, and outlives it.
        let own: Vec<Vec<u8>> = (0..64).map(|_| vec![5; 64 << 10]).collect();
        drop((live, pool));
        own.iter().flatten().all(|byte| *byte == 5)
    });
    assert_eq!(status, 0, "{status:x}");
}

#[test]
fn a_forked_child_has_locked_memory_of_its_own() {
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
fn more_than_there_is_is_refused_before_the_system_kills_for_it() {
    let machine = pool_core::DeviceAllocator::total_bytes(&PinnedAllocator::new()).unwrap();
    let pool = BucketPool::new(PinnedAllocator::new());
    let error = pool.allocate(2 * machine).unwrap_err();
    assert_eq!(error.why(), Why::OutOfMemory);
    let said = error.to_string();
    assert!(said.contains("lock more than there is: MemAvailable in bytes"), "{said}");
    // Addresses only: nothing is touched. The kernel holds some of the machine's memory itself.
    let unlocked = BucketPool::builder(PinnedAllocator::at_limit(AtLockLimit::Unlocked))
        .policy(BucketPolicy::Exact)
        .build();
    let buffer = unlocked.allocate(machine).unwrap();
    assert!(!buffer.on(&()).unwrap().is_locked());
}
