//! The C library's own functions, and those of the C++ library, which the exported ones hide.

use libc::{c_char, c_int};
use std::ffi::{CStr, c_void};
use std::mem;
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

unsafe extern "C" {
    pub(crate) fn __libc_malloc(bytes: usize) -> *mut u8;
    pub(crate) fn __libc_calloc(count: usize, each: usize) -> *mut u8;
    pub(crate) fn __libc_realloc(block: *mut u8, bytes: usize) -> *mut u8;
    pub(crate) fn __libc_free(block: *mut u8);
    pub(crate) fn __libc_memalign(align: usize, bytes: usize) -> *mut u8;
}

/// A function of a library: one that has no second name like `__libc_malloc`.
///
/// It is that of the next library that defines the name, if it is one of the libraries named here:
/// another allocator may lie in between, which does not know the C library's blocks. Else it is
/// looked up in those.
#[derive(Debug)]
pub(crate) struct Own {
    libraries: &'static [&'static CStr],
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Own {
    /// Creates a function of the first of these libraries that is loaded. It is not looked up.
    pub(crate) const fn new(libraries: &'static [&'static CStr], name: &'static CStr) -> Self {
        Self { libraries, name, address: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the address of the function; null if none of the libraries is loaded.
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
        let next = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        let found = if self.libraries.iter().any(|library| is_in(next, library)) {
            next
        } else {
            let mut found = self.libraries.iter().map(|library| self.find_in(library));
            found.find(|found| !found.is_null()).unwrap_or(ptr::null_mut())
        };
        self.address.store(found, Relaxed);
        found
    }

    fn find_in(&self, library: &CStr) -> *mut c_void {
        // SAFETY: the name ends with a zero byte. With `RTLD_NOLOAD` nothing is loaded.
        let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if handle.is_null() {
            return ptr::null_mut();
        }
        // SAFETY: the handle is that of a library which stays loaded, since its count went up.
        unsafe { libc::dlsym(handle, self.name.as_ptr()) }
    }
}

/// Whether an address is in the library with this file name.
fn is_in(address: *const c_void, library: &CStr) -> bool {
    let Some(Object { path, .. }) = object_of(address) else { return false };
    // SAFETY: a name of the dynamic linker's ends with a zero byte, and stays as long as the object: this
    // library's own needs it, or the program does.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    path.rsplit(|byte| *byte == b'/').next() == Some(library.to_bytes())
}

/// The program or a library.
#[derive(Clone, Copy)]
pub(crate) struct Object {
    /// What is added to the addresses that its file names.
    pub(crate) base: u64,
    path: *const c_char,
}

/// Returns the object that has an address; `None` if none has it.
///
/// `dladdr` would tell, too, but it compares each symbol of the object: in the C library that took half of
/// the instructions of a start.
pub(crate) fn object_of(address: *const c_void) -> Option<Object> {
    let mut search = Search { address: address.addr() as u64, found: None };
    // SAFETY: `look` has the signature that is asked for. It gets `search`, which lives through the call,
    // and which no other code uses meanwhile.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.found
}

/// What [`look`] looks for, and finds.
struct Search {
    address: u64,
    found: Option<Object>,
}

/// Looks whether the address is in this object. Returns 1 if it is, which ends the search.
unsafe extern "C" fn look(object: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: the dynamic linker passes an object of its own, which stays as it is during the call.
    let object = unsafe { &*object };
    // SAFETY: `object_of` passes a `Search`, which nothing else uses.
    let search = unsafe { &mut *search.cast::<Search>() };
    // SAFETY: the dynamic linker passes where so many headers are, in memory of the object.
    let headers = unsafe { slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) };
    let from_base = search.address.wrapping_sub(object.dlpi_addr);
    let has = |header: &libc::Elf64_Phdr| {
        header.p_type == libc::PT_LOAD && from_base.wrapping_sub(header.p_vaddr) < header.p_memsz
    };
    if headers.iter().any(has) {
        search.found = Some(Object { base: object.dlpi_addr, path: object.dlpi_name });
    }
    c_int::from(search.found.is_some())
}

const C: &[&CStr] = &[c"libc.so.6"];
static USABLE_SIZE: Own = Own::new(C, c"malloc_usable_size");
static TRIM: Own = Own::new(C, c"malloc_trim");
static ALIGNED_ALLOC: Own = Own::new(C, c"aligned_alloc");

/// Looks the functions up. Later calls might have to wait for the lock of the dynamic linker, which
/// a thread holds while constructors of a library run.
pub(crate) fn find() {
    USABLE_SIZE.address();
    TRIM.address();
    ALIGNED_ALLOC.address();
}

/// Returns what the C library's `aligned_alloc` does: it refuses an alignment that is no power of
/// two since 2.38, and rounds it up before.
pub(crate) fn aligned_alloc(align: usize, bytes: usize) -> *mut u8 {
    let function = ALIGNED_ALLOC.address();
    if function.is_null() {
        // SAFETY: the C library's `memalign` takes any alignment and size.
        return unsafe { __libc_memalign(align, bytes) };
    }
    // SAFETY: the C library's `aligned_alloc` has this signature.
    let function: extern "C" fn(usize, usize) -> *mut u8 = unsafe { mem::transmute(function) };
    function(align, bytes)
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

/// Whether a library of the process is the runtime of a sanitizer with a `malloc`, and the program uses
/// this library's instead: what is not served here is the C library's, and not the sanitizer's.
pub(crate) fn hides_sanitizer(own_malloc: *const c_void) -> bool {
    // SAFETY: the names end with a zero byte. The addresses are compared and not used.
    let find = |name: &CStr| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    let hides =
        !find(c"__sanitizer_get_allocated_size").is_null() && ptr::eq(find(c"malloc"), own_malloc);
    // What was not found left an error, which the program would take for its own.
    // SAFETY: it has no preconditions.
    unsafe { libc::dlerror() };
    hides
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
