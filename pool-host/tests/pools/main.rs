//! Pools of host memory. One program, since the code of a pool is compiled anew for each.

mod alignment;
mod beside;
mod bounded;
mod conformance;
mod dumps;
mod ecosystem;
mod guards;
mod producer;
mod refusals;
mod scripts;
