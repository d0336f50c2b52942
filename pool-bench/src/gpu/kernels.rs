//! Kernels as text, compiled by the driver when they are loaded.
#![expect(unsafe_code, reason = "the driver is called through C")]

use super::contender::Refused;
use bucketpool::cuda::CudaDevice;
use bucketpool::cuda::cudarc::driver::{CudaStream, result, sys};
use std::ffi::{CString, c_void};

/// Threads of a block.
const WIDTH: u32 = 256;

/// The kernels of `examples/shared/kernels.ptx`.
pub(super) struct Kernels {
    module: sys::CUmodule,
    fill: sys::CUfunction,
    add: sys::CUfunction,
}

impl Kernels {
    /// Loads them; a driver that knows no kernels, such as a double, refuses.
    pub(super) fn load(device: &CudaDevice) -> Result<Self, Refused> {
        device.context().bind_to_thread()?;
        let text = CString::new(include_str!("../../../examples/shared/kernels.ptx"));
        let text = text.map_err(|_| Refused("kernels with a zero byte".into()))?;
        // SAFETY: a text that ends in 0, as the driver wants it.
        let module = unsafe { result::module::load_data(text.as_ptr().cast()) }?;
        let function = |name: &str| {
            let name = CString::new(name).unwrap_or_default();
            // SAFETY: the module was just loaded.
            unsafe { result::module::get_function(module, name) }
        };
        Ok(Self { module, fill: function("fill")?, add: function("add")? })
    }

    /// `to[i] = value` for `count` numbers.
    pub(super) fn fill(
        &self,
        on: &CudaStream,
        to: u64,
        value: u32,
        count: u32,
    ) -> Result<(), Refused> {
        let (mut to, mut value, mut count) = (to, value, count);
        let mut parameters: [*mut c_void; 3] =
            [(&raw mut to).cast(), (&raw mut value).cast(), (&raw mut count).cast()];
        launch(self.fill, on, count, &mut parameters)
    }

    /// `to[i] = from[i] + value`.
    pub(super) fn add(
        &self,
        on: &CudaStream,
        (to, from): (u64, u64),
        value: u32,
        count: u32,
    ) -> Result<(), Refused> {
        let (mut to, mut from, mut value, mut count) = (to, from, value, count);
        let mut parameters: [*mut c_void; 4] = [
            (&raw mut to).cast(),
            (&raw mut from).cast(),
            (&raw mut value).cast(),
            (&raw mut count).cast(),
        ];
        launch(self.add, on, count, &mut parameters)
    }
}

fn launch(
    kernel: sys::CUfunction,
    on: &CudaStream,
    count: u32,
    parameters: &mut [*mut c_void],
) -> Result<(), Refused> {
    let blocks = (count.div_ceil(WIDTH).max(1), 1, 1);
    // SAFETY: the parameters are those of the kernel, in its order (kernels.ptx); each kernel stays
    // within `count` numbers, and the callers own as many at the addresses, for work on the stream.
    unsafe { result::launch_kernel(kernel, blocks, (WIDTH, 1, 1), 0, on.cu_stream(), parameters) }?;
    Ok(())
}

impl Drop for Kernels {
    fn drop(&mut self) {
        // SAFETY: loaded in `load`; its work is waited for by whoever measured it.
        let _ = unsafe { result::module::unload(self.module) };
    }
}
