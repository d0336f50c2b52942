//! What a library with this crate in it does when it is loaded: it stays, so that `dlclose` does not
//! unload it, and asks the dynamic linker what requests will want to know.
//!
//! The C library calls functions of this crate when a thread ends, and the background thread runs
//! others. The addresses of blocks stay reserved, for each time that the library would be loaded anew.
//! So the library is marked as `-z nodelete` marks one, which a dependency cannot ask the linker for.
//!
//! A constructor does that. `dlopen` runs it under the lock of the dynamic linker, which its own thread
//! may take again. A request must not take that lock: another thread may have it, in a constructor that
//! waits for the thread which allocates.
#![expect(unsafe_code, reason = "the dynamic linker is called through C")]

use crate::{background, system};
use std::ffi::{c_char, c_int, c_void};
use std::{hint, ptr, slice};

/// Tag in a library's dynamic section, and the flag that `-z nodelete` sets there.
const DT_FLAGS_1: usize = 0x6fff_fffb;
const DF_1_NODELETE: usize = 8;

/// The dynamic linker calls what lies here when it loads the library, and in a program before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = stay;

/// Has the linker take the constructor from a static library, of which it takes what is named.
pub(crate) fn prevent() {
    hint::black_box(&raw const CONSTRUCTOR);
}

/// Has the dynamic linker keep the library that this function is in. Does nothing in a program, whose
/// first request comes before other threads.
extern "C" fn stay() {
    let mut name: *const c_char = ptr::null();
    // SAFETY: `find` gets the address of `name`, which lives through the call.
    unsafe { libc::dl_iterate_phdr(Some(find), (&raw mut name).cast()) };
    // SAFETY: a name is null or a string that ends with a zero byte, of a library that is loaded.
    if name.is_null() || unsafe { name.read() } == 0 {
        return; // the program itself has an empty name, and a library that stays none
    }
    let how = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
    // SAFETY: as above. With `RTLD_NOLOAD`, no code is loaded or run.
    if unsafe { libc::dlopen(name, how) }.is_null() {
        // The program would take the error for its own.
        // SAFETY: `dlerror` has no preconditions.
        unsafe { libc::dlerror() };
    }
    // These take the lock, the first time.
    system::is_sanitized();
    background::find_least_stack();
}

/// Stores the name of a library at `name` if [`stay`] is in it, unless it was linked to stay. Ends the
/// search then.
#[expect(clippy::cast_possible_truncation, reason = "addresses")]
extern "C" fn find(object: *mut libc::dl_phdr_info, _: usize, name: *mut c_void) -> c_int {
    // SAFETY: `dl_iterate_phdr` passes an object that lives through the call.
    let object = unsafe { &*object };
    // SAFETY: an object has so many headers, which nobody changes.
    let headers = unsafe { slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) };
    let in_object = (stay as *const ()).addr().wrapping_sub(object.dlpi_addr as usize);
    let is_here = headers.iter().any(|header| {
        let in_header = in_object.wrapping_sub(header.p_vaddr as usize);
        header.p_type == libc::PT_LOAD && in_header < header.p_memsz as usize
    });
    if is_here && !stays(object.dlpi_addr as usize, headers) {
        // SAFETY: `stay` passed the address of such a variable.
        unsafe { name.cast::<*const c_char>().write(object.dlpi_name) };
    }
    c_int::from(is_here)
}

/// Returns whether a loaded library was linked with `-z nodelete`.
#[expect(clippy::cast_possible_truncation, reason = "addresses")]
fn stays(base: usize, headers: &[libc::Elf64_Phdr]) -> bool {
    headers.iter().filter(|header| header.p_type == libc::PT_DYNAMIC).any(|header| {
        let section = ptr::with_exposed_provenance::<[usize; 2]>(base + header.p_vaddr as usize);
        let entries = header.p_memsz as usize / size_of::<[usize; 2]>();
        // SAFETY: the library is loaded, with a section of so many entries at this address: a tag and a
        // value, both words. Only the dynamic linker has written to it, when it loaded the library.
        let entries = unsafe { slice::from_raw_parts(section, entries) };
        entries.iter().any(|[tag, value]| *tag == DT_FLAGS_1 && value & DF_1_NODELETE != 0)
    })
}
