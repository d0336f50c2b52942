//! Programs with `libbucketpool.so` preloaded.

mod citizen;
mod programs;
mod script;
mod settings;
mod setup;
