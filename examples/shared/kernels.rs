//! Kernels as PTX text that the driver compiles when they are loaded.
//!
//! The examples and the GPU bench compute with them.
#![expect(unsafe_code, reason = "the driver is called through C")]

use bucketpool::cuda::CudaDevice;
use bucketpool::cuda::cudarc::driver::{CudaStream, DriverError, result, sys};
use std::ffi::{CString, c_void};

/// Threads per thread block.
const WIDTH: u32 = 256;

/// The kernels of `kernels.ptx` with their parameters. Addresses point to `count` 32-bit numbers.
#[derive(Clone, Copy)]
pub(crate) enum Kernel {
    /// `to[i] = value`.
    Fill { to: u64, value: u32, count: u32 },
    /// `to[i] = from[i] + value`.
    Add { to: u64, from: u64, value: u32, count: u32 },
    /// `inside[i]` = the number of `tries` random points that lie in the quarter circle.
    ThrowDarts { inside: u64, seed: u32, tries: u32, count: u32 },
}

/// The loaded kernels.
pub(crate) struct Kernels {
    module: sys::CUmodule,
    /// Keeps the context alive longer than the module.
    device: CudaDevice,
}

impl Kernels {
    /// Loads the kernels. A driver without kernels, for example a test double, returns an error.
    pub(crate) fn load(device: &CudaDevice) -> Result<Self, DriverError> {
        device.context().bind_to_thread()?;
        let text = CString::new(include_str!("kernels.ptx")).unwrap_or_default();
        // SAFETY: the text ends in a zero byte, as the driver requires.
        let module = unsafe { result::module::load_data(text.as_ptr().cast()) }?;
        Ok(Self { module, device: device.clone() })
    }

    /// Launches a kernel on a stream. The caller must own the memory at the addresses for work on
    /// that stream.
    pub(crate) fn launch(&self, on: &CudaStream, kernel: Kernel) -> Result<(), DriverError> {
        let (name, addresses, numbers) = match kernel {
            Kernel::Fill { to, value, count } => (c"fill", vec![to], vec![value, count]),
            Kernel::Add { to, from, value, count } => (c"add", vec![to, from], vec![value, count]),
            Kernel::ThrowDarts { inside, seed, tries, count } => {
                (c"throw_darts", vec![inside], vec![seed, tries, count])
            }
        };
        let count = numbers.last().copied().unwrap_or(0);
        let addresses = addresses.iter().map(|at| std::ptr::from_ref(at).cast_mut().cast());
        let numbers = numbers.iter().map(|number| std::ptr::from_ref(number).cast_mut().cast());
        let mut parameters: Vec<*mut c_void> = addresses.chain(numbers).collect();
        // SAFETY: the module lives as long as `self`.
        let function = unsafe { result::module::get_function(self.module, name.to_owned()) }?;
        let (blocks, width) = ((count.div_ceil(WIDTH).max(1), 1, 1), (WIDTH, 1, 1));
        let (stream, parameters) = (on.cu_stream(), parameters.as_mut_slice());
        // SAFETY: the parameters match those of the kernel in kernels.ptx, in order; the kernel
        // only reads them and stays within `count` numbers.
        unsafe { result::launch_kernel(function, blocks, width, 0, stream, parameters) }
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        if self.device.context().bind_to_thread().is_ok() {
            // SAFETY: loaded in `load`; each caller that launched a kernel has waited for it.
            let _ = unsafe { result::module::unload(self.module) };
        }
    }
}
