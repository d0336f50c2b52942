//! What programs do to their memory and to their process, and what the library does then: as the C
//! library, or better.

use crate::setup::{compiled, is_done, library, run, run_plain};
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

#[test]
fn a_limit_on_addresses_that_a_running_program_sets_is_kept() {
    let program = compiled("lowered.c", &["-ldl"]);
    for way in ["setrlimit", "prlimit", "syscall", "sandbox"] {
        is_done(&run_plain(&program, &[Path::new(way)]));
        for settings in ["", "unmap", "limit=1M,decay=1"] {
            is_done(&run(&program, &[Path::new(way)], settings));
        }
    }
}

#[test]
fn a_new_limit_on_addresses_leaves_the_program_its_own() {
    let program = compiled("own_limits.c", &[]);
    for way in ["setrlimit", "thread", "vfork", "beside"] {
        is_done(&run_plain(&program, &[Path::new(way)]));
        is_done(&run(&program, &[Path::new(way)], ""));
    }
}

#[test]
fn a_program_that_limits_its_calls_may_set_limits() {
    let program = compiled("quiet_limits.c", &[]);
    for arguments in [&[][..], &[Path::new("worker")]] {
        is_done(&run_plain(&program, arguments));
        is_done(&run(&program, arguments, ""));
    }
}

#[test]
fn what_a_program_mapped_inside_of_its_blocks_is_in_no_other() {
    let program = compiled("mapped.c", &["-fno-builtin"]);
    is_done(&run_plain(&program, &[]));
    for settings in ["", "unmap", "limit=1M,decay=1", "background=off"] {
        is_done(&run(&program, &[], settings));
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

#[test]
fn a_freed_block_is_reused_without_a_page_fault() {
    let program = compiled("warm.c", &[]);
    for settings in ["", "background=off,decay=0"] {
        is_done(&run(&program, &[], settings));
    }
}

#[test]
fn without_its_thread_the_library_has_none_and_a_process_ends_with_its_own() {
    let program = compiled("alone.c", &[]);
    for settings in ["background=off", "decay=0"] {
        is_done(&run(&program, &[], settings));
        is_done(&run(&program, &[Path::new("leaks")], settings));
    }
}

#[test]
fn a_library_bound_to_the_c_library_shares_its_blocks() {
    let bound = compiled("bound.c", &["-shared", "-fPIC"]);
    let program = compiled("deepbind.c", &[]);
    is_done(&run_plain(&program, &[&bound]));
    is_done(&run(&program, &[&bound], ""));
}

#[test]
fn what_runs_at_the_end_may_allocate() {
    let late = compiled("late.c", &["-shared", "-fPIC"]);
    let program = compiled("farewell.cpp", &[]);
    is_done(&run_plain(&program, &[&late]));
    for settings in ["", "limit=1M,decay=1", "unmap", "stats"] {
        is_done(&run(&program, &[&late], settings));
    }
}

/// Returns a command that runs a program with the library under a limit of the shell's, in KiB.
fn limited(program: &Path, limit: &str) -> std::process::Command {
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &format!("{limit}; exec \"$0\"")]).arg(program);
    command.env("LD_PRELOAD", library()).env_remove("BUCKETPOOL_HOST");
    command
}

#[test]
fn under_a_limit_of_data_what_is_freed_goes_back_at_once() {
    let mut command = limited(&compiled("at_once.c", &[]), "ulimit -d 400000");
    is_done(&command.output().expect("a shell"));
}

#[test]
fn a_limit_of_addresses_bounds_what_is_reserved() {
    let program = compiled("reserved.c", &[]);
    // MiB that are reserved under a limit in MiB.
    for (reserved, limit) in
        [(64 << 10, 290 << 10), (8 << 10, 39 << 10), (1 << 10, 5000), (256, 1500)]
    {
        let mut command = limited(&program, &format!("ulimit -v {}", limit << 10));
        let output = command.output().expect("a shell");
        let told = String::from_utf8(output.stdout).expect("a number");
        let told: u64 = told.trim().parse().expect("a number");
        // Beside the pages lies the map of them.
        assert!((reserved..reserved + reserved / 16).contains(&told), "{limit}: {told}");
    }
}
