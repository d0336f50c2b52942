//! Checks that each mistake is detected in the check mode of the tcache.
//!
//! Each mistake is made in a child process, which must end by a signal and, where a check found the
//! mistake, name it on stderr.
#![expect(unsafe_code, reason = "mistakes are made on purpose")]
#![expect(
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "none of them is sound, which is the point"
)]
#![expect(clippy::unwrap_used, reason = "a test")]

use pool_host::Tcache;
use std::alloc::{GlobalAlloc, Layout};
use std::hint::black_box;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

#[global_allocator]
static ALLOCATOR: Tcache = Tcache::new();

const MISTAKE: &str = "MISTAKE";

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 8).unwrap()
}

fn block(bytes: usize) -> *mut u8 {
    black_box(unsafe { ALLOCATOR.alloc(layout(bytes)) })
}

fn free(block: *mut u8, bytes: usize) {
    unsafe { ALLOCATOR.dealloc(block, layout(bytes)) };
}

/// Allocates and frees blocks correctly except for `mistake`. An unknown name makes no mistake.
fn make(mistake: &str) {
    if mistake == "behind the end without a guard" {
        let (pages, bytes) = take_all_mappings();
        // The first new block may be in the place of one that has rested.
        let guarded = [(); 8].map(|()| block(4096)).into_iter().filter(|block| !block.is_null());
        let last = guarded.last();
        last.into_iter().for_each(|block| unsafe { block.add(4096).write(1) });
        // The rest of the program needs some.
        assert_eq!(unsafe { libc::munmap(pages, bytes) }, 0);
        return assert!(last.is_none(), "a block without a guard");
    }
    let (small, large) = (block(100), block(10_000));
    match mistake {
        "behind the end" => unsafe { small.add(100).write(1) },
        "behind the end of a large one" => unsafe { large.add(10_000).write(1) },
        "far behind the end of a large one" => unsafe { large.add(10_008).write(1) },
        "double free" => free(small, 100),
        "another size" => return free(small, 101),
        "another alignment" => unsafe {
            return ALLOCATOR.dealloc(small, Layout::from_size_align(100, 16).unwrap());
        },
        "no block" => unsafe { return free(small.add(8), 92) },
        _ => {}
    }
    free(small, 100);
    free(large, 10_000);
    let mut grown: Vec<u64> = (0..50_000).collect();
    grown.shrink_to_fit();
    assert!(grown.into_iter().eq(0..50_000));
    assert!(vec![0_u8; 100_000].iter().all(|byte| *byte == 0));
    match mistake {
        "after free, to the end" => unsafe { small.add(50).write(1) },
        "after free" => {
            unsafe { small.add(50).write(1) };
            // Freed blocks are checked before their memory is reused. These requests push the block
            // out of the quarantine.
            (0..3000).for_each(|_| free(block(64), 64));
        }
        "read after free of a large one" => unsafe {
            black_box(large.read_volatile());
        },
        _ => {}
    }
}

/// Makes the mistake that the environment names; child processes run this test. Without the
/// variable it does nothing.
#[test]
fn a_child_makes_its_mistake() {
    if let Ok(mistake) = std::env::var(MISTAKE) {
        make(&mistake);
        println!("it lives");
    }
}

fn in_child(mistake: &str) -> Output {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "a_child_makes_its_mistake", "--nocapture", "--test-threads", "1"]);
    child.env(MISTAKE, mistake).env("BUCKETPOOL_HOST", "check").output().unwrap()
}

#[test]
fn each_mistake_ends_the_process_and_is_named() {
    for (mistake, said) in [
        ("behind the end", "write behind the end"),
        ("behind the end of a large one", ""),
        ("far behind the end of a large one", ""),
        ("double free", "double free"),
        ("another size", "free with another layout than it was allocated with"),
        ("another alignment", "free with another layout than it was allocated with"),
        ("no block", "free of what is not a block"),
        ("after free", "write after free"),
        ("after free, to the end", "write after free"),
        ("read after free of a large one", ""),
    ] {
        let output = in_child(mistake);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        // An access to a protected page ends the process by SIGSEGV, without a message.
        let signal = if said.is_empty() { libc::SIGSEGV } else { libc::SIGABRT };
        assert_eq!(output.status.signal(), Some(signal), "{mistake}: {text}");
        assert!(text.contains(said), "{mistake}: {text}");
    }
}

/// Mappings that a test may take.
const MAPPINGS_MOST: u64 = 1 << 20;

/// Takes all mappings that the process may have, by pages that differ from their neighbours.
/// Returns where they are, and their bytes.
fn take_all_mappings() -> (*mut libc::c_void, usize) {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    let most: usize = text.trim().parse().unwrap();
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap();
    let (access, sort) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let null = std::ptr::null_mut();
    let base = unsafe { libc::mmap(null, 2 * most * page, access, sort, -1, 0) };
    assert_ne!(base, libc::MAP_FAILED);
    for at in 0..most {
        let one = unsafe { base.byte_add((2 * at + 1) * page) };
        if unsafe { libc::mprotect(one, page, libc::PROT_NONE) } != 0 {
            let code = std::io::Error::last_os_error().raw_os_error();
            assert_eq!(code, Some(libc::ENOMEM));
            return (base, 2 * most * page);
        }
    }
    unreachable!("more than {most} mappings");
}

/// Each guard is a mapping, of which the system has no more: a block without one would not be
/// looked after.
#[test]
fn a_block_that_gets_no_guard_is_refused() {
    let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    if most.trim().parse::<u64>().unwrap() > MAPPINGS_MOST {
        return eprintln!("left out: {} mappings are too many to use up", most.trim());
    }
    let output = in_child("behind the end without a guard");
    let has_guard = output.status.signal() == Some(libc::SIGSEGV);
    assert!(output.status.success() || has_guard, "{output:?}");
}

#[test]
fn a_program_without_mistakes_runs_to_its_end() {
    let output = in_child("none");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("it lives"), "{text}");
}
