//! Pools that are configured when a program runs.
//!
//! [`PolicySpec`] is a policy as text, [`preset`] has named configurations, [`PoolConfig`] is the
//! configuration of a pool as a file, and [`AnyPool`] a pool whose memory is chosen when the program
//! runs. All of it uses the public interface of `pool-core` alone.
#![deny(unsafe_code)]

mod any;
mod file;
pub mod preset;
mod spec;

pub use any::{AnyBuffer, AnyPool};
pub use file::{ConfigKey, PoolConfig};
pub use spec::{Growth, PolicySpec};
