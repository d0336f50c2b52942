//! Sizes and alignments of the driver's memory.

use pool_core::{DeviceError, Why};

/// Bytes that sizes are rounded up to, as CUDA's and `PyTorch`'s allocators do.
pub(crate) const GRANULE: u64 = 512;

pub(crate) fn size(bytes: u64) -> Result<usize, DeviceError> {
    usize::try_from(bytes).map_err(|_| DeviceError::new(Why::TooLarge, "a size on this machine"))
}
