//! Blocks as tensors of `DLPack` 1.1, which other libraries take without a copy.
#![expect(unsafe_code, reason = "the structs are C's, and are freed by their deleters")]

use crate::calls::{bp_free_here, bp_pool_clone, bp_pool_drop};
use crate::handle::{Handle, give, known};
use crate::status::{Failure, Status, told};
use std::ffi::{c_int, c_void};
use std::{ptr, slice};

/// The version of the structs (`dlpack.h`).
const VERSION: [u32; 2] = [1, 1];
/// The most axes of a tensor.
const MAX_AXES: usize = 64;

/// `DLTensor`.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    axes: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: unsafe extern "C" fn(*mut Managed),
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct Versioned {
    version: [u32; 2],
    context: *mut c_void,
    deleter: unsafe extern "C" fn(*mut Versioned),
    flags: u64,
    tensor: Tensor,
}

/// What a tensor has for as long as another library has it.
struct Kept {
    pool: *const Handle,
    at: *mut c_void,
    shape: Box<[i64]>,
    strides: Box<[i64]>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: the pool has an owner in this tensor, and the block a holder.
        let _ = unsafe { bp_free_here(self.pool, self.at) };
        // SAFETY: as above; the call is the last with it.
        let _ = unsafe { bp_pool_drop(self.pool) };
    }
}

/// Frees what a tensor kept.
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: `bp_dlpack` made the box, and who has the tensor calls this once.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: as above.
    drop(unsafe { Box::from_raw(managed.context.cast::<Kept>()) });
}

/// Frees what a tensor kept.
unsafe extern "C" fn delete_versioned(managed: *mut Versioned) {
    // SAFETY: `bp_dlpack` made the box, and who has the tensor calls this once.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: as above.
    drop(unsafe { Box::from_raw(managed.context.cast::<Kept>()) });
}

/// The elements of a tensor: `DLDataType`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Element {
    /// The kind: 0 signed, 1 unsigned, 2 float, 4 bfloat, 5 complex, 6 bool.
    pub code: u8,
    /// Bits of each.
    pub bits: u8,
    /// 1, but for vectors.
    pub lanes: u16,
}

/// Makes a tensor of a block, which lives until the deleter of the tensor was called, on any thread: a
/// `DLManagedTensorVersioned` where `versioned` is not 0, else a `DLManagedTensor`. The consumer's stream is not
/// ordered here: `bp_use` does that. `at`: an address inside of a block, or null for a tensor without elements.
///
/// # Safety
///
/// `pool` is null or alive; `shape` and `strides` have `axes` numbers, and `strides` may be null; `tensor` is null or a
/// place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_dlpack(
    pool: *const Handle,
    at: *mut c_void,
    axes: c_int,
    shape: *const i64,
    strides: *const i64,
    element: Element,
    versioned: c_int,
    tensor: *mut *mut c_void,
) -> Status {
    told(|| {
        // SAFETY: as the caller promises.
        let own = unsafe { known(pool) }?;
        let (device_type, device_id) = own.dl_device();
        let count = usize::try_from(axes).ok().filter(|count| *count <= MAX_AXES);
        let wrong = || Failure::invalid(format!("{axes} axes; expected 0 to {MAX_AXES}"));
        let count = count.ok_or_else(wrong)?;
        if tensor.is_null() || (shape.is_null() && count > 0) {
            return Err(Failure::invalid("a null pointer for the tensor, or for its shape"));
        }
        // SAFETY: as the caller promises.
        let shape = unsafe { numbers(shape, count) }.unwrap_or_default();
        // SAFETY: as the caller promises.
        let strides = unsafe { numbers(strides, count) };
        let strides = strides.unwrap_or_else(|| compact(&shape));
        let base: *mut c_void = match at.is_null() {
            true => ptr::null_mut(),
            false => ptr::with_exposed_provenance_mut(own.find(at.addr())?.base),
        };
        if !base.is_null() {
            own.hold(base.addr())?;
        }
        // SAFETY: the pool is alive.
        let pool = unsafe { bp_pool_clone(pool) };
        let mut kept = Box::new(Kept { pool, at: base, shape, strides });
        let new = Tensor {
            data: at,
            device_type,
            device_id,
            axes,
            code: element.code,
            bits: element.bits,
            lanes: element.lanes,
            shape: kept.shape.as_mut_ptr(),
            strides: kept.strides.as_mut_ptr(),
            byte_offset: 0,
        };
        let context = Box::into_raw(kept).cast();
        let made: *mut c_void = if versioned == 0 {
            Box::into_raw(Box::new(Managed { tensor: new, context, deleter: delete })).cast()
        } else {
            let (version, deleter) = (VERSION, delete_versioned as _);
            let made = Versioned { version, context, deleter, flags: 0, tensor: new };
            Box::into_raw(Box::new(made)).cast()
        };
        // SAFETY: as the caller promises.
        unsafe { give(made, tensor) }
    })
}

/// Numbers of C.
///
/// # Safety
///
/// Null, or so many numbers.
unsafe fn numbers(at: *const i64, count: usize) -> Option<Box<[i64]>> {
    // SAFETY: as the caller promises.
    (!at.is_null()).then(|| unsafe { slice::from_raw_parts(at, count) }.into())
}

/// The strides of elements that lie behind each other, the last axis first.
fn compact(shape: &[i64]) -> Box<[i64]> {
    let mut strides = vec![1_i64; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(shape[axis]);
    }
    strides.into()
}
