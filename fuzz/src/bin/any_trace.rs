#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bucketpool_fuzz::any_trace(bytes));

#[cfg(not(fuzzing))]
fn main() {
    bucketpool_fuzz::main("any_trace", bucketpool_fuzz::any_trace);
}
