//! What a function says: a code, and the text of the last error of the thread.

use pool_core::error::{AllocError, ConfigError, Verdict};
use pool_core::{DeviceError, Why};
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// What a function says. `bp_last_error` says more.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    BpOk = 0,
    /// The device or a limit has too little memory.
    BpOutOfMemory = 1,
    /// An argument is none that the function takes.
    BpInvalid = 2,
    /// No block of the pool has this address, or no id is known.
    BpUnknown = 3,
    /// A stream of another device, or the default stream of another thread.
    BpForeign = 4,
    /// It would break a capture, or wait for work that was not submitted.
    BpNotSubmitted = 5,
    /// The device, or this build, cannot do it.
    BpUnsupported = 6,
    /// The device is lost.
    BpLost = 7,
    /// This process is a forked child: nothing was done.
    BpForked = 8,
    /// The pool has noticed a fault of its own, or a call has panicked: report it.
    BpBroken = 9,
    /// Another refusal; the text says which.
    BpOther = 10,
}

/// The last error of a thread.
#[repr(C)]
#[derive(Debug)]
pub struct ErrorDetails {
    /// `sizeof` of this struct, which the caller sets.
    pub size: usize,
    /// The status that the function returned.
    pub status: Status,
    /// The driver's own code, or 0.
    pub driver_code: i64,
    /// Why memory was refused: "Limit", "Rounding", "Fragmentation", .., or "".
    pub verdict: *const c_char,
    /// The error in words. Both texts are the thread's, until its next error.
    pub text: *const c_char,
}

/// A refusal on its way to the caller.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    driver_code: i64,
    verdict: Option<Verdict>,
    text: String,
}

impl Failure {
    pub(crate) fn new(status: Status, text: impl Into<String>) -> Self {
        Self { status, driver_code: 0, verdict: None, text: text.into() }
    }

    /// An argument that is none.
    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self::new(Status::BpInvalid, text)
    }

    /// No block of the pool has an address.
    pub(crate) fn unknown(at: usize) -> Self {
        let text = format!(
            "no block of this pool at {at:#x}; expected an address that it gave and that was not freed"
        );
        Self::new(Status::BpUnknown, text)
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        Self { driver_code: error.code, ..Self::new(of(error.why), error.to_string()) }
    }
}

impl From<AllocError> for Failure {
    fn from(error: AllocError) -> Self {
        let (code, verdict) = (error.figures().cause.code, Some(error.verdict()));
        Self { driver_code: code, verdict, ..Self::new(of(error.why()), error.to_string()) }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::invalid(error.to_string())
    }
}

fn of(why: Why) -> Status {
    match why {
        Why::OutOfMemory | Why::OutOfAddresses | Why::Limit(_) | Why::TooLarge | Why::TimedOut => {
            Status::BpOutOfMemory
        }
        Why::OutOfRange | Why::Unaligned | Why::WrongLength | Why::ShapeMismatch => {
            Status::BpInvalid
        }
        Why::Unsupported => Status::BpUnsupported,
        Why::Lost => Status::BpLost,
        Why::Forked => Status::BpForked,
        Why::Foreign => Status::BpForeign,
        Why::NotSubmitted => Status::BpNotSubmitted,
        Why::Broken => Status::BpBroken,
        _ => Status::BpOther,
    }
}

/// The last error of a thread, with its texts as C reads them.
struct Last {
    status: Status,
    driver_code: i64,
    verdict: CString,
    text: CString,
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

static FORKED: AtomicBool = AtomicBool::new(false);

/// Whether this process is a forked child: a thread that is not there may hold any lock.
pub(crate) fn is_forked() -> bool {
    FORKED.load(Relaxed)
}

/// Has a forked child noticed. Called before the first pool is made.
#[expect(unsafe_code, reason = "the C library calls the handler")]
pub(crate) fn watch_forks() {
    extern "C" fn in_child() {
        FORKED.store(true, Relaxed);
    }
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the handler stores one word, which any process may.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// Runs the body of a function for C: notes its error, and lets no panic out. In a forked child it does nothing.
#[inline]
pub(crate) fn told(call: impl FnOnce() -> Result<(), Failure>) -> Status {
    if is_forked() {
        return Status::BpForked;
    }
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => Status::BpOk,
        Ok(Err(failure)) => note(failure),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            let text = format!("a call has panicked: {}", text.unwrap_or("no text"));
            note(Failure::new(Status::BpBroken, text))
        }
    }
}

/// Notes the error of the thread. While the thread ends there is no place for it.
#[cold]
pub(crate) fn note(failure: Failure) -> Status {
    let Failure { status, driver_code, verdict, text } = failure;
    let as_c = |text: String| CString::new(text.replace('\0', " ")).unwrap_or_default();
    let verdict = as_c(verdict.map(|verdict| format!("{verdict:?}")).unwrap_or_default());
    let last = Last { status, driver_code, verdict, text: as_c(text) };
    let _ = LAST.try_with(|known| *known.borrow_mut() = Some(last));
    status
}

/// The last error of the thread, kept while a function of the program has its text. Its drop makes it the last error
/// again.
pub(crate) struct KeptError(Option<Last>);

impl KeptError {
    pub(crate) fn take() -> Self {
        Self(LAST.try_with(|known| known.borrow_mut().take()).ok().flatten())
    }

    pub(crate) fn text(&self) -> *const c_char {
        self.0.as_ref().map_or(c"".as_ptr(), |last| last.text.as_ptr())
    }
}

impl Drop for KeptError {
    fn drop(&mut self) {
        let last = self.0.take();
        let _ = LAST.try_with(|known| *known.borrow_mut() = last);
    }
}

/// The last error of the thread; `BpOk` and empty texts if there was none.
pub(crate) fn last_error(size: usize) -> ErrorDetails {
    let none = ErrorDetails {
        size,
        status: Status::BpOk,
        driver_code: 0,
        verdict: c"".as_ptr(),
        text: c"".as_ptr(),
    };
    if is_forked() {
        let text = c"this process is a forked child, and cannot use the pool";
        return ErrorDetails { status: Status::BpForked, text: text.as_ptr(), ..none };
    }
    let details = LAST.try_with(|known| {
        known.borrow().as_ref().map(|last| ErrorDetails {
            size,
            status: last.status,
            driver_code: last.driver_code,
            verdict: last.verdict.as_ptr(),
            text: last.text.as_ptr(),
        })
    });
    details.ok().flatten().unwrap_or(none)
}
