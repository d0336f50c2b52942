//! What is asked of each allocator on a GPU, the conformance suite first of all, on the double.

use crate::checks::CHECKS;
use crate::harness::{double, hazards, held, leftovers, pinned, run};
use pool_cuda::CudaDevice;

#[test]
fn what_is_asked_on_a_gpu() {
    for (name, check) in CHECKS {
        let _one = double();
        check(&CudaDevice::new(0).unwrap());
        run(); // frees in the order of streams have their turn
        assert_eq!((held(), pinned(), leftovers(), hazards()), (0, 0, 0, 0), "{name}");
        println!("ok: {name}");
    }
}
