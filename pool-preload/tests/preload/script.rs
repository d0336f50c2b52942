//! `bucketpool-run`: what it runs, and what it says where the library would have no effect.
#![expect(clippy::expect_used, reason = "tests")]

use crate::setup::{compiled, errors, folder, library, script};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// Runs the script with a library and words of `BUCKETPOOL_HOST`.
fn run_with(library: &Path, settings: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(script());
    command.args(arguments).env("BUCKETPOOL_LIBRARY", library).env("BUCKETPOOL_HOST", settings);
    command.output().expect("the script can be run")
}

/// Returns the line that the script refuses this with, without the folder of the tests.
fn refusal(library: &Path, settings: &str, arguments: &[&str]) -> String {
    let output = run_with(library, settings, arguments);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), b"".as_slice()));
    let text = errors(&output);
    assert_eq!(text.lines().count(), 1, "{text}");
    let folder = folder().display().to_string();
    // Names of compiled programs end with two numbers.
    let numbers = format!("-{}-", std::process::id());
    let mut text =
        text.replace(&folder, "FOLDER").replace(&library.display().to_string(), "LIBRARY");
    while let Some((before, after)) = text.split_once(&numbers) {
        text =
            format!("{before}{}", after.trim_start_matches(|digit: char| digit.is_ascii_digit()));
    }
    text.trim_end().to_owned()
}

/// Returns the line that the script refuses a program with.
fn refused(program: &Path) -> String {
    refusal(&library(), "", &[&program.display().to_string()])
}

#[test]
fn a_program_runs_with_the_library_and_its_status_is_the_scripts() {
    let program = compiled("blocks.c", &[]);
    let program = program.display().to_string();
    let output = run_with(&library(), "stats", &["--", &program]);
    crate::setup::is_done(&output);
    assert!(errors(&output).contains("65 allocations, "), "{}", errors(&output));
    let output = run_with(&library(), "", &["sh", "-c", "exit 3"]);
    assert_eq!((output.status.code(), errors(&output)), (Some(3), String::new()));
}

#[test]
fn a_script_runs_if_its_interpreter_can() {
    let file = folder().join("a-script");
    fs::write(&file, "#!/usr/bin/env sh\necho \"$1\"\n").expect("a folder for tests");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("our own file");
    let output = run_with(&library(), "", &[&file.display().to_string(), "two words"]);
    assert_eq!(output.stdout, b"two words\n");
    assert_eq!(errors(&output), "");
}

#[test]
fn without_a_library_or_a_program_it_says_so() {
    let (here, nowhere) = (library(), folder().join("nowhere.so"));
    let lines = [
        refusal(&nowhere, "", &["true"]),
        refusal(&here, "", &["no-such-program"]),
        refusal(&here, "", &["/etc/passwd"]),
        refusal(&here, "", &[]),
    ];
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn programs_that_cannot_be_preloaded_are_refused() {
    let lines = [
        refused(&compiled("blocks.c", &["-static"])),
        refused(&compiled("blocks.c", &["-static-pie"])),
        refused(&compiled("blocks.c", &["-fsanitize=address"])),
        refused(&compiled("own_malloc.c", &[])),
    ];
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn an_allocator_with_other_names_is_only_a_warning() {
    let program = compiled("own_names.c", &[]);
    let output = run_with(&library(), "", &[&program.display().to_string()]);
    crate::setup::is_done(&output);
    let text = errors(&output);
    assert!(text.contains("warning: ") && text.contains("(_rjem_malloc)"), "{text}");
}

#[test]
fn a_file_that_is_no_library_is_refused() {
    let program = compiled("blocks.c", &[]).display().to_string();
    let (text, spaced) = (folder().join("text.so"), folder().join("a folder.so"));
    fs::write(&text, "no library\n").expect("a folder for tests");
    fs::write(&spaced, "").expect("a folder for tests");
    let lines = [text, spaced].map(|file| refusal(&file, "", &[&program]));
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn wrong_settings_are_refused_once() {
    let long = format!("decay={}", u128::MAX);
    let settings = [
        "stats,of",
        "limit=lots",
        "limit=",
        "limit=64",
        "limit=99999999999G",
        "limit=99999999999999M",
        "thread=64",
        "lease=64K",
        "decay=1s",
        &long,
        "check",
    ];
    let lines = settings.map(|settings| refusal(&library(), settings, &["true"]));
    insta::assert_snapshot!(lines.join("\n"));
}

/// The words are those that the library names when it reads a wrong one.
#[test]
fn the_script_takes_each_word_that_the_library_takes() {
    let library = library();
    let wrong = crate::setup::run(&compiled("blocks.c", &[]), &[], "no-such-word");
    let text = errors(&wrong);
    let (_, words) = text.split_once("expected ").expect("a wrong word is named");
    let (words, _) = words.split_once(". It is ignored.").expect("and what was expected");
    let words = words.replace("or with the feature `trace` ", "").replace(" and ", ", ");
    let words: Vec<&str> = words.split(", ").collect();
    assert!(words.contains(&"thread=SIZE") && words.contains(&"silent"), "{words:?}");
    let trace = folder().join("words.ptrace.csv").display().to_string();
    let help = errors(&run_with(&library, "", &["--help"]));
    for word in words {
        if word == "check" {
            continue; // for programs that have a `Tcache`: `wrong_settings_are_refused_once`
        }
        assert!(
            help.contains(&format!("{word},")) || help.ends_with(&format!("{word}\n")),
            "{word}: {help}"
        );
        let values = [("SIZE", "64K"), ("MILLISECONDS", "250"), ("FILE", &trace)];
        let setting =
            values.iter().fold(word.to_owned(), |word, (name, value)| word.replace(name, value));
        let output = run_with(&library, &setting, &["true"]);
        assert!(output.status.success(), "{setting}: {}", errors(&output));
        assert!(!errors(&output).contains("expected"), "{setting}: {}", errors(&output));
    }
}
