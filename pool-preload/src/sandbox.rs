//! Notices that the program is about to limit its system calls, and that it has limited its memory.

use crate::heap::HEAP;
use libc::{c_int, c_uint, c_ulong};

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
    if what == libc::PR_SET_SECCOMP && second == c_ulong::from(libc::SECCOMP_MODE_STRICT) {
        HEAP.enter_strict_sandbox();
    } else if is_filter || what == libc::PR_SET_NO_NEW_PRIVS && second == 1 {
        HEAP.enter_sandbox();
    }
    // SAFETY: as the caller says. The C library's function has a variable number of arguments, all
    // of which are words, and passes four on as this does.
    let result = unsafe { libc::syscall(libc::SYS_prctl, what, second, third, fourth, fifth) };
    // The system returns an int.
    c_int::try_from(result).unwrap_or(-1)
}

/// Does what the C library's function does: one system call. The heap heeds the limit if it is one of
/// this process.
///
/// # Safety
///
/// As for the C library's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn prlimit64(
    process: libc::pid_t,
    resource: c_uint,
    limit: *const libc::rlimit64,
    before: *mut libc::rlimit64,
) -> c_int {
    // SAFETY: as the caller says: the address of a limit, or null.
    let new = unsafe { limit.as_ref() }.map(|limit| limit.rlim_cur);
    let addresses = new.filter(|_| resource == libc::RLIMIT_AS);
    if let Some(bytes) = addresses.filter(|_| process == 0) {
        // Other threads may map memory at once when the limit is in force.
        HEAP.expect_address_limit(bytes);
    }
    // SAFETY: as the caller says.
    let result = unsafe { libc::syscall(libc::SYS_prlimit64, process, resource, limit, before) };
    if result == 0 {
        // To ask whose number that is would take calls which a filter may not permit; and it may be a
        // thread's.
        if let Some(bytes) = addresses.filter(|bytes| process == 0 || is_own_limit(*bytes)) {
            HEAP.heed_address_limit(bytes);
        }
        if new.is_some() && resource == libc::RLIMIT_DATA {
            HEAP.heed_limits();
        }
    }
    // The system returns an int.
    c_int::try_from(result).unwrap_or(-1)
}

/// Returns whether this process may have so many bytes of addresses.
fn is_own_limit(bytes: u64) -> bool {
    let mut own = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    let (none, place) = (std::ptr::null::<libc::rlimit64>(), &raw mut own);
    // SAFETY: asks for a limit of this process. `place` is a local variable that may be written.
    let asked = unsafe { libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_AS, none, place) };
    asked == 0 && own.rlim_cur == bytes
}

/// Does what [`prlimit64`] does. The types are the same where a word has 64 bits.
///
/// # Safety
///
/// As for the C library's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn prlimit(
    process: libc::pid_t,
    resource: c_uint,
    limit: *const libc::rlimit64,
    before: *mut libc::rlimit64,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { prlimit64(process, resource, limit, before) }
}

/// Does what [`prlimit64`] does, for this process.
///
/// # Safety
///
/// As for the C library's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn setrlimit(resource: c_uint, limit: *const libc::rlimit64) -> c_int {
    // SAFETY: as the caller says.
    unsafe { prlimit64(0, resource, limit, std::ptr::null_mut()) }
}

/// Does what [`setrlimit`] does.
///
/// # Safety
///
/// As for the C library's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn setrlimit64(
    resource: c_uint,
    limit: *const libc::rlimit64,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { prlimit64(0, resource, limit, std::ptr::null_mut()) }
}
