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

#[test]
fn a_program_without_mistakes_runs_to_its_end() {
    let output = in_child("none");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("it lives"), "{text}");
}
