//! A thread of the library: how it is made, and the privileges that it gives up.
//!
//! The program does not know of the thread, so nothing that the program does to its own threads
//! reaches it: a raw `capset`, `prctl`, `sched_setscheduler`. So it takes little with it.

use crate::system;
use std::ffi::{c_int, c_long, c_void};
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// The function of a thread.
pub(super) type Run = extern "C" fn(*mut c_void) -> *mut c_void;

/// glibc's `__pthread_get_minstack`; null before [`find_least_stack`], and with another C library.
static LEAST_STACK: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Looks up how glibc tells the size of the least stack. `dlsym` may allocate, and may wait for the
/// lock of the dynamic linker, so a request that starts a thread must not call it.
pub(crate) fn find_least_stack() {
    if cfg!(all(target_env = "gnu", not(miri))) && LEAST_STACK.load(Relaxed).is_null() {
        // SAFETY: `dlsym` reads a name that ends with a zero byte.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__pthread_get_minstack".as_ptr()) };
        LEAST_STACK.store(found, Relaxed);
    }
}

/// Returns the bytes of the least stack; `None` if the C library does not tell.
///
/// glibc takes the thread-local variables of the program and its libraries out of the stack, and
/// counts them here.
fn least_stack(attributes: &libc::pthread_attr_t) -> Option<usize> {
    type LeastStack = unsafe extern "C" fn(*const libc::pthread_attr_t) -> usize;
    let function = LEAST_STACK.load(Relaxed);
    if function.is_null() {
        return None;
    }
    // SAFETY: glibc's `__pthread_get_minstack` has this signature; Rust's standard library calls it
    // too.
    let function = unsafe { mem::transmute::<*mut c_void, LeastStack>(function) };
    // SAFETY: the attributes are initialised.
    Some(unsafe { function(attributes) })
}

/// Creates a detached thread with a stack of at least `stack` bytes, which blocks all signals, so
/// that handlers of the program never run on it. Returns whether the system created it.
///
/// The stack has the usual size, which the program or `ulimit -s` chooses, if the C library does
/// not tell the least one.
pub(super) fn create(run: Run, stack: usize) -> bool {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: the call initialises the attributes.
    if unsafe { libc::pthread_attr_init(attributes.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: the call above succeeded, so the attributes are initialised.
    let attributes = unsafe { attributes.assume_init_mut() };
    if let Some(least) = least_stack(attributes) {
        let page = usize::try_from(system::page_bytes()).unwrap_or(4096);
        let bytes = (least + stack).next_multiple_of(page);
        // SAFETY: the attributes are initialised. A refused size leaves them as they are.
        let _ = unsafe { libc::pthread_attr_setstacksize(attributes, bytes) };
    }
    let created = create_with(run, attributes);
    // SAFETY: the attributes are initialised, and not used again.
    unsafe { libc::pthread_attr_destroy(attributes) };
    created
}

fn create_with(run: Run, attributes: &libc::pthread_attr_t) -> bool {
    let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
    let mut before = system::no_signals();
    // The new thread inherits the mask of this one.
    let block = |set: &libc::sigset_t, old: *mut libc::sigset_t| {
        // SAFETY: `set` is a reference to an initialised set. `old` is null, or points to `before`,
        // a local variable of this function that is live and not otherwise borrowed in this call.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, set, old) }
    };
    block(&system::all_signals(), &raw mut before);
    // SAFETY: `thread` is a live local variable, which the call writes to, and the attributes are
    // initialised. `run` has the signature that is asked for, and lives as long as the process.
    let failed =
        unsafe { libc::pthread_create(thread.as_mut_ptr(), attributes, run, ptr::null_mut()) != 0 };
    block(&before, ptr::null_mut());
    if failed {
        return false;
    }
    // SAFETY: `pthread_create` succeeded, so it has written a thread.
    let thread = unsafe { thread.assume_init() };
    // SAFETY: `thread` is joinable, since it was created so. No code joins or detaches it elsewhere.
    unsafe { libc::pthread_detach(thread) };
    true
}

/// Has the calling thread, which is one of the library, run as the program's main thread does, but
/// never in real time, and give up its privileges: all capabilities but two, and those that `exec`
/// would bring (`PR_SET_NO_NEW_PRIVS`).
///
/// A call that the system refuses changes nothing. Where a seccomp filter is in force, which may
/// kill a process for a call that it does not know, this makes no other call than
/// `prctl(PR_GET_SECCOMP)`.
pub(crate) fn confine() {
    const FILTERED: c_long = 2;
    if cfg!(miri) {
        return;
    }
    // SAFETY: `PR_GET_SECCOMP` takes no argument, and touches no memory.
    if unsafe { system::prctl(libc::PR_GET_SECCOMP, 0) } == FILTERED {
        return;
    }
    system::keeping_errno(|| {
        // Before the capabilities go, one of which permits a higher priority.
        run_as_main_thread();
        give_up_privileges();
    });
}

/// Takes over the processors, the policy and the priority of the main thread. The thread that
/// caused this one may have others, such as a real-time priority on one processor.
fn run_as_main_thread() {
    /// Words of a set of processors: room for 8192, as many as Linux can have.
    const WORDS: usize = 128;
    // SAFETY: `getpid` has no preconditions. It is the main thread's number too.
    let main = c_long::from(unsafe { libc::getpid() });
    let mut processors = [0_u64; WORDS];
    let bytes = size_of_val(&processors);
    // Not the C library's functions: musl's policies are not Linux's, and glibc's sets are small.
    // SAFETY: the system writes at most `bytes` bytes to `processors`. The result is how many.
    let written =
        unsafe { libc::syscall(libc::SYS_sched_getaffinity, main, bytes, processors.as_mut_ptr()) };
    if written > 0 {
        // SAFETY: the system reads that many bytes of `processors`, which it has written.
        unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, written, processors.as_ptr()) };
    }
    // SAFETY: the call takes a number and returns one.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, main) };
    let ordinary = [libc::SCHED_BATCH, libc::SCHED_IDLE].map(c_long::from);
    let ordinary = ordinary.into_iter().find(|ordinary| *ordinary == policy);
    // The system's `sched_param` (sched_setscheduler(2)): one number. musl's has further fields.
    let priority: c_int = 0;
    let policy = ordinary.unwrap_or(c_long::from(libc::SCHED_OTHER));
    // SAFETY: the system reads one number, which lives through the call.
    unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const priority) };
    // The system call returns 20 - nice, so that no result looks like an error.
    // SAFETY: the call takes two numbers and returns one.
    let nice = unsafe { libc::syscall(libc::SYS_getpriority, libc::PRIO_PROCESS, main) };
    if nice > 0 {
        // SAFETY: the call takes three numbers. 0 stands for the calling thread.
        unsafe { libc::syscall(libc::SYS_setpriority, libc::PRIO_PROCESS, 0, 20 - nice) };
    }
}

/// The header of `capget` and `capset` (capget(2)).
#[repr(C)]
struct Header {
    version: u32,
    thread: c_int,
}

/// 32 capabilities of each set of a thread (capget(2)).
#[repr(C)]
#[derive(Clone, Copy)]
struct Capabilities {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Gives up all capabilities but `CAP_SETGID` and `CAP_SETUID`, ambient ones too.
///
/// A program that gives up root by `setgid` and `setuid` needs those two: glibc makes these calls
/// on each thread, and aborts the process if one is refused there and not elsewhere. When that has
/// come, the system takes them too.
fn give_up_privileges() {
    /// `_LINUX_CAPABILITY_VERSION_3`, which has two of [`Capabilities`].
    const VERSION: u32 = 0x2008_0522;
    const CAP_SETGID: u32 = 1 << 6;
    const CAP_SETUID: u32 = 1 << 7;
    // SAFETY: `PR_SET_NO_NEW_PRIVS` takes numbers, and touches no memory.
    unsafe { system::prctl(libc::PR_SET_NO_NEW_PRIVS, 1) };
    let mut header = Header { version: VERSION, thread: 0 };
    let mut sets = [Capabilities { effective: 0, permitted: 0, inheritable: 0 }; 2];
    // SAFETY: both live through the call, which writes two of `Capabilities` for this version.
    let known = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) == 0 };
    if !known {
        return; // without these two the program might not be able to give up root
    }
    let kept = CAP_SETGID | CAP_SETUID;
    let [low, _] = sets;
    // What is not inheritable is not ambient either.
    let low = Capabilities {
        effective: low.effective & kept,
        permitted: low.permitted & kept,
        inheritable: 0,
    };
    let sets = [low, Capabilities { effective: 0, permitted: 0, inheritable: 0 }];
    header = Header { version: VERSION, thread: 0 };
    // SAFETY: both live through the call, which reads two of `Capabilities` for this version.
    unsafe { libc::syscall(libc::SYS_capset, &raw mut header, sets.as_ptr()) };
}
