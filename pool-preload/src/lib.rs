//! `libbucketpool.so`: `malloc` for programs that are not changed.
//!
//! The dynamic linker puts a preloaded library before the C library, so the program's calls of
//! `malloc`, `free` and the rest of the family come here, and those of C++'s `new` and `delete`.
//! Blocks are those of a [`CHeap`]. What it cannot serve, and all before it is started, are blocks of
//! the C library, by the names that it keeps for this purpose (`__libc_malloc`). The address tells whose
//! a block is, so no block has a header.
//!
//! ```text
//!   c.rs          malloc, free, calloc, realloc, malloc_usable_size, malloc_trim
//!   aligned.rs    memalign, aligned_alloc, posix_memalign, valloc, pvalloc
//!   cpp.rs        operator new and delete, in all forms
//!   heap.rs       the heap of the process
//!   libc_next.rs  the C library's own functions
//!   sandbox.rs    prctl, setrlimit, prlimit, by which a program tells that it limits its system calls or
//!                 its memory
//!   start.rs      reads the settings when the library is loaded
//!   unwinder.rs   for glibc 2.34
//! ```
//!
//! The one thread-local variable has its place fixed when the program starts, so to find it calls
//! nothing. Until the library is started, and if the settings say `off`, every request goes to the C
//! library.
#![cfg(all(target_os = "linux", target_env = "gnu"))]
#![expect(unsafe_code, reason = "C functions are exported and called")]

mod aligned;
mod c;
mod cpp;
mod heap;
mod libc_next;
mod sandbox;
mod start;
mod unwinder;

// For the link above.
#[expect(unused_imports, reason = "the documentation names it")]
use pool_host::CHeap;
