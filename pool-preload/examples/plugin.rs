//! A library whose global allocator is a `Tcache`, for programs that load and close it
//! (`loads_plugin.c`).
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use pool_host::Tcache;

#[global_allocator]
static ALLOCATOR: Tcache = Tcache::new();

/// Allocates and frees blocks. Returns the sum of their bytes: less if some did not keep what was
/// written.
#[unsafe(no_mangle)]
pub extern "C" fn work(blocks: usize, bytes: usize) -> usize {
    let all: Vec<Vec<u8>> = (0..blocks).map(|_| vec![1; bytes]).collect();
    all.iter().flatten().map(|byte| usize::from(*byte)).sum()
}
