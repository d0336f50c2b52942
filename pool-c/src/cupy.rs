//! The functions that CuPy's `CFunctionAllocator` takes, on the legacy default stream.
#![expect(unsafe_code, reason = "CuPy calls them, with pointers")]

use crate::calls::{bp_alloc, bp_free_here};
use crate::handle::Handle;
use std::ffi::{c_int, c_void};
use std::ptr;

/// Allocates for the legacy default stream, behind which CuPy's blocking streams run. Null where there is no memory.
///
/// # Safety
///
/// `pool` is null or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn bp_cupy_malloc(
    pool: *const Handle,
    bytes: usize,
    _device: c_int,
) -> *mut c_void {
    let mut at = ptr::null_mut();
    // SAFETY: as the caller promises; `at` is a local variable.
    let _ = unsafe { bp_alloc(pool, bytes, 0, ptr::null_mut(), &raw mut at) };
    at
}

/// Frees what `bp_cupy_malloc` gave.
///
/// # Safety
///
/// `pool` is null or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_cupy_free(pool: *const Handle, at: *mut c_void, _device: c_int) {
    // SAFETY: as the caller promises.
    let _ = unsafe { bp_free_here(pool, at) };
}
