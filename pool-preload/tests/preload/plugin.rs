//! A library with a `Tcache` in programs that know nothing of it.

use crate::setup::{compiled, is_done, plugin};
use std::process::Command;

#[test]
fn a_library_with_a_tcache_stays_loaded_when_a_program_closes_it() {
    let (program, plugin) = (compiled("loads_plugin.c", &[]), plugin());
    let thread = compiled("plugin_thread.c", &["-shared", "-fPIC"]);
    // With the second word, only the ends of threads call a library that is closed.
    for settings in ["decay=50", "decay=50,background=off"] {
        let threads = if settings.contains("off") { "1" } else { "2" };
        let mut command = Command::new(&program);
        command.arg(&plugin).arg(threads).arg(&thread).env("BUCKETPOOL_HOST", settings);
        is_done(&command.env_remove("LD_PRELOAD").output().expect("a program"));
    }
}
