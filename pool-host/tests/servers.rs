//! Server programs whose global allocator is a `Tcache`: forked workers, a limit on addresses, long
//! sleeps.
#![cfg(all(target_os = "linux", not(miri)))]
#![expect(unsafe_code, reason = "child processes are made, and an allocator is called")]
#![expect(clippy::unwrap_used, reason = "a test")]

use pool_core::{ArenaConfig, BucketPool, Why};
use pool_host::{HostAllocator, Tcache};
use std::alloc::{GlobalAlloc, Layout};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: Tcache = Tcache::new();

const MIB: usize = 1 << 20;
/// Seconds after which a process that hangs is ended.
const SECONDS: u32 = 60;

/// Allocates blocks of many sizes, up to 2 MiB, and frees them. Returns whether each kept the bytes
/// that were written to it.
fn serve(seed: usize) -> bool {
    let mut held: Vec<(Vec<u8>, u8)> = Vec::new();
    for step in 0..400 {
        let bytes = 1 << ((seed * 31 + step * 7) % 22);
        let mark = u8::try_from((seed + step) % 251).unwrap();
        held.push((vec![mark; bytes], mark));
        if step % 3 > 0 {
            let (block, mark) = held.swap_remove(step * 13 % held.len());
            if block.iter().any(|byte| *byte != mark) {
                return false;
            }
        }
    }
    held.iter().all(|(block, mark)| block.iter().all(|byte| byte == mark))
}

/// Forks a child process that runs [`serve`] on two threads, and returns its process ID.
fn worker(seed: usize) -> libc::pid_t {
    // SAFETY: the child uses the tcache, which is under test, and the C library's allocator, which
    // may be used after `fork`. It starts a thread, as servers do, and ends by `_exit`.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: `alarm` has no requirements on memory. It ends a child that waits for a lock
            // forever, and the wait status shows it.
            unsafe { libc::alarm(SECONDS) };
            let other = thread::spawn(move || serve(seed + 100));
            let is_well = serve(seed) && other.join().unwrap_or(false);
            // SAFETY: `_exit` has no requirements. It ends the child without running destructors.
            unsafe { libc::_exit(i32::from(!is_well)) }
        }
        child => child,
    }
}

/// The test runs in its own process, and forks only when its eight threads run. The standard
/// library holds its own lock while it registers a thread's stack, as the thread starts or
/// ends. A child that is forked in between can never start a thread, whatever the allocator is.
#[test]
fn forked_workers_of_a_threaded_server_allocate_and_end() {
    if !is_alone() {
        let test = "forked_workers_of_a_threaded_server_allocate_and_end";
        let output = again(test, "", None);
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let (stop, start) = (AtomicBool::new(false), Barrier::new(9));
    thread::scope(|scope| {
        for thread in 0..8 {
            let (stop, start) = (&stop, &start);
            scope.spawn(move || {
                start.wait();
                while !stop.load(Relaxed) {
                    assert!(serve(thread));
                }
            });
        }
        start.wait();
        let workers: Vec<_> = (0..16).map(worker).collect();
        let statuses = workers.into_iter().map(|worker| {
            let mut status = -1;
            // SAFETY: `status` is a live local variable that `waitpid` may write to.
            unsafe { libc::waitpid(worker, &raw mut status, 0) };
            status
        });
        let statuses: Vec<_> = statuses.collect();
        stop.store(true, Relaxed);
        assert_eq!(statuses, [0; 16]);
    });
}

/// Runs one test of this program again in its own process, with `host` in `BUCKETPOOL_HOST`; also under
/// a sanitizer the tcache serves there.
fn again(test: &str, host: &str, address_limit: Option<u64>) -> Output {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program
        .args(["--exact", test, "--nocapture"])
        .env("ALONE", "1")
        .env("BUCKETPOOL_HOST", format!("on,{host}"));
    if let Some(bytes) = address_limit {
        let limit = move || {
            let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
            // SAFETY: `limit` is a live local variable that `setrlimit` only reads. A system call
            // is allowed between `fork` and `exec`.
            match unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) } {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        };
        // SAFETY: the closure makes one system call and does not allocate, so it may run between
        // `fork` and `exec`.
        unsafe { program.pre_exec(limit) };
    }
    program.output().unwrap()
}

/// Returns whether this is a process of [`again`].
fn is_alone() -> bool {
    std::env::var_os("ALONE").is_some()
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 8).unwrap()
}

/// Allocates blocks of a size until a request fails, at most 65 536 of them.
fn all_there_is(bytes: usize) -> Vec<*mut u8> {
    let mut blocks = Vec::with_capacity(1 << 16);
    while blocks.len() < blocks.capacity() {
        // SAFETY: all callers pass a size above 0.
        let block = unsafe { ALLOCATOR.alloc(layout(bytes)) };
        if block.is_null() {
            break;
        }
        // SAFETY: the block is not null and has `bytes` bytes, so its last byte is inside.
        let last = unsafe { block.add(bytes - 1) };
        // SAFETY: as above; only this function has the block.
        unsafe { last.write(1) };
        blocks.push(block);
    }
    blocks
}

fn free_all(blocks: Vec<*mut u8>, bytes: usize) {
    for block in blocks {
        // SAFETY: `all_there_is` allocated it with this layout, and it is freed once.
        unsafe { ALLOCATOR.dealloc(block, layout(bytes)) };
    }
}

/// Under an address limit, a request that cannot be served returns null, without an abort or a
/// hang. Before that the tcache gives its cached memory back.
#[test]
fn requests_above_the_address_limit_fail() {
    if !is_alone() {
        let output = again("requests_above_the_address_limit_fail", "decay=0", Some(512 << 20));
        assert!(output.status.success(), "{output:?}");
        return;
    }
    // SAFETY: `alarm` has no requirements on memory. It ends a process that hangs, and the status
    // shows it.
    unsafe { libc::alarm(SECONDS) };
    for bytes in [8 * MIB, 100 << 10, 40 << 10, 3 * MIB] {
        let blocks = all_there_is(bytes);
        let (count, sum) = (blocks.len(), blocks.len() * bytes);
        assert!(count < 1 << 16, "a request must fail");
        assert!((64 * MIB..512 * MIB).contains(&sum), "{count} blocks of {bytes}");
        free_all(blocks, bytes);
        // Cached memory of one size can serve another size.
        let blocks = all_there_is(bytes + bytes / 2);
        assert!(2 * blocks.len() * bytes >= sum, "{} blocks after {count}", blocks.len());
        free_all(blocks, bytes + bytes / 2);
    }
}

/// Returns the resident bytes of this process, without allocating.
fn resident() -> usize {
    let (mut text, mut len) = ([0; 64], 0);
    if let Ok(mut file) = std::fs::File::open("/proc/self/statm") {
        len = file.read(&mut text).unwrap_or(0);
    }
    let text = std::str::from_utf8(&text[..len]).unwrap_or("");
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap_or(usize::MAX / 4096) * 4096
}

/// A process may have fewer addresses than twice the machine's memory, which each shard would reserve. An
/// arena takes what there are, and leaves some to the program.
#[test]
fn an_arena_serves_with_few_addresses() {
    if !is_alone() {
        // SAFETY: `sysconf` has no requirements.
        let [pages, bytes] =
            unsafe { [libc::_SC_PHYS_PAGES, libc::_SC_PAGESIZE].map(|of| libc::sysconf(of)) };
        let whole = 2 * u64::try_from(pages * bytes).unwrap();
        // The last limit has room for an eighth of the range that is asked for, and for little beside it.
        for limit in [3 << 30, whole / 8 + (256 << 20)] {
            let output = again("an_arena_serves_with_few_addresses", "off", Some(limit));
            assert!(output.status.success(), "{limit} bytes of addresses: {output:?}");
        }
        return;
    }
    // SAFETY: as above.
    unsafe { libc::alarm(SECONDS) };
    let config = ArenaConfig::pages(64 << 10, 0.05);
    let pool = BucketPool::builder(HostAllocator::new()).arena(config).shards(4).build();
    drop(pool.allocate(MIB as u64).unwrap());
    assert_eq!(Vec::<u8>::new().try_reserve_exact(384 * MIB), Ok(()), "addresses are left");
    thread::scope(|scope| {
        for thread in 0..6_u8 {
            let pool = &pool;
            scope.spawn(move || {
                for turn in 0..200_u64 {
                    let mut buffer = pool.allocate((1 << 16) + turn * 4096).unwrap();
                    buffer.fill(thread);
                    assert!(buffer.iter().all(|byte| *byte == thread));
                }
            });
        }
    });
    let refused = pool.allocate(1 << 33).unwrap_err();
    assert_eq!(refused.why(), Why::OutOfAddresses, "{refused}");
}

/// The background thread gives cached memory back while the program makes no request, and so does
/// the background thread of a forked child.
#[test]
fn the_background_thread_gives_memory_back_while_the_program_sleeps() {
    if !is_alone() {
        let test = "the_background_thread_gives_memory_back_while_the_program_sleeps";
        let output = again(test, "decay=50", None);
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let falls = || {
        let before = resident();
        drop(vec![vec![1_u8; MIB]; 128]);
        let deadline = Instant::now() + Duration::from_secs(SECONDS.into());
        while resident() > before + 16 * MIB && Instant::now() < deadline {
            thread::yield_now();
        }
        resident() <= before + 16 * MIB
    };
    assert!(falls());
    // SAFETY: the child uses the tcache, which is under test, and ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_well = falls();
        // SAFETY: `_exit` has no requirements. It ends the child without running destructors.
        unsafe { libc::_exit(i32::from(!is_well)) };
    }
    let mut status = -1;
    // SAFETY: `status` is a live local variable that `waitpid` may write to.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
}

/// What a program frees as its last call goes back while it sleeps.
#[test]
fn what_a_program_frees_at_last_goes_back_while_it_sleeps() {
    if !is_alone() {
        let test = "what_a_program_frees_at_last_goes_back_while_it_sleeps";
        let output = again(test, "decay=50", None);
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let blocks: Vec<Box<[u8; 1000]>> = (0..100_000).map(|_| Box::new([1; 1000])).collect();
    assert!(ALLOCATOR.stats().live_bytes >= 100_000 * 1000);
    drop(blocks);
    let deadline = Instant::now() + Duration::from_secs(SECONDS.into());
    while ALLOCATOR.stats().cached_bytes() > 16 << 20 && Instant::now() < deadline {
        thread::yield_now();
    }
    assert!(ALLOCATOR.stats().cached_bytes() <= 16 << 20, "{}", ALLOCATOR.stats());
}
