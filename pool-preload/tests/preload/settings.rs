//! The words of `BUCKETPOOL_HOST` in a program with the library preloaded.

use crate::setup::{compiled, errors, is_done, library, run, run_plain};
use std::path::Path;
use std::process::Command;

/// Runs a program that takes 64 blocks of 4 MiB, and returns what it writes to stderr, without its
/// number.
fn said(settings: &str) -> String {
    let program = compiled("blocks.c", &[]);
    let output = run(&program, &[], settings);
    is_done(&output);
    let text = errors(&output);
    let number = text.split_once('(').and_then(|(_, rest)| rest.split_once(')'));
    let number = number.map(|(number, _)| format!("({number})"));
    let text = number.map_or(text.clone(), |number| text.replace(&number, "(NUMBER)"));
    let name = program.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    text.replace(&name[..name.len().min(15)], "PROGRAM")
}

#[test]
fn without_words_the_library_is_silent() {
    assert_eq!(said(""), "");
}

#[test]
fn stats_prints_one_line_at_exit() {
    insta::assert_snapshot!(said("stats,decay=0,limit=512M"));
}

/// The tools of GNU.
#[test]
fn stats_is_told_by_programs_that_close_stderr_themselves() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("numbers");
    std::fs::write(&file, "a line\n".repeat(200_000)).unwrap();
    let out = folder.path().join("out.tar");
    let commands: [(&str, &[&Path]); 5] = [
        ("sort", &[&file]),
        ("gzip", &[Path::new("-c"), &file]),
        ("tar", &[Path::new("-cf"), &out, &file]),
        ("awk", &[Path::new("{print}"), &file]),
        ("cat", &[&file]),
    ];
    for (program, arguments) in commands {
        let output = run(Path::new(program), arguments, "stats");
        assert!(output.status.success(), "{program}: {}", output.status);
        let text = errors(&output);
        let line = text.lines().last().unwrap_or_default();
        let is_told = line.starts_with("bucketpool: ") && line.contains(" allocations, ");
        assert!(is_told, "{program}: {text}");
    }
}

/// `sort`, `cat` and others close stderr when they exit.
#[test]
fn stats_and_a_trace_are_told_where_a_program_closes_stderr() {
    let folder = tempfile::tempdir().unwrap();
    let [own, trace] = ["own", "t.ptrace.csv"].map(|name| folder.path().join(name));
    let program = compiled("closes.c", &[]);
    for words in ["stats".to_owned(), format!("stats,trace={}", trace.display())] {
        let output = run(&program, &[&own], &words);
        is_done(&output);
        let text = errors(&output);
        assert!(text.contains(" allocations, "), "{text}");
        assert_eq!(text.contains(" operations in "), words.contains("trace"), "{text}");
        assert_eq!(std::fs::read(&own).unwrap(), b"", "a line in a file of the program");
    }
}

/// A daemon closes all descriptors, and may open a file under the number of one that was kept.
#[test]
fn no_line_goes_into_a_file_of_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("own");
    let program = compiled("closes_all.c", &[]);
    let output = run(&program, &[&own], "stats");
    is_done(&output);
    assert_eq!(errors(&output), "");
    assert_eq!(std::fs::read(&own).unwrap(), b"");
    // Started without stderr, a program may have its own file there from the start.
    let program = compiled("closes.c", &[]);
    let without = Path::new("exec \"$0\" \"$1\" 2>&-");
    let output = run(Path::new("sh"), &[Path::new("-c"), without, &program, &own], "stats");
    is_done(&output);
    assert_eq!(std::fs::read(&own).unwrap(), b"");
}

#[test]
fn a_forked_child_does_not_keep_stderr_open() {
    let output = run(&compiled("forks_daemon.c", &[]), &[], "stats");
    is_done(&output);
    let text = errors(&output);
    assert!(text.lines().count() == 1 && text.contains(" allocations, "), "{text}");
}

#[test]
fn off_leaves_all_to_the_c_library_and_stats_says_so() {
    assert_eq!(said("off"), "");
    let line = "bucketpool: PROGRAM (NUMBER): off: no request is served from a cache\n";
    assert_eq!(said("off,stats"), line);
}

/// The library hides blocks from a sanitizer with a `malloc`, and says so; that of undefined behaviour has
/// none. (`AddressSanitizer` refuses to come second itself.)
#[test]
fn what_a_sanitizer_does_not_see_is_told() {
    let hidden = "bucketpool: a sanitizer does not see the blocks of a program with this library";
    for (kind, is_hidden) in [("leak", true), ("thread", true), ("undefined", false)] {
        let program = compiled("leaks.c", &[&format!("-fsanitize={kind}")]);
        let output = run(&program, &[], "stats");
        is_done(&output);
        let text = errors(&output);
        assert_eq!(text.starts_with(hidden), is_hidden, "{kind}: {text}");
        assert_eq!(text.contains(": off: no request is served"), is_hidden, "{kind}: {text}");
        assert_eq!(text.contains(" allocations, "), !is_hidden, "{kind}: {text}");
        assert!(errors(&run(&program, &[], "on,stats")).contains(" allocations, "), "{kind}");
    }
    let leaky = compiled("leaks.c", &["-fsanitize=leak"]);
    assert!(errors(&run_plain(&leaky, &[])).contains("1234 byte"), "it finds the leak itself");
}

#[test]
fn a_wrong_word_is_named_and_ignored() {
    insta::assert_snapshot!(said("sats,limit=x,background=off"));
}

/// The file has each block of the program, and those of the C library; each is freed or live.
#[test]
fn a_trace_has_all_requests_and_frees() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("blocks.ptrace.csv.zst");
    let text = said(&format!("trace={}", file.display()));
    assert!(text.contains("operations in") && text.ends_with(", 0 lost\n"), "{text}");
    let log = pool_trace::read(std::fs::File::open(&file).unwrap()).unwrap();
    let large = log.operations.iter().filter(|one| one.bytes == 4 << 20);
    assert_eq!(large.count(), 64);
    let mut live = std::collections::HashSet::new();
    for one in &log.operations {
        match one.kind {
            pool_trace::Kind::Allocate => assert!(live.insert(one.id)),
            pool_trace::Kind::Free => assert!(live.remove(&one.id)),
            _ => {}
        }
    }
    assert!(live.len() < 64, "{}", live.len());
}

#[test]
fn words_for_a_tcache_have_no_effect_and_say_so() {
    insta::assert_snapshot!(said("check,thread=2M"));
}

/// A user who starts a privileged program chooses its environment, and must not choose files that
/// it writes. The dynamic linker loads the library into such a program if it is linked with it or
/// if `/etc/ld.so.preload` names it.
#[test]
fn a_program_with_gained_privileges_takes_no_settings() {
    // SAFETY: `geteuid` has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        println!("NOT RUN: only root can start a program with another real user ID");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret.ptrace.csv.zst");
    let library = library().display().to_string();
    let path = format!("-Wl,-rpath,{}", library.trim_end_matches("libbucketpool.so"));
    let program = compiled("secure.c", &["-Wl,--no-as-needed", &library, &path]);
    // A real user ID that is not the effective one counts as gained privileges.
    let mut command = Command::new("setpriv");
    command.arg("--ruid=65534").arg(program).env_remove("LD_PRELOAD");
    command.env("BUCKETPOOL_HOST", format!("stats,limit=x,trace={}", file.display()));
    let output = command.output().expect("setpriv of util-linux");
    is_done(&output);
    assert_eq!(errors(&output), "", "no word was read");
    assert!(!file.exists(), "no file was written");
}
