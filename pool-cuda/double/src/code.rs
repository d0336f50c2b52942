//! The driver's result codes.

use pool_core::{DeviceError, Why};
use std::ffi::c_uint;

/// `CUresult`.
pub(crate) type Code = c_uint;

pub(crate) const SUCCESS: Code = 0;
pub(crate) const INVALID_VALUE: Code = 1;
pub(crate) const OUT_OF_MEMORY: Code = 2;
pub(crate) const INVALID_DEVICE: Code = 101;
pub(crate) const INVALID_HANDLE: Code = 400;
pub(crate) const NOT_READY: Code = 600;
pub(crate) const ILLEGAL_ADDRESS: Code = 700;
pub(crate) const UNKNOWN: Code = 999;

pub(crate) fn of<T>(result: &Result<T, DeviceError>) -> Code {
    match result {
        Ok(_) => SUCCESS,
        Err(error) => match error.why {
            Why::OutOfMemory => OUT_OF_MEMORY,
            Why::Foreign => INVALID_VALUE,
            _ => UNKNOWN,
        },
    }
}
