//! The blocks of a pool: the record of all memory that it has, thread caches in front of it, and
//! the stages of a request that no cache serves.

pub(crate) mod block;
pub(crate) mod book;
pub(crate) mod cache;
pub(crate) mod change;
pub(crate) mod guards;
mod lock;
#[cfg(all(test, loom))]
mod model;
pub(crate) mod reference;
mod report;
pub(crate) mod stages;
pub(crate) mod store;
mod trim;
