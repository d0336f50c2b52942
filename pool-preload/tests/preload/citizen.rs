//! What programs do to their memory and to their process, and what the library does then: as the C
//! library, or better.

use crate::setup::{compiled, is_done, run, run_plain};
use std::path::Path;

/// Runs a program without the library, and then with it and with each of the settings.
fn as_without(source: &str, settings: &[&str]) {
    let program = compiled(source, &[]);
    is_done(&run_plain(&program, &[]));
    for settings in settings {
        is_done(&run(&program, &[], settings));
    }
}

#[test]
fn what_a_program_did_to_its_pages_ends_with_the_block() {
    let program = compiled("attributes.c", &[]);
    is_done(&run_plain(&program, &[]));
    is_done(&run(&program, &[], "unmap"));
    // Without the word, a block may get the pages of one that was freed a moment ago as they are.
    is_done(&run(&program, &[Path::new("trim")], ""));
}

#[test]
fn a_sandbox_for_another_malloc_is_one_for_this() {
    as_without("sandboxed.c", &["", "unmap", "limit=1M,decay=1"]);
}

#[test]
fn memory_goes_back_in_each_sort_of_child() {
    as_without("children.c", &["decay=50"]);
}

#[test]
fn a_child_that_borrows_the_memory_takes_no_thread_away() {
    let program = compiled("borrowed.c", &[]);
    is_done(&run_plain(&program, &[Path::new("without")]));
    is_done(&run(&program, &[], "decay=50"));
}

#[test]
fn what_is_free_does_not_count_under_a_limit() {
    as_without("limited.c", &["", "unmap"]);
}

#[test]
fn frees_of_no_block_end_the_program() {
    let program = compiled("invalid.c", &[]);
    is_done(&run(&program, &[], ""));
}

#[test]
fn arrays_that_grow_stay_sparse_and_copy_little() {
    as_without("sparse.c", &["", "unmap"]);
}

#[test]
fn zeroed_blocks_cost_what_is_used_of_them() {
    let program = compiled("zeroed.c", &["-fno-builtin"]);
    is_done(&run(&program, &[Path::new("warm")], "limit=1G"));
    is_done(&run(&program, &[Path::new("warm")], "limit=1G,background=off"));
    is_done(&run(&program, &[], "unmap"));
    is_done(&run(&program, &[], "limit=1M,decay=1"));
}

#[test]
fn advice_of_a_program_ends_with_its_blocks() {
    as_without("advised.c", &["", "unmap"]);
}

#[test]
fn a_block_above_the_limit_takes_no_further_memory() {
    as_without("above.c", &["limit=64M", "limit=4096", "unmap"]);
}

#[test]
fn where_the_system_refuses_threads_the_library_says_nothing() {
    // SAFETY: `geteuid` has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        println!("NOT RUN: only root can become a user without threads");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (program, own) = (compiled("unthreaded.c", &[]), folder.path().join("own"));
    is_done(&run(&program, &[&own], ""));
    assert_eq!(std::fs::read(&own).expect("a file"), b"");
}

#[test]
fn the_start_leaves_no_error_behind() {
    as_without("silent.c", &["", "stats"]);
}
