//! Sizes and alignments of the driver's memory.

use pool_core::{DeviceError, Why};

/// Bytes that sizes are rounded up to, as CUDA's and `PyTorch`'s allocators do.
pub(crate) const GRANULE: u64 = 512;

pub(crate) fn size(bytes: u64) -> Result<usize, DeviceError> {
    usize::try_from(bytes).map_err(|_| DeviceError::new(Why::TooLarge, "a size on this machine", 0))
}

pub(crate) fn aligned(alignment: u64, most: u64) -> Result<(), DeviceError> {
    if alignment.is_power_of_two() && alignment <= most {
        return Ok(());
    }
    Err(DeviceError::new(Why::Unsupported, "alignment of CUDA memory", 0))
}
