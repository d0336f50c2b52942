//! Notices that the program is about to limit its system calls.

use crate::heap::HEAP;
use libc::{c_int, c_ulong};

/// Does what the C library's function does: one system call. Before the program gives up further
/// privileges, which it must before it installs a filter of system calls unless it is privileged,
/// the heap stops making calls that a filter for another `malloc` may not know.
///
/// # Safety
///
/// As for the C library's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn prctl(
    what: c_int,
    second: c_ulong,
    third: c_ulong,
    fourth: c_ulong,
    fifth: c_ulong,
) -> c_int {
    // A filter at address 0 is a question whether there are filters.
    let is_filter = what == libc::PR_SET_SECCOMP && (second == 1 || third != 0);
    if is_filter || what == libc::PR_SET_NO_NEW_PRIVS && second == 1 {
        HEAP.enter_sandbox();
    }
    // SAFETY: as the caller says. The C library's function has a variable number of arguments, all
    // of which are words, and passes four on as this does.
    let result = unsafe { libc::syscall(libc::SYS_prctl, what, second, third, fourth, fifth) };
    // The system returns an int.
    c_int::try_from(result).unwrap_or(-1)
}
