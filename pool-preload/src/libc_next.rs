//! The C library's own functions, which the exported ones hide.

use libc::c_int;
use std::ffi::{CStr, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

unsafe extern "C" {
    pub(crate) fn __libc_malloc(bytes: usize) -> *mut u8;
    pub(crate) fn __libc_calloc(count: usize, each: usize) -> *mut u8;
    pub(crate) fn __libc_realloc(block: *mut u8, bytes: usize) -> *mut u8;
    pub(crate) fn __libc_free(block: *mut u8);
    pub(crate) fn __libc_memalign(align: usize, bytes: usize) -> *mut u8;
}

/// A function of the next library that defines its name: one that has no second name like
/// `__libc_malloc`.
#[derive(Debug)]
pub(crate) struct Next {
    pub(crate) name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    /// Creates a function that is not looked up.
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the address of the function; null if no library defines it.
    ///
    /// The first call looks it up. `dlsym` may allocate small blocks, which the C library serves.
    #[inline]
    pub(crate) fn address(&self) -> *mut c_void {
        let known = self.address.load(Relaxed);
        if known.is_null() { self.find() } else { known }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        // SAFETY: the name ends with a zero byte.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(found, Relaxed);
        found
    }
}

static USABLE_SIZE: Next = Next::new(c"malloc_usable_size");
static TRIM: Next = Next::new(c"malloc_trim");

/// Looks the functions up. Later calls might have to wait for the lock of the dynamic linker, which
/// a thread holds while constructors of a library run.
pub(crate) fn find() {
    USABLE_SIZE.address();
    TRIM.address();
}

/// Returns the bytes that a block of the C library holds.
///
/// # Safety
///
/// The block is the C library's and in use.
pub(crate) unsafe fn usable_bytes(block: *mut u8) -> usize {
    let function = USABLE_SIZE.address();
    if function.is_null() {
        return 0;
    }
    // SAFETY: the C library's `malloc_usable_size` has this signature.
    let function: unsafe extern "C" fn(*mut u8) -> usize = unsafe { mem::transmute(function) };
    // SAFETY: as the caller says.
    unsafe { function(block) }
}

/// Has the C library give free memory back. Returns whether any went.
pub(crate) fn trim(pad: usize) -> bool {
    let function = TRIM.address();
    if function.is_null() {
        return false;
    }
    // SAFETY: the C library's `malloc_trim` has this signature.
    let function: unsafe extern "C" fn(usize) -> c_int = unsafe { mem::transmute(function) };
    // SAFETY: it has no preconditions.
    unsafe { function(pad) != 0 }
}

/// Returns the thread's `errno`.
pub(crate) fn errno() -> c_int {
    // SAFETY: it has no preconditions.
    let address = unsafe { libc::__errno_location() };
    // SAFETY: the address of a variable of this thread.
    unsafe { address.read() }
}

/// Sets the thread's `errno`.
pub(crate) fn set_errno(error: c_int) {
    // SAFETY: it has no preconditions.
    let address = unsafe { libc::__errno_location() };
    // SAFETY: the address of a variable of this thread.
    unsafe { address.write(error) };
}
