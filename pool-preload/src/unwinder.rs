//! A definition for GCC's unwinder, which is linked in (`build.rs`), of a function that glibc has since
//! 2.35: with it the library would need that version, and the Python module beside it 2.34.
//!
//! It finds nothing, so the unwinder looks for code by `dl_iterate_phdr`. No panic unwinds here. The
//! symbol is hidden: other libraries have glibc's.

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".globl _dl_find_object",
    ".hidden _dl_find_object",
    ".type _dl_find_object, @function",
    "_dl_find_object:",
    "mov eax, -1",
    "ret",
);
