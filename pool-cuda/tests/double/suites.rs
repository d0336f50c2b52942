//! Runs the checks for a GPU on the double, the conformance suite among them.

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

/// The driver's documentation leaves open whether some calls wait for the device. All other tests
/// run once more in a process in which none of these calls does.
#[test]
fn all_passes_where_frees_and_mappings_do_not_wait() {
    if std::env::var_os("CUDA_DOUBLE").is_some() {
        return; // this is that process, or the caller has chosen
    }
    let tests = std::env::current_exe().unwrap();
    let mut again = std::process::Command::new(tests);
    let said = again.env("CUDA_DOUBLE", "at-once").output().unwrap();
    let text = String::from_utf8_lossy(&said.stdout);
    assert!(said.status.success(), "with CUDA_DOUBLE=at-once: {text}");
}
