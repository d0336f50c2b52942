//! Forked children of a process that has opened a device.

use pool_core::{DeviceError, Why, forks, watch_forks};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The [`forks`] of the process that opened a device first. In its children the driver's handles are
/// invalid, and its calls undefined (CUDA C Programming Guide, "Initialization").
static OPENED_IN: AtomicU32 = AtomicU32::new(NOT_OPENED);
const NOT_OPENED: u32 = 0;

/// Returns the error of a process that was forked after a device was opened.
pub(crate) fn forked() -> Option<DeviceError> {
    let fault = DeviceError::new(Why::Forked, "a call to the driver");
    is_forked().then_some(fault)
}

/// Returns whether this is a child of a process that has opened a device.
#[inline]
fn is_forked() -> bool {
    let opened_in = OPENED_IN.load(Relaxed);
    opened_in != NOT_OPENED && opened_in != forks()
}

/// Notes the process in which a device is opened first.
pub(crate) fn note_process() {
    watch_forks();
    // A child of a process that has opened a device is never the first.
    let _ = OPENED_IN.compare_exchange(NOT_OPENED, forks(), Relaxed, Relaxed);
}

#[cfg(test)]
#[expect(unsafe_code, reason = "a process is forked")]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn a_child_that_no_handler_has_seen_is_forked() {
        note_process();
        assert!(!is_forked());
        // SAFETY: a child with one thread, which makes no call of the C library that needs another.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        if child == 0 {
            note_process(); // as if the child opened a device itself
            // SAFETY: `_exit` has no preconditions.
            unsafe { libc::_exit(i32::from(!is_forked())) };
        }
        let (child, mut status) = (i32::try_from(child).unwrap_or(-1), 1);
        // SAFETY: `child` is this process's child, and `status` is valid for the write.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((waited, status), (child, 0));
    }
}
