//! What differs between the memories of a pool: their streams, their addresses, their allocators.

use crate::graphs::{Graphs, NoGraphs};
use crate::status::Failure;
use pool_core::port::Sliceable;
use pool_core::{DeviceError, StreamOf};
use pool_host::{HostAllocator, HostView};

/// Memory whose blocks are addresses, for callers that know streams by their handles.
pub(crate) trait Memory: Sliceable + Sized {
    /// The memory of its graphs.
    type Graphs: Graphs<Self>;

    /// The device of `DLPack`: its type and its number.
    fn dl_device(&self) -> (i32, i32);

    /// The stream of a handle: 0 and 1 are the legacy default stream, 2 is that of this thread.
    fn stream(&self, handle: usize) -> Result<StreamOf<Self>, DeviceError>;

    /// Ends the registration of a stream, before its owner destroys it or, after a wait for all work, after that.
    fn end_stream(&self, handle: usize) -> Result<(), DeviceError>;

    fn address(view: &Self::View<'_>) -> usize;

    /// Blocks the host until all work of the device has passed.
    fn wait_for_all(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Blocks the host until the work of a stream of another device has passed.
    fn wait_for(&self, _handle: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Page-locked bytes that copies have under way beside the pool.
    fn staging_bytes(&self) -> u64 {
        0
    }
}

impl Memory for HostAllocator {
    type Graphs = NoGraphs;

    fn dl_device(&self) -> (i32, i32) {
        (1, 0)
    }
    fn stream(&self, _handle: usize) -> Result<(), DeviceError> {
        Ok(())
    }
    fn end_stream(&self, _handle: usize) -> Result<(), DeviceError> {
        Ok(())
    }
    fn address(view: &HostView<'_>) -> usize {
        view.as_ptr().expose_provenance()
    }
}

/// The names of memories, as `bp_pool_new` takes them.
pub(crate) const NAMES: &str = "\"cuda\", \"cuda-vmm\", \"cuda-async\", \"pinned\" or \"host\"";

/// A memory by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Cuda,
    CudaVmm,
    CudaAsync,
    Pinned,
    Host,
}

/// The memories of which a process has one pool for each device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Family {
    Device,
    Pinned,
    Host,
}

impl Kind {
    pub(crate) fn read(name: &str) -> Result<Self, Failure> {
        Ok(match name {
            "cuda" => Self::Cuda,
            "cuda-vmm" => Self::CudaVmm,
            "cuda-async" => Self::CudaAsync,
            "pinned" => Self::Pinned,
            "host" => Self::Host,
            other => {
                return Err(Failure::invalid(format!("memory \"{other}\"; expected {NAMES}")));
            }
        })
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::CudaVmm => "cuda-vmm",
            Self::CudaAsync => "cuda-async",
            Self::Pinned => "pinned",
            Self::Host => "host",
        }
    }

    pub(crate) fn family(self) -> Family {
        match self {
            Self::Cuda | Self::CudaVmm | Self::CudaAsync => Family::Device,
            Self::Pinned => Family::Pinned,
            Self::Host => Family::Host,
        }
    }
}

#[cfg(feature = "cuda")]
pub(crate) mod cuda {
    //! Memory of CUDA devices, and page-locked memory.
    #![expect(unsafe_code, reason = "streams come as handles")]

    use super::Memory;
    use crate::graphs::{CudaGraphs, NoGraphs};
    use pool_core::{DeviceError, StreamOf};
    use pool_cuda::{
        CudaAllocator, CudaAsyncAllocator, CudaDevice, CudaPinnedAllocator, CudaView,
        CudaVmmAllocator, PinnedRange, PoolStream,
    };
    use std::ptr;

    /// Finds the stream of a handle.
    fn stream_of(device: &CudaDevice, handle: usize) -> Result<PoolStream, DeviceError> {
        // SAFETY: the caller of each function with a stream promises that it lives through the call, and the
        // registration is used by that call.
        unsafe { device.stream_by_handle(ptr::with_exposed_provenance_mut(handle)) }
    }

    /// Waits for a stream of another device.
    fn wait_for(device: &CudaDevice, handle: usize) -> Result<(), DeviceError> {
        // SAFETY: who named the stream promised that it lives until the free of the block that it uses.
        unsafe { device.wait_for_handle(ptr::with_exposed_provenance_mut(handle)) }
    }

    macro_rules! device_memory {
        ($allocator:ty) => {
            impl Memory for $allocator {
                type Graphs = CudaGraphs<Self>;

                fn dl_device(&self) -> (i32, i32) {
                    (2, i32::try_from(self.device().ordinal()).unwrap_or(i32::MAX))
                }
                #[inline]
                fn stream(&self, handle: usize) -> Result<StreamOf<Self>, DeviceError> {
                    stream_of(self.device(), handle)
                }
                fn end_stream(&self, handle: usize) -> Result<(), DeviceError> {
                    self.device().retire_handle(ptr::with_exposed_provenance_mut(handle))
                }
                #[inline]
                fn address(view: &CudaView<'_>) -> usize {
                    usize::try_from(view.as_ptr()).unwrap_or(usize::MAX)
                }
                fn wait_for_all(&self) -> Result<(), DeviceError> {
                    self.device().synchronize()
                }
                fn wait_for(&self, handle: usize) -> Result<(), DeviceError> {
                    wait_for(self.device(), handle)
                }
                fn staging_bytes(&self) -> u64 {
                    self.staging_bytes()
                }
            }
        };
    }

    device_memory!(CudaAllocator);
    device_memory!(CudaVmmAllocator);
    device_memory!(CudaAsyncAllocator);

    impl Memory for CudaPinnedAllocator {
        type Graphs = NoGraphs;

        fn dl_device(&self) -> (i32, i32) {
            (3, 0)
        }
        fn stream(&self, handle: usize) -> Result<StreamOf<Self>, DeviceError> {
            stream_of(self.device(), handle)
        }
        fn end_stream(&self, handle: usize) -> Result<(), DeviceError> {
            self.device().retire_handle(ptr::with_exposed_provenance_mut(handle))
        }
        fn wait_for_all(&self) -> Result<(), DeviceError> {
            self.device().synchronize()
        }
        fn wait_for(&self, handle: usize) -> Result<(), DeviceError> {
            wait_for(self.device(), handle)
        }
        fn address(view: &PinnedRange<'_>) -> usize {
            view.as_ptr().addr().get()
        }
    }
}
