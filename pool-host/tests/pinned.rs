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
fn a_child_does_not_inherit_it() {
    let pool = BucketPool::new(PinnedAllocator::new());
    let buffer = pool.allocate(4 * KIB).unwrap();
    let status = in_child(MIB, || buffer.iter().all(|byte| *byte == 0));
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status:x}");
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
