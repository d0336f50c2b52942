//! Reads the settings when the dynamic linker loads the library, before `main`.

use crate::{cpp, heap, libc_next};

/// The dynamic linker calls what lies here, before the program's own constructors.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// Starts the heap, unless the environment says `off`.
///
/// Looking up names and registering fork handlers may allocate. The C library serves that, since
/// the heap serves no request before it is started.
extern "C" fn start() {
    cpp::is_replaced();
    libc_next::find();
    heap::HEAP.start_by_environment();
    pool_host::tracing::begin();
}
