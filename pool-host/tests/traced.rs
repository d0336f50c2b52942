//! A program whose global allocator is a `Tcache`, recorded: `BUCKETPOOL_HOST=trace=FILE`.
#![cfg(all(target_os = "linux", feature = "trace", not(miri)))]

use pool_host::Tcache;
use pool_trace::{Kind, Log};
use std::alloc::GlobalAlloc;
use std::collections::HashMap;
use std::process::Command;
use std::thread;

#[global_allocator]
static ALLOCATOR: Tcache = Tcache::new();

/// Sizes that no other code of the program requests.
const SIZES: [usize; 4] = [1_357, 70_001, 300_007, 5_000_011];
const ROUNDS: usize = 50;
const THREADS: usize = 3;

/// Allocates, grows and frees, on several threads.
fn work() {
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let blocks = SIZES.map(|bytes| vec![1_u8; bytes]);
                    let zeroed = SIZES.map(|bytes| vec![0_u8; bytes]);
                    assert!(zeroed.iter().flatten().all(|byte| *byte == 0));
                    drop((blocks, zeroed));
                }
                let mut grows = Vec::with_capacity(2_222);
                grows.resize(2_222, 7_u8);
                grows.reserve_exact(90_000);
                assert!(grows.iter().all(|byte| *byte == 7) && grows.capacity() == 92_222);
            });
        }
    });
}

#[test]
fn all_requests_and_frees_of_all_threads_are_in_the_file() {
    if std::env::var_os("TRACED").is_some() {
        return work();
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tcache.ptrace.csv.zst");
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", "all_requests_and_frees_of_all_threads_are_in_the_file"]);
    let words = format!("on,trace={}", file.display());
    let output = program.env("TRACED", "1").env("BUCKETPOOL_HOST", words).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let log: Log = pool_trace::read(std::fs::File::open(&file).unwrap()).unwrap();
    assert_eq!(log.lost, 0);
    let mut live: HashMap<u64, u64> = HashMap::new();
    let mut counts: HashMap<u64, (usize, usize)> = HashMap::new();
    for one in &log.operations {
        match one.kind {
            Kind::Allocate => {
                assert!(live.insert(one.id, one.bytes).is_none());
                counts.entry(one.bytes).or_default().0 += 1;
            }
            Kind::Free => {
                let bytes = live.remove(&one.id).unwrap();
                counts.entry(bytes).or_default().1 += 1;
            }
            _ => {}
        }
    }
    let each = 2 * ROUNDS * THREADS;
    for bytes in SIZES {
        assert_eq!(counts[&(bytes as u64)], (each, each), "{bytes}");
    }
    // Growth is a free and an allocation.
    assert_eq!((counts[&2_222], counts[&92_222]), ((THREADS, THREADS), (THREADS, THREADS)));
}

/// The word of the environment is right for both.
#[test]
fn a_second_tcache_of_a_traced_program_finds_nothing_wrong_with_the_word() {
    static SECOND: Tcache = Tcache::new();
    let name = "a_second_tcache_of_a_traced_program_finds_nothing_wrong_with_the_word";
    if std::env::var_os("TRACED").is_some() {
        let layout = std::alloc::Layout::new::<u64>();
        #[expect(unsafe_code, reason = "a call of an allocator")]
        // SAFETY: the layout has a size.
        let block = unsafe { SECOND.alloc(layout) };
        assert!(!block.is_null());
        #[expect(unsafe_code, reason = "a call of an allocator")]
        // SAFETY: the block was just allocated with this layout.
        return unsafe { SECOND.dealloc(block, layout) };
    }
    let folder = tempfile::tempdir().unwrap();
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", name]);
    let words = format!("on,trace={}", folder.path().join("two.ptrace.csv.zst").display());
    let output = program.env("TRACED", "1").env("BUCKETPOOL_HOST", words).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("a second Tcache"), "{said}");
    assert!(!said.contains("is none of"), "{said}");
}

/// A program that is killed while it records at a high rate leaves a trace that is read.
#[test]
fn a_killed_program_leaves_a_trace() {
    if std::env::var_os("TRACED").is_some() {
        loop {
            drop(std::hint::black_box(vec![1_u8; SIZES[0]]));
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("killed.ptrace.csv.zst");
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", "a_killed_program_leaves_a_trace"]);
    let words = format!("on,trace={}", file.display());
    let program = program.env("TRACED", "1").env("BUCKETPOOL_HOST", words);
    let mut program = program.stdout(std::process::Stdio::null()).spawn().unwrap();
    // Until more than one block of zstd is in the file.
    while std::fs::metadata(&file).map_or(0, |data| data.len()) < 1 << 17 {
        assert!(program.try_wait().unwrap().is_none(), "the program ended");
        thread::yield_now();
    }
    program.kill().unwrap();
    program.wait().unwrap();
    let log = pool_trace::read(std::fs::File::open(&file).unwrap()).unwrap();
    assert!(log.operations.len() > 10_000, "{} operations", log.operations.len());
}

/// The low descriptors are the program's: a shell moves its own there, over what they had.
#[test]
fn the_file_has_a_high_descriptor() {
    if std::env::var_os("TRACED").is_some() {
        work();
        let traced = |one: std::fs::DirEntry| {
            let to = std::fs::read_link(one.path()).ok()?;
            to.to_string_lossy().contains("ptrace").then(|| one.file_name().len())
        };
        // The recorder's thread creates the file, and then moves it up.
        let highest = || {
            let open = std::fs::read_dir("/proc/self/fd").unwrap();
            open.filter_map(|one| traced(one.unwrap())).max()
        };
        while highest().is_none() {
            thread::yield_now();
        }
        let digits = (0..10_000).filter_map(|_| highest()).find(|digits| *digits == 3);
        assert_eq!(digits, Some(3), "digits of the descriptor");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", "the_file_has_a_high_descriptor"]);
    let words = format!("on,trace={}", folder.path().join("fd.ptrace.csv.zst").display());
    let output = program.env("TRACED", "1").env("BUCKETPOOL_HOST", words).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
