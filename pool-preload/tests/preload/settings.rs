//! The words of `BUCKETPOOL_HOST` in a program with the library preloaded.

use crate::setup::{compiled, errors, is_done, run};

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

#[test]
fn off_leaves_all_to_the_c_library() {
    assert_eq!(said("off,stats"), "");
}

#[test]
fn a_wrong_word_is_named_and_ignored() {
    insta::assert_snapshot!(said("sats,limit=x,background=off"));
}

#[test]
fn words_for_a_tcache_have_no_effect_and_say_so() {
    insta::assert_snapshot!(said("check,lease=2M"));
}
