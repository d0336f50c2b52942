//! The allocators on a GPU, through its real driver. Where there is none, nothing is shown here,
//! and the last line says so. `cargo xtask gpu-bundle` takes this test to a machine that has one.
#![expect(unsafe_code, reason = "page-locked memory is read as bytes, streams come as handles")]
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test program")]

mod checks;

use checks::CHECKS;
use cudarc::driver::result;
use pool_core::{MIB, Why};
use pool_cuda::CudaDevice;

fn main() {
    let device = match CudaDevice::new(0) {
        Ok(device) => device,
        Err(error) => {
            assert_eq!(error.why, Why::Unsupported, "{error}");
            println!(
                "NOT RUN: {} checks on a GPU, since there is none here ({error})",
                CHECKS.len()
            );
            return;
        }
    };
    let on = device.context().name().unwrap();
    for (name, check) in CHECKS {
        let free = free_bytes(&device);
        check(&device);
        device.context().synchronize().unwrap();
        // The driver keeps a few MiB for itself; a lost block of the larger cases would show.
        assert!(free_bytes(&device) + 64 * MIB >= free, "{name}: memory did not come back");
        println!("ok: {name}");
    }
    println!("{} checks passed on {on}", CHECKS.len());
}

fn free_bytes(device: &CudaDevice) -> u64 {
    device.context().bind_to_thread().unwrap();
    result::mem_get_info().unwrap().0 as u64
}
