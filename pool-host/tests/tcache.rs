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

/// The library's own destructor is called before those of keys which the program makes, and the blocks
/// move to where all threads find them in batches all the same.
#[test]
#[cfg(target_os = "linux")]
fn blocks_that_a_destructor_of_a_key_frees_go_through_the_cache_of_its_thread() {
    const BLOCKS: usize = 20_000;
    extern "C" fn end(list: *mut libc::c_void) {
        let list = list.cast::<Vec<Box<[u64; 6]>>>();
        // SAFETY: the thread made it of a box, and its value is passed once.
        drop(unsafe { Box::from_raw(list) });
    }
    let _alone = alone();
    let mut key = 0;
    // SAFETY: `key` may be written, and `end` has the signature that is asked for.
    assert_eq!(unsafe { libc::pthread_key_create(&raw mut key, Some(end)) }, 0);
    let work = move || {
        let list: Box<Vec<Box<[u64; 6]>>> = Box::new((0..BLOCKS).map(|_| Box::default()).collect());
        // SAFETY: the key exists, and any value is one.
        assert_eq!(unsafe { libc::pthread_setspecific(key, Box::into_raw(list).cast()) }, 0);
    };
    for round in 0..20 {
        let before = ALLOCATOR.stats();
        thread::spawn(work).join().unwrap();
        let after = ALLOCATOR.stats();
        // A bin has 64 blocks, and a batch 32.
        let flushes = after.flushes - before.flushes;
        assert!(flushes >= (BLOCKS / 32 - 8) as u64, "{flushes} batches, round {round}");
        assert!(round == 0 || after.thread_caches == before.thread_caches, "it was given up");
    }
    // SAFETY: no thread uses it any more.
    assert_eq!(unsafe { libc::pthread_key_delete(key) }, 0);
}

/// Bytes of a large vector are zero, whether its memory was used little or wholly, and what is used
/// little keeps few pages.
#[test]
#[cfg(target_os = "linux")]
fn a_zeroed_vector_of_which_little_is_used_takes_little_memory() {
    const BYTES: usize = 24 << 20;
    let _alone = alone();
    let mut random = 54_u64;
    for round in 0..12 {
        let mut vector = vec![0_u8; BYTES];
        without_huge_pages(&vector);
        let before = resident_pages(&vector);
        assert!(round == 0 || before < 300, "{before} pages have memory, round {round}");
        for _ in 0..100 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            vector[usize::try_from(random >> 33).unwrap() % BYTES] = 1;
        }
        drop(std::hint::black_box(vector));
    }
    let place = bytes_of(&vec![1_u8; BYTES]);
    for round in 0..3 {
        let vector = vec![0_u8; BYTES];
        assert!(vector.iter().all(|byte| *byte == 0), "round {round}");
        if round == 0 && bytes_of(&vector) == place {
            assert_eq!(resident_pages(&vector), BYTES / 4096, "it was all used, and stays warm");
        }
    }
}

/// Has the kernel give these bytes no huge pages, of which one write takes 512 small ones.
#[cfg(target_os = "linux")]
fn without_huge_pages(bytes: &[u8]) {
    let start = bytes.as_ptr().addr() & !4095;
    let length = bytes.as_ptr().addr() + bytes.len() - start;
    let at = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: the advice changes no byte of the pages, which are mapped, since the caller borrows bytes of each.
    let _ = unsafe { libc::madvise(at, length, libc::MADV_NOHUGEPAGE) }; // a kernel without them refuses
}

/// Returns how many pages that begin in these bytes have memory behind them.
#[cfg(target_os = "linux")]
fn resident_pages(bytes: &[u8]) -> usize {
    let start = bytes.as_ptr().addr().next_multiple_of(4096);
    let length = (bytes.as_ptr().addr() + bytes.len()).saturating_sub(start);
    let mut pages = vec![0_u8; length.div_ceil(4096)];
    let at = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: `mincore` writes one byte for each page of the range, and `pages` has that many. It
    // reads no byte of the range, which is mapped, since the caller borrows it.
    let done = unsafe { libc::mincore(at, length, pages.as_mut_ptr()) };
    assert_eq!(done, 0);
    pages.iter().filter(|page| **page & 1 == 1).count()
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
