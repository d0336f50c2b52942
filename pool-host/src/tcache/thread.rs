//! The cache of the process, and the thread-local pointer to each thread's thread cache.
//!
//! The pointer is never null. It points to a static, empty thread cache before the thread has its
//! own and after the thread has left it, so a hit needs no check for null.

use super::cache::Cache;
use super::thread_cache::ThreadCache;
use crate::sync::atomic::Ordering::Relaxed;
use crate::system;
use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;

/// The cache of the process.
pub(crate) static CACHE: Cache = Cache::new();

/// The thread cache of a thread that has made no request yet. It is stopped for good, so each request
/// takes the slow path.
static NEW: ThreadCache = ThreadCache::EMPTY;
/// That of a thread which is getting its thread cache. The depot serves its requests meanwhile.
static ENTERING: ThreadCache = ThreadCache::EMPTY;
/// That of a thread which is ending and has given up its own. The depot serves requests of its last
/// destructors.
static LEFT: ThreadCache = ThreadCache::EMPTY;

/// The key by which the C library calls [`at_exit`] when a thread ends, once it is made.
static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();

/// Makes the key. Returns whether there is one.
///
/// A thread-local variable of Rust with a destructor would not do: glibc registers those under a lock
/// that `dlopen` holds while constructors run, and one of them may wait for a thread that allocates.
#[expect(unsafe_code, reason = "the system is called through C")]
pub(super) fn watch_ends() -> bool {
    let key = KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: `key` is a local variable that may be written, and `at_exit` has the signature that
        // the function asks for.
        let made = unsafe { libc::pthread_key_create(&raw mut key, Some(at_exit)) } == 0;
        made.then_some(key)
    });
    key.is_some()
}

/// Gives up the thread cache of a thread that ends, when it is called a second time.
///
/// The key is mostly the first of the process, so its destructor runs before those of the program, which may
/// free all that the thread had. The C library calls destructors as long as one of them has set a value, but
/// no more than four times (`PTHREAD_DESTRUCTOR_ITERATIONS`): the second call comes after all destructors
/// have run once. It comes also if the first request of a thread is made by one of its destructors, unless
/// that runs in the third or fourth round.
extern "C" fn at_exit(value: *mut c_void) {
    let local = thread_cache();
    let is_first = !ptr::eq(value.cast_const().cast(), &raw const LEFT);
    if is_first && is_own(local) && register(&LEFT) {
        return;
    }
    slot::set(&LEFT);
    if is_own(local) {
        CACHE.leave(local);
    }
}

/// Has [`at_exit`] called with this value when this thread ends, also if it is ending already. Returns
/// false if the system has no memory for that.
#[expect(unsafe_code, reason = "the system is called through C")]
fn register(value: &'static ThreadCache) -> bool {
    let value = ptr::from_ref(value).cast::<c_void>();
    // SAFETY: the key was made by `watch_ends`, which never deletes it.
    let set = |key| unsafe { libc::pthread_setspecific(key, value) == 0 };
    KEY.get().copied().flatten().is_some_and(set)
}

/// Registers handlers that the C library calls before and after each fork.
///
/// The locks of the depot and of the pages are held over the fork, so that the child finds them
/// consistent. Requests of other threads that need one go to the inner allocator meanwhile. In the
/// child the thread caches of the other threads become free to use, except one on which a thread
/// worked during the fork.
///
/// The handlers are registered with the first request. Those before a fork run in reverse order of
/// registration and those after it in order, so these are the last to run before a fork and the
/// first to run after it.
///
/// False if the C library has no memory for that: a child could then wait for ever.
pub(super) fn watch_forks() -> bool {
    extern "C" fn before() {
        CACHE.depot.before_fork(&CACHE.pages);
        CACHE.pages.before_fork();
    }
    extern "C" fn in_parent() {
        CACHE.pages.after_fork();
        CACHE.depot.after_fork();
    }
    extern "C" fn in_child() {
        pool_core::note_process();
        let own = thread_cache();
        if is_own(own) && own.is_torn() {
            // Another thread was taking back what this one did not use.
            slot::set(&NEW);
        }
        CACHE.in_child(thread_cache());
    }
    if cfg!(miri) {
        return true;
    }
    pool_core::watch_forks();
    #[expect(unsafe_code, reason = "the system is called through C")]
    // SAFETY: the three functions have the signature that `pthread_atfork` asks for, live as long
    // as the process, and call no code of the program.
    unsafe {
        libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) == 0
    }
}

/// Returns this thread's thread cache, or one that is empty and stopped.
#[inline]
pub(crate) fn thread_cache() -> &'static ThreadCache {
    slot::get()
}

/// Returns whether this is the thread cache of a thread.
fn is_own(local: &ThreadCache) -> bool {
    ![&NEW, &ENTERING, &LEFT].iter().any(|empty| ptr::eq(*empty, local))
}

/// Returns this thread's thread cache, and gets one if the thread has none.
///
/// `None` while the thread gets one, if the system has no memory for one, and after the thread has
/// given it up.
pub(crate) fn own_thread_cache() -> Option<&'static ThreadCache> {
    let local = thread_cache();
    match ptr::eq(local, &raw const NEW) {
        true => enter(),
        false => is_own(local).then_some(local),
    }
}

/// Gets a thread cache for this thread, and has it given up when the thread ends.
#[cold]
fn enter() -> Option<&'static ThreadCache> {
    slot::set(&ENTERING);
    let entered = CACHE.thread_caches.enter();
    // This may allocate.
    let registered = entered.filter(|local| register(local));
    if let (Some(local), None) = (entered, registered) {
        CACHE.thread_caches.leave(local, true);
    }
    if let Some(local) = registered {
        local.looked_at.store(system::coarse_milliseconds(), Relaxed);
    }
    // Without memory, the next request tries again.
    slot::set(registered.unwrap_or(&NEW));
    registered
}

/// Where a thread keeps the address of its thread cache.
///
/// In a library, a thread-local variable of Rust is found by a call of the dynamic linker, which may
/// allocate, and for which a hit would save registers in programs too. So the variable is declared for
/// the model in which its place is fixed when the program starts (initial exec: Drepper, ELF Handling
/// For Thread-Local Storage, 2013), for which stable Rust has no word. A library that is loaded late
/// and has many thread-local variables may find no place: the feature `dynamic-tls` is for it.
#[cfg(all(
    target_arch = "x86_64",
    target_os = "linux",
    not(any(feature = "dynamic-tls", miri, shuttle))
))]
#[expect(unsafe_code, reason = "a thread-local variable in assembly")]
mod slot {
    use super::{NEW, ThreadCache};
    use std::arch::{asm, global_asm};

    global_asm!(
        ".pushsection .tdata.bucketpool_thread_cache, \"awT\", @progbits",
        ".p2align 3",
        ".globl bucketpool_thread_cache",
        ".hidden bucketpool_thread_cache",
        ".type bucketpool_thread_cache, @object",
        ".size bucketpool_thread_cache, 8",
        "bucketpool_thread_cache: .quad {new}",
        ".popsection",
        new = sym NEW,
    );

    #[inline]
    pub(super) fn get() -> &'static ThreadCache {
        let (place, local): (usize, *const ThreadCache);
        // SAFETY: loads the variable's offset from the thread's control block, which is in the global
        // offset table and does not change. The compiler may load it once for several requests.
        unsafe {
            asm!(
                "mov {place}, qword ptr [rip + bucketpool_thread_cache@GOTTPOFF]",
                place = lateout(reg) place,
                options(nostack, preserves_flags, pure, nomem),
            );
        }
        // SAFETY: loads the variable of this thread.
        unsafe {
            asm!(
                "mov {local}, qword ptr fs:[{place}]",
                place = in(reg) place,
                local = lateout(reg) local,
                options(nostack, preserves_flags, pure, readonly),
            );
        }
        // SAFETY: the variable begins with the address of a static, and `set` stores only references
        // that live as long.
        unsafe { &*local }
    }

    pub(super) fn set(local: &'static ThreadCache) {
        // SAFETY: stores to the variable, which only this thread uses.
        unsafe {
            asm!(
                "mov {place}, qword ptr [rip + bucketpool_thread_cache@GOTTPOFF]",
                "mov qword ptr fs:[{place}], {local}",
                place = out(reg) _,
                local = in(reg) std::ptr::from_ref(local),
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(not(all(
    target_arch = "x86_64",
    target_os = "linux",
    not(any(feature = "dynamic-tls", miri, shuttle))
)))]
mod slot {
    use super::{NEW, ThreadCache};
    use std::cell::Cell;

    thread_local!(static SLOT: Cell<&'static ThreadCache> = const { Cell::new(&NEW) });

    #[inline]
    pub(super) fn get() -> &'static ThreadCache {
        SLOT.get()
    }

    pub(super) fn set(local: &'static ThreadCache) {
        SLOT.set(local);
    }
}
