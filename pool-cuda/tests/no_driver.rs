//! Without a driver there is an error, and no panic.

use pool_core::Why;
use pool_cuda::CudaAllocator;

#[test]
fn no_driver_is_a_typed_error() {
    match CudaAllocator::new(0) {
        Ok(device) => assert_eq!(device.device().ordinal(), 0, "this machine has a GPU"),
        Err(error) => {
            assert_eq!(error.why, Why::Unsupported);
            assert_eq!(error.to_string(), "no driver library (libcuda): not supported");
        }
    }
}
