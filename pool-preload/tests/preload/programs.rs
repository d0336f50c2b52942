//! Programs in C and C++ that check what `malloc` promises, with the library preloaded.

use crate::setup::{compiled, errors, is_done, library, run};
use std::path::Path;

/// Settings that each program runs with.
const SETTINGS: [&str; 3] = ["", "limit=1M,decay=1", "huge,background=off"];

/// Compiles a program, and runs it with each of the settings. It reports what is wrong itself.
fn check(source: &str, arguments: &[&Path]) {
    check_linked(source, &[], arguments);
}

/// Does the same with further arguments of the compiler.
fn check_linked(source: &str, further: &[&str], arguments: &[&Path]) {
    let program = compiled(source, further);
    for settings in SETTINGS {
        is_done(&run(&program, arguments, settings));
    }
}

#[test]
fn each_function_of_the_malloc_family_keeps_its_contract() {
    check("family.c", &[]);
}

#[test]
fn each_form_of_new_and_delete_allocates_throws_and_frees() {
    check("operators.cpp", &[]);
}

#[test]
fn forms_that_a_program_replaces_serve_the_others() {
    let library = compiled("linked.cpp", &["-shared", "-fPIC", "-std=c++17"]);
    let library = library.display().to_string();
    // It relies on forms of `delete` that it does not define, on purpose.
    check_linked("replaced.cpp", &["-std=c++17", "-Wno-sized-deallocation", &library], &[]);
}

/// A program linked with another allocator finds that one behind the library.
#[test]
fn blocks_of_the_c_library_are_no_business_of_an_allocator_in_between() {
    let between = compiled("between.c", &["-shared", "-fPIC"]);
    let libraries = format!("{}:{}", library().display(), between.display());
    for source in ["family.c", "operators.cpp"] {
        let mut command = std::process::Command::new(compiled(source, &[]));
        is_done(&command.env("LD_PRELOAD", &libraries).output().expect("a program"));
    }
}

#[test]
fn threads_exchange_blocks_end_and_fork() {
    check("threads.c", &[]);
}

#[test]
fn fork_handlers_and_constructors_may_allocate() {
    let late = compiled("late.c", &["-shared", "-fPIC"]);
    let thread = compiled("late_thread.c", &["-shared", "-fPIC"]);
    check("handlers.c", &[&late, &thread]);
}

#[test]
fn a_thread_that_only_frees_at_its_end_leaves_its_cache_to_the_next() {
    let output = run(&compiled("last.c", &[]), &[], "stats,background=off");
    is_done(&output);
    assert!(errors(&output).contains(" in 2 thread caches, "), "{}", errors(&output));
}

#[test]
fn a_fork_beside_threads_in_stdio_goes_on() {
    check("stdio.c", &[]);
}

#[test]
fn a_fork_of_a_small_program_copies_few_pages() {
    check("small_forks.c", &[]);
}

#[test]
fn a_small_program_has_few_mappings() {
    check("few_mappings.c", &[]);
}

#[test]
fn a_worker_with_few_free_blocks_of_each_size_has_few_pages_for_itself() {
    check("small_workers.c", &[]);
}

#[test]
fn fork_handlers_may_take_locks_under_which_threads_allocate() {
    let registers = compiled("registers.c", &["-shared", "-fPIC"]);
    let registers = registers.display().to_string();
    check_linked("registered.c", &[&registers], &[]);
}

#[test]
fn a_signal_handler_may_fork() {
    check("forks_in_handler.c", &[]);
}

#[test]
fn a_handler_of_a_crash_may_fork_and_allocate() {
    check("crashes.c", &[]);
}

#[test]
fn a_library_that_is_off_passes_all_on() {
    for source in ["operators.cpp", "threads.c"] {
        is_done(&run(&compiled(source, &[]), &[], "off"));
    }
}

#[test]
fn a_process_ends_with_its_last_thread() {
    is_done(&run(&compiled("ends.c", &[]), &[], "decay=50"));
}

#[test]
fn a_thread_is_not_cancelled_inside_of_malloc() {
    check("cancelled.c", &[]);
}

#[test]
fn a_growing_block_of_the_c_library_stays_there_while_the_heap_refuses() {
    let program = compiled("grows.c", &[]);
    for settings in ["off", "limit=1M"] {
        let mut command = std::process::Command::new("sh");
        // 900 000 KiB have room for a block of 500 MiB, and not for a copy of it.
        command.args(["-c", "ulimit -v 900000; exec \"$0\""]).arg(&program);
        command.env("LD_PRELOAD", library()).env("BUCKETPOOL_HOST", settings);
        is_done(&command.output().expect("a shell"));
    }
}

#[test]
fn memory_returns_while_the_program_sleeps() {
    let program = compiled("returns.c", &[]);
    is_done(&run(&program, &[], "decay=50"));
}

#[test]
fn below_an_address_limit_the_c_library_serves() {
    let program = compiled("threads.c", &[]);
    let mut command = std::process::Command::new("sh");
    // 600 000 KiB: less than the smallest range of addresses that the heap reserves, times four.
    command.args(["-c", "ulimit -v 600000; exec \"$0\""]).arg(program);
    command.env("LD_PRELOAD", library()).env("BUCKETPOOL_HOST", "stats");
    let output = command.output().expect("a shell");
    is_done(&output);
    let text = errors(&output);
    assert!(text.ends_with("no addresses for pages, so the C library served all\n"), "{text}");
}

#[test]
fn core_dumps_have_blocks_and_no_reserved_addresses() {
    check("dumps.c", &[]);
}

#[test]
fn the_thread_of_the_library_has_no_privileges_of_the_program() {
    is_done(&run(&compiled("privileges.c", &[]), &[], ""));
}

#[test]
fn the_thread_of_the_library_runs_as_the_main_thread_on_a_small_stack() {
    let program = compiled("scheduling.c", &[]);
    let mut command = std::process::Command::new("sh");
    // Threads without a size of their own get stacks of 1 000 000 KiB.
    let line = "ulimit -s 1000000 || exit 77; exec \"$0\" 900000000";
    let output = command.args(["-c", line]).arg(&program).env("LD_PRELOAD", library()).output();
    let output = output.expect("a shell");
    if output.status.code() == Some(77) {
        println!("NOT RUN: the system permits no stacks of 1 GB");
        return;
    }
    is_done(&output);
}

#[test]
fn the_thread_of_the_library_makes_no_call_that_a_filter_may_not_know() {
    is_done(&run(&compiled("filtered.c", &[]), &[], ""));
}
