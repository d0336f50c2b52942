//! Reads the settings when the dynamic linker loads the library, before `main`.

use crate::{c, cpp, heap, libc_next};

/// The dynamic linker calls what lies here, before the program's own constructors.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// Starts the heap, unless the environment says `off`.
///
/// Looking up names and registering fork handlers may allocate. The C library serves that, since
/// the heap serves no request before it is started.
extern "C" fn start() {
    forget_foreign_settings();
    cpp::is_replaced();
    libc_next::find();
    if !heap::HEAP.start_by_environment() && libc_next::hides_sanitizer(c::malloc as *const _) {
        let line =
            b"bucketpool: a sanitizer does not see the blocks of a program with this library: run \
                     it without\n";
        // SAFETY: the call reads that many bytes of the line. If it fails, nothing is told.
        unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
    }
    pool_host::tracing::begin();
}

/// Removes the settings from the environment of a program with privileges that the user who started
/// it may lack (`AT_SECURE`).
///
/// The library reads no settings there. A program that such a program starts may have all of its
/// privileges and would read them, so they go, as the dynamic linker removes `LD_PRELOAD`.
fn forget_foreign_settings() {
    // SAFETY: `getauxval` takes a number and reads what the kernel passed to the process.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        // SAFETY: the name ends with a zero byte. The dynamic linker runs this before `main`. A
        // library whose constructor has started a thread by then, and lets it read the environment,
        // does so beside all other constructors, too.
        unsafe { libc::unsetenv(c"BUCKETPOOL_HOST".as_ptr()) };
    }
}
