//! The compiler's words for the mistakes that people make: `tests/ui`.
#![cfg(not(miri))]

#[test]
fn the_compiler_says_what_is_wrong_and_what_to_do() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
