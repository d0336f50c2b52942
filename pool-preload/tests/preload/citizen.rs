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

#[test]
fn a_limit_on_addresses_that_a_running_program_sets_is_kept() {
    let program = compiled("lowered.c", &["-ldl"]);
    for way in ["setrlimit", "prlimit", "syscall"] {
        is_done(&run_plain(&program, &[Path::new(way)]));
        for settings in ["", "unmap", "limit=1M,decay=1"] {
            is_done(&run(&program, &[Path::new(way)], settings));
        }
    }
}

#[test]
fn growing_arrays_leave_the_process_its_mappings() {
    as_without("crowded.c", &["", "unmap"]);
}

#[test]
fn a_filter_of_arguments_for_another_malloc_is_one_for_this() {
    as_without("argued.c", &["", "unmap", "limit=1M,decay=1"]);
}

#[test]
fn a_thread_without_system_calls_uses_the_blocks_that_are_there() {
    as_without("strict.c", &["", "limit=1M,decay=1", "background=off"]);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_program_may_have_functions_of_its_own_that_call_the_system() {
    as_without("own_calls.c", &["", "unmap", "limit=1M,decay=1"]);
}
