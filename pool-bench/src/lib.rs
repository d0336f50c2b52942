//! Workloads, traces, measuring and reports: what stands behind `cargo xtask bench` and
//! `cargo xtask replay`.
#![deny(unsafe_code)]

pub mod backend;
pub mod beside;
pub mod command;
pub mod contest;
pub mod counted;
#[cfg(feature = "wgpu")]
pub mod frames;
#[cfg(feature = "cuda")]
pub mod gpu;
pub mod input;
pub mod machine;
#[cfg(feature = "peers")]
pub mod peers;
pub mod record;
pub mod replay;
pub mod report;
mod results;
pub mod rounds;
pub mod sizes;
pub mod source;
pub mod spec;
pub mod streams;
pub mod trace;
pub mod workload;
