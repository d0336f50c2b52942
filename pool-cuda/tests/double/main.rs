//! The real CUDA code, through cudarc's own loader, on a double of libcuda.
//!
//! One test at a time: the double is one machine for the whole process. A double is no GPU: what is
//! shown here is order, accounts and errors, not one figure.
#![expect(unsafe_code, reason = "the double's control functions are called through C")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod audit;
mod captures;
#[path = "../gpu/checks.rs"]
mod checks;
mod ends;
mod graph_pool;
mod handles;
mod harness;
mod host;
mod interop;
mod outside;
mod refusals;
mod rules;
mod schedules;
mod several;
mod stand_in;
mod streams;
mod suites;
