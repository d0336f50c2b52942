//! A test double of libcuda: the driver's C interface over bucketpool's simulated device.
//!
//! It lets the real CUDA code of `pool-cuda`, and cudarc's own loader, run in tests on machines
//! without a GPU. It is a double and no emulator: memory is bytes of this process at made-up
//! addresses, streams run late (when somebody synchronizes), no kernel
//! exists, and nothing is known of time. A figure that was not taken on a GPU is no GPU figure.
//!
//! Each `cu*` function is the driver's of the same name.
//!
//! Absent: memory pools, virtual memory, page-locked memory, graphs, a second device.
#![deny(unsafe_code)]
#![expect(unreachable_pub, reason = "exported to C, not to Rust")]

mod code;
mod control;
mod device;
mod memory;
mod pointer;
mod state;
mod stream;
