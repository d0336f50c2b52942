//! `bench --threads`: pools of host memory and global allocators on 1, 2, 4, .. threads.
//!
//! Two loads: each thread replaces its own blocks at random (`own`), or frees those that the thread
//! before it allocated (`pass`). One operation is one allocation and one free. A figure is the time
//! of an operation on its thread: with as many cores as threads, it stays the same where threads do
//! not hinder each other.

pub mod contender;
#[cfg(pool_counts)]
pub mod counts;
pub mod load;
pub mod run;

pub use contender::ThreadContender;
pub use load::{CASES, ThreadLoad};
