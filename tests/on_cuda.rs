//! The program of `examples/tiles.rs` on the double of libcuda: it runs the calls of a real one,
//! and no GPU.
#![cfg(feature = "cuda")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[path = "../pool-cuda/tests/double/stand_in.rs"]
mod double;
#[path = "../examples/shared/tiles.rs"]
mod tiles;

use bucketpool::cuda::CudaAllocator;

#[test]
fn the_program_for_every_memory_runs_on_cuda() {
    double::stand_in();
    let stats = tiles::run(CudaAllocator::new(0).unwrap()).unwrap();
    assert_eq!((stats.allocations, stats.failures), (41, 1), "{stats}");
}
