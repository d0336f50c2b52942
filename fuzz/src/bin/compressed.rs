#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bucketpool_fuzz::compressed(bytes));

#[cfg(not(fuzzing))]
fn main() {
    bucketpool_fuzz::main("compressed", bucketpool_fuzz::compressed);
}
