//! A definition for GCC's unwinder, which is linked in (`build.rs`), of a function that glibc has since
//! 2.35: with it the library would need that version, and the Python module beside it 2.34.
//!
//! It finds nothing, so this unwinder unwinds no frame: a panic of the library, which would have to pass
//! functions of C, aborts the process, with its message and without a trace of calls. The symbol is hidden:
//! the program and the C++ library have glibc's.

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".globl _dl_find_object",
    ".hidden _dl_find_object",
    ".type _dl_find_object, @function",
    "_dl_find_object:",
    "mov eax, -1",
    "ret",
);
