//! Workloads, traces, measuring and reports: what stands behind `cargo xtask bench` and
//! `cargo xtask replay`.
#![deny(unsafe_code)]

pub mod advise;
pub mod apart;
mod applications;
pub mod backend;
pub mod command;
pub mod compare;
pub mod contest;
pub mod counted;
pub mod environment;
#[cfg(feature = "wgpu")]
pub mod frames;
#[cfg(feature = "cuda")]
pub mod gpu;
pub mod heap;
pub mod hit;
pub mod input;
pub mod machine;
pub mod page;
pub mod pass;
#[cfg(feature = "peers")]
pub mod peers;
pub mod place;
pub mod preload;
pub mod record;
pub mod replay;
pub mod report;
mod results;
pub mod rounds;
pub mod sizes;
pub mod soak;
pub mod source;
pub mod spec;
pub mod statistics;
pub mod streams;
pub mod threads;
pub mod timeline;
pub mod trace;
pub mod training;
pub mod tree;
pub mod workload;
