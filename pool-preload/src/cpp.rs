//! `operator new` and `operator delete` of C++, by their names in the Itanium C++ ABI.
//!
//! A form without an exception to throw is [`malloc`], [`memalign`] or [`free`]. If there is no
//! memory, the C++ library's own form takes over, which calls the program's handler and throws.
//!
//! A program may replace some forms and rely on the C++ library's others, which call the replaced
//! ones. So once a program has replaced a form, the C++ library's own forms serve the others too.

use crate::aligned::memalign;
use crate::c::{free, malloc};
use crate::libc_next::{self, Own};
use std::ffi::{CStr, c_void};
use std::mem;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Whether the program replaces a form that the C++ library's other forms call: one of the three
/// values below.
static REPLACED: AtomicU8 = AtomicU8::new(UNKNOWN);
/// No form was called yet, and the library is not started.
const UNKNOWN: u8 = 0;
const NO: u8 = 1;
const YES: u8 = 2;

/// The forms that others call.
const CALLED: [&CStr; 8] = [
    c"_Znwm",
    c"_Znam",
    c"_ZdlPv",
    c"_ZdaPv",
    c"_ZnwmSt11align_val_t",
    c"_ZnamSt11align_val_t",
    c"_ZdlPvSt11align_val_t",
    c"_ZdaPvSt11align_val_t",
];

/// The libraries of C++. A process may have both, and a program is linked with one or none.
const LIBRARIES: &[&CStr] = &[c"libstdc++.so.6", c"libc++.so.1"];

/// Returns whether the program replaces a form that others call.
///
/// The first call looks it up. Constructors of other libraries may call a form before this library
/// is started, so each form may make that call.
#[cold]
pub(crate) fn is_replaced() -> bool {
    if REPLACED.load(Relaxed) == UNKNOWN {
        // The address of an exported function would not do: that name means the program's own function
        // if it has one.
        let library_of = |address| libc_next::object_of(address).map(|object| object.base);
        let own = library_of((&raw const REPLACED).cast());
        let is_other = |form: &CStr| {
            // SAFETY: the name ends with a zero byte.
            let first = unsafe { libc::dlsym(libc::RTLD_DEFAULT, form.as_ptr()) };
            !first.is_null() && library_of(first) != own
        };
        let replaced = CALLED.into_iter().any(is_other);
        REPLACED.store(if replaced { YES } else { NO }, Relaxed);
    }
    REPLACED.load(Relaxed) == YES
}

/// Defines forms of `operator new`: `NAME(arguments) = allocation`.
macro_rules! new {
    ($($(#[$doc:meta])* $name:ident ($($arg:ident: $type:ty),+) = $allocation:expr;)+) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// As C++ says: the alignment is a power of two.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name($($arg: $type),+) -> *mut u8 {
            type Form = unsafe extern "C-unwind" fn($($type),+) -> *mut u8;
            // The C++ library's form. A function, so that the other way saves few registers.
            #[cold]
            #[inline(never)]
            unsafe extern "C-unwind" fn library($($arg: $type),+) -> *mut u8 {
                const NAME: &CStr = name(concat!(stringify!($name), "\0"));
                static FORM: Own = Own::new(LIBRARIES, NAME);
                if !is_replaced() {
                    let block = $allocation;
                    if !block.is_null() {
                        return block;
                    }
                }
                let form = FORM.address();
                if form.is_null() {
                    return $allocation; // a program without a C++ library has no handler either
                }
                // SAFETY: the C++ library's form of this name has this signature.
                let form = unsafe { mem::transmute::<*mut c_void, Form>(form) };
                // SAFETY: as the caller says.
                unsafe { form($($arg),+) }
            }
            if REPLACED.load(Relaxed) == NO {
                let block = $allocation;
                if !block.is_null() {
                    return block;
                }
            }
            // SAFETY: as the caller says.
            unsafe { library($($arg),+) }
        }
    )+};
}

/// Defines forms of `operator delete`: `NAME(arguments)`. The first argument is the block.
macro_rules! delete {
    ($($(#[$doc:meta])* $name:ident ($block:ident $(, $arg:ident: $type:ty)*);)+) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// As C++ says: the block comes from the form of `new` that goes with this one, and is not
        /// used again.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name($block: *mut u8 $(, $arg: $type)*) {
            type Form = unsafe extern "C-unwind" fn(*mut u8 $(, $type)*);
            // The C++ library's form. A function, so that the other way saves no registers.
            #[cold]
            #[inline(never)]
            unsafe extern "C-unwind" fn library($block: *mut u8 $(, $arg: $type)*) {
                const NAME: &CStr = name(concat!(stringify!($name), "\0"));
                static FORM: Own = Own::new(LIBRARIES, NAME);
                if !is_replaced() {
                    // SAFETY: as the caller says; `new` here is `malloc` or `memalign`.
                    return unsafe { free($block) };
                }
                let form = FORM.address();
                if form.is_null() {
                    // SAFETY: as the caller says; then `new` here was `malloc` or `memalign`.
                    return unsafe { free($block) };
                }
                // SAFETY: the C++ library's form of this name has this signature.
                let form = unsafe { mem::transmute::<*mut c_void, Form>(form) };
                // SAFETY: as the caller says.
                unsafe { form($block $(, $arg)*) }
            }
            if REPLACED.load(Relaxed) != NO {
                // SAFETY: as the caller says.
                return unsafe { library($block $(, $arg)*) };
            }
            // SAFETY: as the caller says; `new` here is `malloc` or `memalign`.
            unsafe { free($block) }
        }
    )+};
}

/// Converts a text that ends with a zero byte.
const fn name(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => c"",
    }
}

/// The value `std::nothrow`, of which only the type matters.
type NoThrow = *const c_void;

new! {
    /// `operator new(bytes)`
    _Znwm(bytes: usize) = malloc(bytes);
    /// `operator new[](bytes)`
    _Znam(bytes: usize) = malloc(bytes);
    /// `operator new(bytes, nothrow)`
    _ZnwmRKSt9nothrow_t(bytes: usize, nothrow: NoThrow) = malloc(bytes);
    /// `operator new[](bytes, nothrow)`
    _ZnamRKSt9nothrow_t(bytes: usize, nothrow: NoThrow) = malloc(bytes);
    /// `operator new(bytes, align)`
    _ZnwmSt11align_val_t(bytes: usize, align: usize) = memalign(align, bytes);
    /// `operator new[](bytes, align)`
    _ZnamSt11align_val_t(bytes: usize, align: usize) = memalign(align, bytes);
    /// `operator new(bytes, align, nothrow)`
    _ZnwmSt11align_val_tRKSt9nothrow_t(bytes: usize, align: usize, nothrow: NoThrow) =
        memalign(align, bytes);
    /// `operator new[](bytes, align, nothrow)`
    _ZnamSt11align_val_tRKSt9nothrow_t(bytes: usize, align: usize, nothrow: NoThrow) =
        memalign(align, bytes);
}

delete! {
    /// `operator delete(block)`
    _ZdlPv(block);
    /// `operator delete[](block)`
    _ZdaPv(block);
    /// `operator delete(block, bytes)`. The address tells where the block is, so the size is not
    /// needed, and a wrong one does no harm.
    _ZdlPvm(block, bytes: usize);
    /// `operator delete[](block, bytes)`
    _ZdaPvm(block, bytes: usize);
    /// `operator delete(block, nothrow)`
    _ZdlPvRKSt9nothrow_t(block, nothrow: NoThrow);
    /// `operator delete[](block, nothrow)`
    _ZdaPvRKSt9nothrow_t(block, nothrow: NoThrow);
    /// `operator delete(block, align)`
    _ZdlPvSt11align_val_t(block, align: usize);
    /// `operator delete[](block, align)`
    _ZdaPvSt11align_val_t(block, align: usize);
    /// `operator delete(block, bytes, align)`
    _ZdlPvmSt11align_val_t(block, bytes: usize, align: usize);
    /// `operator delete[](block, bytes, align)`
    _ZdaPvmSt11align_val_t(block, bytes: usize, align: usize);
    /// `operator delete(block, align, nothrow)`
    _ZdlPvSt11align_val_tRKSt9nothrow_t(block, align: usize, nothrow: NoThrow);
    /// `operator delete[](block, align, nothrow)`
    _ZdaPvSt11align_val_tRKSt9nothrow_t(block, align: usize, nothrow: NoThrow);
}
