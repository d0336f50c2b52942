//! Programs with `libbucketpool.so` preloaded.

mod programs;
mod script;
mod settings;
mod setup;
