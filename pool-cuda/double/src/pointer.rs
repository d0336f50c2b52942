//! Pointers that callers of the C interface pass: the only unsafe code of the double.
#![expect(unsafe_code, reason = "a C interface takes pointers")]

use std::ffi::c_void;
use std::slice;

/// Where a result goes.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    pub(crate) fn put(self, value: T) {
        // SAFETY: the driver's interface asks for a valid pointer here, and cudarc passes one.
        unsafe { self.0.write(value) }
    }
}

/// Host memory that is read.
#[repr(transparent)]
pub struct Source(*const c_void);

impl Source {
    pub(crate) fn read(self, bytes: usize) -> Vec<u8> {
        // SAFETY: the caller of a copy vouches for so many bytes, and waits for this call.
        unsafe { slice::from_raw_parts(self.0.cast(), bytes) }.to_vec()
    }
}

/// Host memory that is written.
#[repr(transparent)]
pub struct Target(*mut c_void);

impl Target {
    pub(crate) fn write(self, bytes: &[u8]) {
        // SAFETY: the caller of a copy vouches for so many bytes, and waits for this call.
        let target = unsafe { slice::from_raw_parts_mut(self.0.cast(), bytes.len()) };
        target.copy_from_slice(bytes);
    }
}
