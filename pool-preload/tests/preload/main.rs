//! Programs with `libbucketpool.so` preloaded.

mod citizen;
mod plugin;
mod programs;
mod random;
mod script;
mod settings;
mod setup;
