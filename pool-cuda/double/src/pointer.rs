//! Pointers that callers of the C interface pass.
#![expect(unsafe_code, reason = "a C interface takes pointers")]

use std::ffi::{CStr, c_char, c_void};
use std::slice;

/// A pointer to a result.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    pub(crate) fn put(self, value: T) {
        // SAFETY: the driver's interface asks for a valid pointer here, and cudarc passes one.
        unsafe { self.0.write(value) }
    }

    /// Writes a result that the caller may do without: the pointer is null then.
    pub(crate) fn put_if_wanted(self, value: T) {
        if !self.0.is_null() {
            self.put(value);
        }
    }

    /// Returns whether the caller has passed no place for a result that the call must write.
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }
}

/// A value that a call reads, and in some calls writes.
#[repr(transparent)]
pub struct InOut<T>(*mut T);

impl<T: Copy> InOut<T> {
    pub(crate) fn get(&self) -> T {
        // SAFETY: the driver's interface asks for a valid pointer here, and callers pass one.
        unsafe { self.0.read() }
    }

    /// Returns the values of an array.
    pub(crate) fn all(&self, count: usize) -> Vec<T> {
        // SAFETY: callers pass a pointer to `count` values.
        unsafe { slice::from_raw_parts(self.0, count) }.to_vec()
    }

    pub(crate) fn put(&self, value: T) {
        // SAFETY: as above.
        unsafe { self.0.write(value) }
    }
}

/// A name.
#[repr(transparent)]
pub struct Name(*const c_char);

impl Name {
    pub(crate) fn get(&self) -> String {
        // SAFETY: tests pass a string that ends in 0 and lives through the call.
        unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned()
    }
}

/// Host memory that is read or written.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Host(*mut c_void);

// SAFETY: used by late copies on whichever thread runs the streams; the caller of the copy vouches
// for the memory until then, as he does to the driver.
unsafe impl Send for Host {}
// SAFETY: as above.
unsafe impl Sync for Host {}

impl Host {
    pub(crate) fn address(self) -> u64 {
        self.0.addr() as u64
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn at(address: u64) -> Self {
        Self(std::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(0)))
    }

    pub(crate) fn read(self, bytes: usize) -> Vec<u8> {
        // SAFETY: the caller of a copy guarantees `bytes` bytes until the copy is done.
        unsafe { slice::from_raw_parts(self.0.cast(), bytes) }.to_vec()
    }

    pub(crate) fn write(self, bytes: &[u8]) {
        // SAFETY: the caller of a copy guarantees that many bytes until the copy is done.
        let target = unsafe { slice::from_raw_parts_mut(self.0.cast(), bytes.len()) };
        target.copy_from_slice(bytes);
    }
}
