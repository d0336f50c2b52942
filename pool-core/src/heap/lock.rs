//! A lock that its owner enters by a store, and what it is made of.

mod atomics;
mod barrier;
pub(crate) mod biased;
