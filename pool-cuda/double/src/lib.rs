//! A test double of libcuda: the driver's C interface over bucketpool's simulated device.
//!
//! It lets the real CUDA code of `pool-cuda`, and cudarc's own loader, run in tests on machines
//! without a GPU. It is a double and no emulator: memory is bytes of this process at made-up
//! addresses, streams run late (when somebody synchronizes), no kernel
//! exists, and nothing is known of time. A figure that was not taken on a GPU is no GPU figure.
//!
//! Each `cu*` function is the driver's of the same name.
//!
//! There are two devices. Page-locked memory is real, memory pools free in the order of streams,
//! virtual memory comes in granules of 2 MiB and wants access to be set, captures become graphs
//! whose branches run on streams of their own. An address out of bounds is an error that stays.
//!
//! Absent: what a memory pool keeps, memory in graphs, the legacy stream's implicit order, managed
//! memory, modules and kernels; `cuda_double_kernel` stands for one.
#![deny(unsafe_code)]
#![expect(unreachable_pub, reason = "exported to C, not to Rust")]

mod code;
mod control;
mod device;
mod graph;
mod host;
mod memory;
mod module;
mod pages;
mod pointer;
mod pool;
mod script;
mod state;
mod stream;
