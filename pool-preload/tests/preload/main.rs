//! Programs with `libbucketpool.so` preloaded.

mod citizen;
mod programs;
mod random;
mod script;
mod settings;
mod setup;
