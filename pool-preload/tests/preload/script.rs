//! `bucketpool-run`: what it runs, and what it says where the library would have no effect.
#![expect(clippy::expect_used, reason = "tests")]

use crate::setup::{compiled, errors, folder, library, script};
use std::collections::BTreeSet;
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

/// `sh -c`, `execvp` and `make` run such a file with `/bin/sh`.
#[test]
fn a_script_without_an_interpreter_is_one_for_the_shell() {
    let file = folder().join("a-plain-script");
    for text in ["", "# no interpreter\necho \"$1\"; grep -c libbucketpool /proc/$$/maps >&2\n"] {
        fs::write(&file, text).expect("a folder for tests");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("our own file");
        let output = run_with(&library(), "", &[&file.display().to_string(), "two words"]);
        assert!(output.status.success(), "{}", errors(&output));
        assert_eq!(output.stdout, if text.is_empty() { "" } else { "two words\n" }.as_bytes());
        assert_eq!(errors(&output).is_empty(), text.is_empty(), "the shell has the library");
    }
    let data = folder().join("data");
    fs::write(&data, b"\0\x01\x02").expect("a folder for tests");
    fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).expect("our own file");
    assert!(refused(&data).contains(" is statically linked, or is not for this machine"));
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
        refused(&compiled("blocks.c", &["-fsanitize=leak"])),
        refused(&compiled("own_malloc.c", &[])),
    ];
    insta::assert_snapshot!(lines.join("\n"));
    let checked = compiled("blocks.c", &["-fsanitize=undefined"]).display().to_string();
    crate::setup::is_done(&run_with(&library(), "", &[&checked]));
    let musl = folder().join("of-musl");
    fs::write(&musl, b"\x7fELF\0/lib/ld-musl-x86_64.so.1\0").expect("a folder for tests");
    fs::set_permissions(&musl, fs::Permissions::from_mode(0o755)).expect("our own file");
    assert!(refused(&musl).contains(" does not use the C library glibc"));
}

/// The dynamic linker ignores `LD_PRELOAD` where a user gains privileges.
#[test]
fn programs_with_privileges_are_refused() {
    // SAFETY: `geteuid` has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        println!("NOT RUN: only root can make a program another user's");
        return;
    }
    let program = compiled("blocks.c", &[]);
    std::os::unix::fs::chown(&program, Some(65534), Some(65534)).expect("root");
    for mode in [0o4755, 0o2755] {
        fs::set_permissions(&program, fs::Permissions::from_mode(mode)).expect("root");
        let line = refused(&program);
        assert!(line.contains(" is setuid or setgid: the dynamic linker ignores"), "{line}");
    }
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

/// Returns the words that the library names when it reads a wrong one.
fn words_of_the_library() -> BTreeSet<String> {
    let wrong = crate::setup::run(&compiled("blocks.c", &[]), &[], "no-such-word");
    let text = errors(&wrong);
    let (_, words) = text.split_once("expected ").expect("a wrong word is named");
    let (words, _) = words.split_once(". It is ignored.").expect("and what was expected");
    let words = words.replace("or with the feature `trace` ", "").replace(" and ", ", ");
    words.split(", ").map(str::to_owned).collect()
}

/// Returns the words of a page of the documentation: those of the first column of its table.
fn words_of_the_page(name: &str) -> BTreeSet<String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name);
    let text = fs::read_to_string(&file).expect("a page of the documentation");
    let rows = text.lines().skip_while(|line| !line.starts_with("| word "));
    let rows = rows.skip(2).take_while(|line| line.starts_with('|'));
    let words = rows.flat_map(|row| {
        let cell = row.split('|').nth(1).unwrap_or_default();
        cell.split(',').map(|word| word.trim().trim_matches('`').to_owned()).collect::<Vec<_>>()
    });
    // The documentation of `trace` names a word that silences its line.
    words.chain(text.contains("with `silent` none").then(|| "silent".to_owned())).collect()
}

/// `check` is for programs that have a `Tcache`, and `background` is the default.
#[test]
fn the_documentation_has_the_words_of_the_library() {
    let own = words_of_the_library();
    let mut preloaded = words_of_the_page("programs.md");
    preloaded.extend(["check", "background"].map(str::to_owned));
    let mut of_tcache = words_of_the_page("tcache.md");
    of_tcache.insert("silent".to_owned());
    assert_eq!((&preloaded, &of_tcache), (&own, &own));
}

/// Runs `python -m bucketpool run` as the package does, without its pools.
fn run_by_python(settings: &str, arguments: &[&str]) -> Output {
    let package = folder().join("python").join("bucketpool");
    fs::create_dir_all(&package).expect("a folder for tests");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pool-python/python/bucketpool");
    for (from, name) in [(source.join("__main__.py"), "__main__.py"), (script(), "bucketpool-run")]
    {
        fs::copy(from, package.join(name)).expect("a file of the package");
    }
    let mut command = Command::new("python3");
    command.args(["-m", "bucketpool"]).args(arguments).env("PYTHONPATH", folder().join("python"));
    command.env("BUCKETPOOL_LIBRARY", library()).env("BUCKETPOOL_HOST", settings);
    command.output().expect("python3")
}

#[test]
fn the_script_and_python_take_each_word_that_the_library_takes() {
    let (library, words) = (library(), words_of_the_library());
    assert!(words.contains("thread=SIZE") && words.contains("silent"), "{words:?}");
    let trace = folder().join("words.ptrace.csv").display().to_string();
    let helps = [run_with(&library, "", &["--help"]).stderr, run_by_python("", &["--help"]).stdout];
    for help in helps.map(|help| String::from_utf8(help).expect("text")) {
        let (_, help) = help.split_once("BUCKETPOOL_HOST").expect("what the variable has");
        let told = help.split([',', ' ', '\n', '.']).collect::<Vec<_>>();
        for word in words.iter().filter(|word| !["check", "background"].contains(&word.as_str())) {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let is_told = |told: &&str| told.split('=').next() == Some(name);
            assert!(told.iter().any(is_told), "{name}={value}: {help}");
        }
    }
    // `check` is for programs that have a `Tcache`: `wrong_settings_are_refused_once`.
    for word in words.iter().filter(|word| *word != "check") {
        let values = [("SIZE", "64K"), ("MILLISECONDS", "250"), ("FILE", &trace)];
        let setting = { values.iter() }
            .fold(word.to_owned(), |word, (name, value)| word.replace(name, value));
        for output in [
            run_with(&library, &setting, &["true"]),
            run_by_python(&setting, &["run", "--", "true"]),
        ] {
            assert!(output.status.success(), "{setting}: {}", errors(&output));
            assert!(!errors(&output).contains("expected"), "{setting}: {}", errors(&output));
        }
    }
}
