//! `libbucketpool_c.so`: pools for programs in C and C++, and for the plugs of `PyTorch`, `CuPy` and RMM.
//!
//! The functions are in `calls` and, in the shapes that libraries ask for, in `torch` and `cupy`. Each goes through
//! [`status::told`], which keeps panics and forked children away from the caller, and then to a [`pool::Pool`]: a
//! `BucketPool` of one memory, and beside it the buffers by their addresses ([`live`]) and the memory of graphs by
//! their ids ([`graphs`]). What differs between memories is in `memory`.
#![deny(unsafe_code)]

pub mod calls;
pub mod cupy;
pub mod dlpack;
pub mod graphs;
pub mod handle;
mod live;
mod memory;
mod pool;
pub mod report;
pub mod status;
pub mod torch;
