//! Workloads, traces, measuring and reports: what stands behind `cargo xtask bench` and
//! `cargo xtask replay`.


pub mod clock;
pub mod counted;
pub mod input;
pub mod replay;
pub mod sizes;
pub mod spec;
pub mod trace;
