//! The functions through which NumPy allocates the data of its arrays (NEP 49).
//!
//! Blocks from 64 KiB are a heap's, smaller ones the C library's. An array keeps the handler that
//! it was made with, and the handler keeps the heap, so arrays may outlive the pool.
#![expect(unsafe_code, reason = "NumPy calls C functions, and is called through its table")]

use crate::heap::Heap;
use pool_host::PageHeap;
use pyo3::exceptions::{PyImportError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::{ffi, types::PyCapsule};
use std::ffi::{CStr, c_char, c_uint, c_void};
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// The name that NumPy asks of such a capsule.
const CAPSULE: &CStr = c"mem_handler";
/// Name of the handler, as `numpy.core.multiarray.get_handler_name` returns it.
const NAME: &CStr = c"bucketpool";
/// Version of the struct that NEP 49 describes.
const VERSION: u8 = 1;
/// Place of `PyDataMem_SetHandler` in NumPy's table of functions (since 1.22).
const SET_HANDLER: usize = 304;
/// Place of `PyArray_GetNDArrayCFeatureVersion`, and what it returns from NumPy 1.22 on.
const FEATURE_VERSION: usize = 211;
const FEATURES_OF_1_22: c_uint = 0x0f;
/// Size in bytes from which arrays are in the heap.
const LARGE: usize = 64 << 10;
/// Alignment in bytes of an array's data.
const ALIGN: usize = 16;

/// NumPy's `PyDataMemAllocator`.
#[repr(C)]
struct Allocator {
    context: *const PageHeap,
    malloc: unsafe extern "C" fn(*const PageHeap, usize) -> *mut c_void,
    calloc: unsafe extern "C" fn(*const PageHeap, usize, usize) -> *mut c_void,
    realloc: unsafe extern "C" fn(*const PageHeap, *mut c_void, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*const PageHeap, *mut c_void, usize),
}

/// NumPy's `PyDataMem_Handler`, and what keeps it alive.
#[repr(C)]
struct Handler {
    name: [c_char; 127],
    version: u8,
    allocator: Allocator,
    /// Behind what NumPy reads.
    heap: Arc<Heap>,
}

/// Creates a capsule with a handler that allocates from a heap, for `set_handler`.
pub(crate) fn capsule<'py>(py: Python<'py>, heap: &Arc<Heap>) -> PyResult<Bound<'py, PyAny>> {
    let mut name = [0; 127];
    for (to, from) in name.iter_mut().zip(NAME.to_bytes()) {
        *to = c_char::from_ne_bytes([*from]);
    }
    let allocator =
        Allocator { context: ptr::from_ref(heap.pages()), malloc, calloc, realloc, free };
    let handler = Handler { name, version: VERSION, allocator, heap: Arc::clone(heap) };
    let handler = Box::into_raw(Box::new(handler));
    // SAFETY: this thread holds the interpreter lock (`py`). The pointer is not null, and the name
    // lives as long as the process.
    let capsule = unsafe { ffi::PyCapsule_New(handler.cast(), CAPSULE.as_ptr(), Some(end)) };
    // SAFETY: `PyCapsule_New` returned a new reference, or null with an error that this fetches.
    let capsule = unsafe { Bound::from_owned_ptr_or_err(py, capsule) };
    if capsule.is_err() {
        // SAFETY: no capsule took the handler.
        drop(unsafe { Box::from_raw(handler) });
    }
    capsule
}

/// Ends a handler: neither a context nor an array refers to its capsule.
unsafe extern "C" fn end(capsule: *mut ffi::PyObject) {
    // SAFETY: Python passes the capsule, which `capsule` made with this name.
    let handler = unsafe { ffi::PyCapsule_GetPointer(capsule, CAPSULE.as_ptr()) };
    if !handler.is_null() {
        // SAFETY: the pointer is that of `capsule`, and Python calls this once.
        drop(unsafe { Box::from_raw(handler.cast::<Handler>()) });
    }
}

/// Sets the handler of the current context. Returns the handler before it.
///
/// `handler` is `Pool._handler()`, a handler that this function has returned, or `None` for NumPy's
/// own.
#[pyfunction]
#[pyo3(signature = (handler, /))]
pub(crate) fn set_handler<'py>(
    py: Python<'py>,
    handler: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    type FeatureVersion = unsafe extern "C" fn() -> c_uint;
    type SetHandler = unsafe extern "C" fn(*mut ffi::PyObject) -> *mut ffi::PyObject;
    let numpy = py.import("numpy")?;
    // NumPy 2 has another name for it.
    let core = if numpy.hasattr("_core")? { "_core" } else { "core" };
    let table = py.import(format!("numpy.{core}._multiarray_umath"))?.getattr("_ARRAY_API")?;
    let table = table.cast::<PyCapsule>()?;
    // SAFETY: the capsule has no name, and holds the address of NumPy's table.
    let table = unsafe { ffi::PyCapsule_GetPointer(table.as_ptr(), ptr::null()) };
    let Some(table) = NonNull::new(table.cast::<*const c_void>()) else {
        return Err(PyErr::fetch(py));
    };
    // SAFETY: the table of each NumPy since 1.4 has this entry.
    let entry = unsafe { table.add(FEATURE_VERSION) };
    // SAFETY: as above; the entries are addresses of functions.
    let version = unsafe { entry.read() };
    // SAFETY: `PyArray_GetNDArrayCFeatureVersion` has this signature.
    let version = unsafe { mem::transmute::<*const c_void, FeatureVersion>(version) };
    // SAFETY: it has no preconditions.
    if unsafe { version() } < FEATURES_OF_1_22 {
        let version = numpy.getattr("__version__")?;
        let why = format!("NumPy {version} has no data handlers; expected 1.22 or later");
        return Err(PyImportError::new_err(why));
    }
    // SAFETY: the table has this entry since NumPy 1.22, as was checked above.
    let entry = unsafe { table.add(SET_HANDLER) };
    // SAFETY: as above; the entries are addresses of functions.
    let set = unsafe { entry.read() };
    // SAFETY: `PyDataMem_SetHandler` has this signature.
    let set = unsafe { mem::transmute::<*const c_void, SetHandler>(set) };
    let handler = handler.map_or(ptr::null_mut(), Bound::as_ptr);
    // SAFETY: this thread holds the interpreter lock. NumPy checks that it is a capsule of the name
    // when it allocates; the package passes such only.
    let before = unsafe { set(handler) };
    // SAFETY: NumPy returned a new reference, or null with an error that this fetches.
    let before = unsafe { Bound::from_owned_ptr_or_err(py, before) };
    before.map_err(|error| {
        let why = format!("NumPy did not accept the handler: {error}");
        PyRuntimeError::new_err(why)
    })
}

/// Returns the heap of a handler.
///
/// # Safety
///
/// `context` is the one of a handler that NumPy refers to.
unsafe fn heap_of<'a>(context: *const PageHeap) -> &'a PageHeap {
    // SAFETY: as the caller says; heaps live as long as the process.
    unsafe { &*context }
}

/// Returns a block of the C library or null.
fn small(bytes: usize) -> *mut c_void {
    // SAFETY: any size is allowed.
    unsafe { libc::malloc(bytes) }
}

unsafe extern "C" fn malloc(context: *const PageHeap, bytes: usize) -> *mut c_void {
    if bytes < LARGE {
        return small(bytes);
    }
    // SAFETY: NumPy passes the handler's context.
    let block = unsafe { heap_of(context) }.allocate(bytes, ALIGN);
    block.map_or_else(|| small(bytes), |block| block.as_ptr().cast())
}

unsafe extern "C" fn calloc(context: *const PageHeap, count: usize, each: usize) -> *mut c_void {
    if let Some(bytes) = count.checked_mul(each).filter(|bytes| *bytes >= LARGE)
        // SAFETY: NumPy passes the handler's context.
        && let Some(block) = unsafe { heap_of(context) }.allocate_zeroed(bytes, ALIGN)
    {
        return block.as_ptr().cast();
    }
    // SAFETY: any sizes are allowed.
    unsafe { libc::calloc(count, each) }
}

unsafe extern "C" fn realloc(
    context: *const PageHeap,
    block: *mut c_void,
    bytes: usize,
) -> *mut c_void {
    // SAFETY: NumPy passes the handler's context.
    let heap = unsafe { heap_of(context) };
    let own = NonNull::new(block.cast::<u8>()).filter(|block| heap.has(block.as_ptr()));
    let Some(own) = own else {
        // SAFETY: NumPy passes a block of this handler or null, and this one is not the heap's. A
        // block that grows large stays the C library's.
        return unsafe { libc::realloc(block, bytes) };
    };
    // SAFETY: NumPy passes a block of this handler that is in use, and uses only the result.
    let resize = || unsafe { heap.resize(own, bytes, ALIGN) };
    if bytes >= LARGE
        && let Some(resized) = resize()
    {
        return resized.as_ptr().cast();
    }
    let moved = small(bytes.max(1));
    if !moved.is_null() {
        // SAFETY: the block is in use.
        let kept = unsafe { heap.usable_bytes(own) }.min(bytes);
        // SAFETY: both blocks are in use and hold that many bytes.
        unsafe { moved.copy_from_nonoverlapping(block, kept) };
        // SAFETY: NumPy uses only the result.
        unsafe { heap.free(own) };
    }
    moved
}

unsafe extern "C" fn free(context: *const PageHeap, block: *mut c_void, _bytes: usize) {
    // SAFETY: NumPy passes the handler's context.
    let heap = unsafe { heap_of(context) };
    match NonNull::new(block.cast::<u8>()) {
        // SAFETY: NumPy passes a block of this handler, and does not use it again.
        Some(own) if heap.has(own.as_ptr()) => unsafe { heap.free(own) },
        // SAFETY: as above; what is not the heap's is the C library's.
        _ => unsafe { libc::free(block) },
    }
}
