//! Kernels as text, compiled by the driver when they are loaded: what the examples and the GPU
//! bench compute with.
#![expect(unsafe_code, reason = "the driver is called through C")]

use bucketpool::cuda::CudaDevice;
use bucketpool::cuda::cudarc::driver::{CudaStream, DriverError, result, sys};
use std::ffi::{CString, c_void};

/// Threads of a block.
const WIDTH: u32 = 256;

/// The kernels of `kernels.ptx`, with their parameters. Memory is of `count` numbers of 32 bits.
#[derive(Clone, Copy)]
pub(crate) enum Kernel {
    /// `to[i] = value`.
    Fill { to: u64, value: u32, count: u32 },
    /// `to[i] = from[i] + value`.
    Add { to: u64, from: u64, value: u32, count: u32 },
    /// `inside[i]` = how many of `tries` random points lie in the quarter circle.
    ThrowDarts { inside: u64, seed: u32, tries: u32, count: u32 },
}

/// The kernels, loaded.
pub(crate) struct Kernels {
    module: sys::CUmodule,
    /// Its context outlives the module.
    device: CudaDevice,
}

impl Kernels {
    /// Loads them. A driver without kernels, such as a double, refuses.
    pub(crate) fn load(device: &CudaDevice) -> Result<Self, DriverError> {
        device.context().bind_to_thread()?;
        let text = CString::new(include_str!("kernels.ptx")).unwrap_or_default();
        // SAFETY: a text that ends in 0, as the driver wants it.
        let module = unsafe { result::module::load_data(text.as_ptr().cast()) }?;
        Ok(Self { module, device: device.clone() })
    }

    /// Gives a kernel to a stream. The memory at its addresses is the caller's, for work on it.
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
        // SAFETY: the parameters are those of the kernel, in its order (kernels.ptx), which reads
        // them only and stays within `count` numbers.
        unsafe { result::launch_kernel(function, blocks, width, 0, stream, parameters) }
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        if self.device.context().bind_to_thread().is_ok() {
            // SAFETY: loaded in `load`; whoever launched its kernels has waited for them.
            let _ = unsafe { result::module::unload(self.module) };
        }
    }
}
