//! A test double of libcuda: the driver's C interface over bucketpool's simulated device.
//!
//! It lets the real CUDA code of `pool-cuda`, and cudarc's own loader, run in tests on machines
//! without a GPU. It is a double and no emulator: memory is bytes of this process at made-up
//! addresses, streams run late (when a call waits for them), and no kernel exists. A figure that
//! was not taken on a GPU is no GPU figure.
//!
//! Each `cu*` function is the driver's of the same name. What the driver's documentation forbids is
//! refused with the driver's code:
//!
//! ```text
//!   capture.rs  what a capture forbids to whom; a broken capture is invalid until it ends
//!   graph.rs    captures become graphs, with the memory that their work allocates
//!   lost.rs     an error that stays, for one context, from when the faulty work runs
//!   store.rs    what memory pools keep: reuse by stream, thresholds, trims
//!   pages.rs    virtual memory in granules of 2 MiB, by handles; access must be set
//!   host.rs     page-locked memory, which is real memory
//!   address.rs  what the driver knows of an address
//! ```
//!
//! Addresses and handles of what is gone serve again. Where the documentation leaves it open
//! whether a call waits for the device, `CUDA_DOUBLE=at-once` lets none wait; otherwise each does.
//!
//! Absent: the legacy stream's implicit order outside of captures, managed memory, modules and
//! kernels; `cuda_double_kernel` stands for one. A wait for one device waits for both.
#![deny(unsafe_code)]
#![expect(unreachable_pub, reason = "exported to C, not to Rust")]

mod address;
mod capture;
mod code;
mod control;
mod cost;
mod device;
mod event;
mod graph;
mod host;
mod lost;
mod memory;
mod module;
mod pages;
mod pointer;
mod pool;
mod script;
mod state;
mod store;
mod stream;
