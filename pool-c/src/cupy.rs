//! The functions that CuPy's `CFunctionAllocator` takes, on the legacy default stream.
#![expect(unsafe_code, reason = "CuPy calls them, with pointers")]

use crate::calls::{bp_alloc, bp_free_here};
use crate::handle::{self, Handle, handle_of};
use crate::status::{Failure, Status, told};
use std::ffi::{c_int, c_void};
use std::ptr;

/// The pool that CuPy means: that which it was given, if it is of this device, or the one of the device.
///
/// # Safety
///
/// `pool` is null or alive.
unsafe fn meant(pool: *const Handle, device: c_int) -> Result<*const Handle, Failure> {
    if pool.is_null() {
        return Ok(ptr::from_ref(handle::of_device(None, device)?));
    }
    // SAFETY: as the caller promises.
    let (_, has) = unsafe { handle_of(pool) }?.pool().dl_device();
    if has == device {
        return Ok(pool);
    }
    let text = format!(
        "device {device}, with a pool of device {has}; expected a null pool, or one of its device"
    );
    Err(Failure::invalid(text))
}

/// Allocates for the legacy default stream, behind which CuPy's blocking streams run. Null where there is no memory.
/// `pool`: the allocator's `param`; null for the one pool of the device.
///
/// # Safety
///
/// `pool` is null or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn bp_cupy_malloc(
    pool: *const Handle,
    bytes: usize,
    device: c_int,
) -> *mut c_void {
    let (mut own, mut at) = (ptr::null(), ptr::null_mut());
    let said = told(|| {
        // SAFETY: as the caller promises.
        own = unsafe { meant(pool, device) }?;
        Ok(())
    });
    if said == Status::BpOk {
        // SAFETY: as the caller promises; `at` is a local variable.
        let _ = unsafe { bp_alloc(own, bytes, 0, ptr::null_mut(), &raw mut at) };
    }
    at
}

/// Frees what `bp_cupy_malloc` gave for the same pool and device.
///
/// # Safety
///
/// `pool` is null or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_cupy_free(pool: *const Handle, at: *mut c_void, device: c_int) {
    let _ = told(|| {
        // SAFETY: as the caller promises.
        let own = unsafe { meant(pool, device) }?;
        // SAFETY: as the caller promises.
        let _ = unsafe { bp_free_here(own, at) };
        Ok(())
    });
}
