//! Tests of a `Tcache` that is the global allocator of this test program.
#![expect(unsafe_code, reason = "an allocator and `fork` are called")]
#![expect(clippy::unwrap_used, reason = "a test")]

use pool_host::{Tcache, TcacheState};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::RefCell;
use std::process::{Command, ExitStatus};
use std::sync::{Barrier, Mutex};
use std::thread;

#[global_allocator]
static ALLOCATOR: Tcache = Tcache::new().cached_limit(64 << 20);

static SECOND: Tcache = Tcache::new();

/// Lock that a test holds while it runs, because all tests read the statistics of one allocator.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn bytes_of(vector: &Vec<u8>) -> (*const u8, usize) {
    (vector.as_ptr(), vector.capacity())
}

#[test]
fn temporaries_from_64_bytes_to_16_mib_reuse_their_block() {
    let _alone = alone();
    for bytes in [64, 1000, 4096, 100_000, 1 << 20, 16 << 20] {
        let first = vec![1_u8; bytes];
        let place = bytes_of(&first);
        drop(first);
        let before = ALLOCATOR.stats();
        for _ in 0..100 {
            let again: Vec<u8> = Vec::with_capacity(bytes);
            assert_eq!(bytes_of(&again), place);
        }
        let after = ALLOCATOR.stats();
        // Threads of the test harness may miss a few times. Without reuse, each of the 100 requests
        // would miss.
        assert!(after.misses < before.misses + 50, "{bytes}: {after}");
        assert!(after.hits >= before.hits + 100, "{after}");
    }
}

/// Zeroed requests return zeroes from blocks that were freed with other contents, on this thread
/// and on a second one.
#[test]
fn zeroed_memory_is_zero_after_dirty_frees() {
    let _alone = alone();
    for bytes in [1, 24, 1000, 5000, 100_000, 300_000, 5 << 20] {
        let dirty = move || {
            let blocks: Vec<_> = (0..40).map(|_| vec![0xa5_u8; bytes]).collect();
            drop(blocks);
        };
        let check = move || {
            let zeroed: Vec<_> = (0..40).map(|_| vec![0_u8; bytes]).collect();
            assert!(zeroed.iter().all(|block| block.iter().all(|byte| *byte == 0)), "{bytes}");
        };
        dirty();
        check();
        dirty();
        thread::spawn(check).join().unwrap();
        thread::spawn(dirty).join().unwrap();
        check();
    }
}

#[test]
fn growing_and_shrinking_a_vector_keeps_its_contents() {
    let _alone = alone();
    let mut grown: Vec<u32> = Vec::new();
    for number in 0..3_000_000 {
        grown.push(number);
    }
    for keep in [2_900_000, 2_000_000, 300_000, 70_000, 20_000, 300, 5, 1] {
        grown.truncate(keep);
        grown.shrink_to_fit();
        assert!(grown.iter().copied().eq(0..u32::try_from(keep).unwrap()), "{keep}");
    }
}

/// Requests with an alignment of at most 2 MiB hit the cache. Above that they bypass it and go to
/// the inner allocator.
#[test]
fn any_alignment_is_served() {
    let _alone = alone();
    for align in [32, 64, 4096, 2 << 20, 4 << 20] {
        let before = ALLOCATOR.stats();
        for _ in 0..50 {
            let layout = Layout::from_size_align(1000, align).unwrap();
            // SAFETY: the layout's size is 1000 bytes, not 0.
            let block = unsafe { ALLOCATOR.alloc_zeroed(layout) };
            assert!(block.addr().is_multiple_of(align) && !block.is_null());
            // SAFETY: `alloc_zeroed` above returned 1000 zeroed bytes, which no other code uses.
            let all = unsafe { std::slice::from_raw_parts_mut(block, 1000) };
            assert!(all.iter().all(|byte| *byte == 0));
            all.fill(7);
            // SAFETY: `alloc_zeroed` above returned it for this layout. The new size of 500 bytes
            // is not 0 and does not overflow with the alignment.
            let block = unsafe { ALLOCATOR.realloc(block, layout, 500) };
            assert!(block.addr().is_multiple_of(align) && !block.is_null());
            // SAFETY: `realloc` above returned a block of 500 bytes.
            let last = unsafe { block.add(499) };
            // SAFETY: `last` is the last byte of that block, and `realloc` keeps the first 500
            // bytes, which were written above.
            assert_eq!(unsafe { last.read() }, 7);
            let layout = Layout::from_size_align(500, align).unwrap();
            // SAFETY: `realloc` above returned it with this size and alignment.
            unsafe { ALLOCATOR.dealloc(block, layout) };
        }
        let after = ALLOCATOR.stats();
        let (hits, bypasses) = (after.hits - before.hits, after.bypasses - before.bypasses);
        assert_eq!((hits >= 45, bypasses > 0), (align <= 2 << 20, align > 2 << 20), "{after}");
    }
}

/// Destructors of thread locals may allocate and free, also after the thread gave its thread cache
/// up.
#[test]
fn destructors_of_thread_locals_may_allocate() {
    struct Late(Vec<u8>);
    impl Drop for Late {
        fn drop(&mut self) {
            self.0 = vec![3; 3 * self.0.len()];
            assert!(self.0.iter().all(|byte| *byte == 3));
        }
    }
    thread_local!(static LATE: RefCell<Option<Late>> = const { RefCell::new(None) });
    let _alone = alone();
    for bytes in [10, 10_000, 1 << 20] {
        thread::spawn(move || LATE.set(Some(Late(vec![1; bytes])))).join().unwrap();
        // The first access registers the destructor of `LATE` before the closure allocates. Rust
        // runs destructors in reverse order of registration, so the one of the thread cache runs
        // first.
        thread::spawn(move || {
            LATE.with(|_| ());
            LATE.set(Some(Late(vec![1; bytes])));
        })
        .join()
        .unwrap();
    }
}

#[test]
fn a_panic_while_buffers_are_held_gives_them_back() {
    let _alone = alone();
    let live = || ALLOCATOR.stats().live_bytes;
    let panics = || {
        thread::spawn(|| {
            let held = vec![1_u8; 10 << 20];
            std::panic::resume_unwind(Box::new(held.len()));
        })
        .join()
        .is_err()
    };
    assert!(panics());
    let before = live();
    assert!((0..10).all(|_| panics()));
    assert!(live() < before + (10 << 20), "{} after {before}", live());
}

#[test]
fn blocks_exchanged_between_ten_threads_stay_intact() {
    let _alone = alone();
    let shelf: Vec<Mutex<Vec<u8>>> = (0..64).map(|_| Mutex::new(Vec::new())).collect();
    let start = Barrier::new(10);
    thread::scope(|scope| {
        for seed in 1..=10_u64 {
            let (shelf, start) = (&shelf, &start);
            scope.spawn(move || {
                let mut random = seed;
                start.wait();
                for _ in 0..20_000 {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let place = usize::try_from(random % 64).unwrap();
                    let bytes = 1 + usize::try_from((random >> 8) % 6000).unwrap();
                    let mark = u8::try_from(random >> 56).unwrap();
                    let other =
                        std::mem::replace(&mut *shelf[place].lock().unwrap(), vec![mark; bytes]);
                    assert!(other.windows(2).all(|pair| pair[0] == pair[1]));
                }
            });
        }
    });
    let stats = ALLOCATOR.stats();
    assert!(stats.thread_cache_bytes <= 64 << 20, "{stats}");
}

#[test]
fn clear_and_trim_give_back_cached_memory() {
    let _alone = alone();
    drop((vec![1_u8; 8 << 20], vec![1_u8; 4 << 20]));
    assert!(ALLOCATOR.stats().page_bytes >= 12 << 20);
    assert!(ALLOCATOR.trim(1 << 20) >= 1 << 20);
    assert!(ALLOCATOR.clear() > 0);
    assert_eq!(ALLOCATOR.stats().page_bytes, 0);
    assert_eq!(ALLOCATOR.trim(1), 0);
}

#[test]
fn a_child_forked_while_other_threads_allocate_can_allocate() {
    let _alone = alone();
    let stop = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    drop((vec![1_u8; 400_000], vec![2_u8; 64], vec![3_u8; 20_000]));
                }
            });
        }
        let all_well = (0..50).all(|_| {
            // SAFETY: the child only uses the tcache, which is under test, and `_exit`.
            match unsafe { libc::fork() } {
                0 => {
                    // SAFETY: has no requirements. A child that hangs is ended, and seen.
                    unsafe { libc::alarm(60) };
                    let held: Vec<Vec<u8>> = (1..60).map(|n| vec![7; n * n * 200]).collect();
                    let well = held.iter().flatten().all(|byte| *byte == 7);
                    drop(held);
                    // SAFETY: `_exit` has no requirements. It ends the child at once.
                    unsafe { libc::_exit(i32::from(!well)) }
                }
                child => {
                    let mut status = 0;
                    // SAFETY: `status` is a live local variable that `waitpid` may write to.
                    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
                    waited == child && status == 0
                }
            }
        });
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(all_well);
    });
}

/// Runs `a_second_tcache_passes_through` in a new process, where it prints the state of both
/// allocators. Returns the exit status and the output.
fn again(environment: &[(&str, &str)]) -> (ExitStatus, String) {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", "a_second_tcache_passes_through", "--nocapture"]).env("TELL", "1");
    program.env_remove("BUCKETPOOL_HOST").env_remove("LD_PRELOAD");
    let output = program.envs(environment.iter().copied()).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status, String::from_utf8(text).unwrap())
}

/// Checks that a second `Tcache` in a process passes requests through to its inner allocator.
///
/// In a process of [`again`] it prints the state of both allocators instead.
#[test]
fn a_second_tcache_passes_through() {
    let _alone = alone();
    if std::env::var_os("TELL").is_none() {
        assert!(ALLOCATOR.is_active());
        assert!(!SECOND.is_active());
        let layout = Layout::new::<[u8; 100]>();
        // SAFETY: the layout's size is 100 bytes, not 0.
        let block = unsafe { SECOND.alloc(layout) };
        // SAFETY: `SECOND` passes every request through to `System` with the same layout, so the
        // block is one of `System`'s.
        unsafe { System.dealloc(block, layout) };
        let (stats, cleared) = (SECOND.stats(), SECOND.clear());
        assert_eq!((stats.state, stats.allocations, cleared), (TcacheState::Second, 0, 0));
        assert!(stats.to_string().starts_with("a second Tcache"), "{stats}");
        assert_eq!(ALLOCATOR.stats().state, TcacheState::Serving);
        return;
    }
    drop(vec![1_u8; 1 << 20]);
    let stats = ALLOCATOR.stats();
    println!("active {}", ALLOCATOR.is_active());
    println!("limit {}, second {}", stats.cached_limit_bytes, SECOND.is_active());
}

#[test]
fn the_environment_configures_the_tcache() {
    let _alone = alone();
    let active = format!("active true\nlimit {}, second false", 64 << 20);
    for (environment, said) in [
        (vec![], active.as_str()),
        (vec![("BUCKETPOOL_HOST", "off")], "active false\nlimit 0, second false"),
        (vec![("BUCKETPOOL_HOST", "limit=8M,decay=0")], "active true\nlimit 8388608,"),
        (vec![("BUCKETPOOL_HOST", "limt=8M")], "BUCKETPOOL_HOST: `limt=8M`: expected off, on,"),
        // Valgrind sets `LD_PRELOAD` like this. The loader does not find the library, prints a
        // message and continues.
        (vec![("LD_PRELOAD", "vgpreload_none.so")], "active false"),
        (vec![("LD_PRELOAD", "vgpreload_none.so"), ("BUCKETPOOL_HOST", "on")], active.as_str()),
        (vec![], "a second Tcache in this process passes through"),
    ] {
        let (status, text) = again(&environment);
        assert!(status.success() && text.contains(said), "{environment:?}: {text}");
    }
}
