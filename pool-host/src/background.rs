//! The background thread, which reads the clock for a program that sleeps, so that cached memory
//! returns to the system then too.
#![expect(
    unsafe_code,
    reason = "a thread is made through C, which allocates nothing of ours first"
)]

mod thread;

pub(crate) use thread::{confine, find_least_stack};

use crate::sync::atomic::AtomicU32;
use crate::system;
use pool_core::{forks, is_vfork_child, stop_asking, watch_forks};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32 as Generation, AtomicU64};
use std::time::Duration;

/// Sleep between two reads of the clock while the cached bytes change.
const SOON: Duration = Duration::from_millis(50);
/// Sleep between two reads of the clock while the cached bytes do not change.
const LATER: Duration = Duration::from_millis(500);
/// Consecutive reads with unchanged cached bytes, after which the thread sleeps for [`LATER`].
const SAME: u32 = 40;
/// Milliseconds after which a thread that the system refused is tried again.
const AGAIN: u64 = 10_000;
/// No thread, in place of the generation of the process that has one.
const NONE: u32 = 0;

/// Stack in bytes of a thread that calls [`Background::look_again`].
pub(crate) const LOOKING_STACK: usize = 128 << 10;

/// Whether a background thread is wanted, and whether it is there.
#[derive(Debug)]
pub(crate) struct Background {
    is_wanted: AtomicBool,
    /// Whether it is wanted no more, for good.
    is_forbidden: AtomicBool,
    /// [`forks`] of the process in which the thread is, or is being made; [`NONE`]
    /// if there is none. A child does not inherit the thread, and has another generation.
    there: Generation,
    /// Number of the thread; 0 before it has run.
    number: AtomicI32,
    /// Time in milliseconds before which no call tries to make the thread.
    not_before: AtomicU64,
    /// Changes when the thread is to end.
    ends: AtomicU32,
    /// Bytes of its stack, beside the thread-local variables of the program.
    stack: usize,
}

impl Background {
    /// Creates the state of a thread that no code has requested, with a stack of that many bytes.
    pub(crate) const fn new(stack: usize) -> Self {
        Self {
            is_wanted: AtomicBool::new(false),
            is_forbidden: AtomicBool::new(false),
            there: Generation::new(NONE),
            number: AtomicI32::new(0),
            not_before: AtomicU64::new(0),
            ends: AtomicU32::new(0),
            stack,
        }
    }

    /// Requests the thread, unless it is forbidden. The next call of [`Background::start`] starts it.
    ///
    /// It may call `dlsym`, which may allocate.
    pub(crate) fn request(&self) {
        // A count must be the same each time.
        if cfg!(pool_counts) || self.is_forbidden.load(SeqCst) {
            return;
        }
        find_least_stack();
        watch_forks();
        self.is_wanted.store(true, Relaxed);
    }

    /// Returns whether the thread was requested and is not in this process.
    #[inline]
    pub(crate) fn is_requested(&self) -> bool {
        self.is_wanted.load(Relaxed)
            && self.there.load(Relaxed) != forks()
            && !self.is_forbidden.load(Relaxed)
    }

    /// Returns whether the thread is in this process, or is being made.
    #[inline]
    pub(crate) fn is_there(&self) -> bool {
        self.there.load(Relaxed) == forks()
    }

    /// Starts the thread if it was requested and is not in this process. It runs `run`.
    ///
    /// Allocations that starting the thread causes are served as usual: the state no longer
    /// requests the thread. If the system does not make it, later calls try again, not before ten
    /// seconds have passed. In a child of `vfork` there is none, since the parent would take it for
    /// its own. Returns whether there is a thread.
    #[cold]
    pub(crate) fn start(&self, run: thread::Run) -> bool {
        let (there, generation) = (self.there.load(Relaxed), forks());
        let now = system::coarse_milliseconds();
        if now < self.not_before.load(Relaxed) {
            return false;
        }
        let is_first = there != generation
            && self.there.compare_exchange(there, generation, SeqCst, Relaxed).is_ok();
        if !is_first {
            return true;
        }
        self.number.store(0, Relaxed);
        // Either this sees that the thread is forbidden, or who forbids it sees that it is there.
        let may = !cfg!(miri) && !self.is_forbidden.load(SeqCst) && !is_vfork_child();
        let made = may && thread::create(run, self.stack);
        if may && !made {
            self.not_before.store(now + AGAIN, Relaxed);
        }
        if !made {
            self.there.store(NONE, Release);
        }
        made
    }

    /// Returns whether the thread is forbidden.
    pub(crate) fn is_forbidden(&self) -> bool {
        self.is_forbidden.load(SeqCst)
    }

    /// Has the thread end, waits for that, at most about a second, and starts it no more. Nor does this
    /// process ask for its number again. The thread's `errno` is unchanged. A second call changes nothing,
    /// and makes no system call.
    pub(crate) fn forbid(&self) {
        if self.is_forbidden.swap(true, SeqCst) {
            return;
        }
        stop_asking();
        let ends = self.ends.fetch_add(1, Release) + 1;
        let is_there = || self.there.load(SeqCst) == forks();
        if !is_there() && self.number.load(Relaxed) == 0 {
            return;
        }
        system::wake(&self.ends, i32::MAX);
        system::keeping_errno(|| {
            let mut looks = 0..1000;
            while (is_there() || system::has_thread(self.number.load(Relaxed)))
                && looks.next().is_some()
            {
                system::wait(&self.ends, ends, Some(Duration::from_millis(1)));
            }
        });
    }

    /// Reads the clock again and again, in the thread. `look` runs the work that is due and returns
    /// the cached bytes.
    ///
    /// Returns once the cached bytes have not changed for a while and `is_idle` says so, or the
    /// thread is forbidden. The thread has its name once it is confined.
    pub(crate) fn look_again(
        &self,
        mut look: impl FnMut() -> usize,
        mut is_idle: impl FnMut() -> bool,
    ) {
        let ends = self.ends.load(Acquire);
        self.number.store(system::thread_number(), Relaxed);
        if self.is_forbidden.load(SeqCst) {
            return self.there.store(NONE, Release);
        }
        confine();
        system::name_thread(c"bucketpool");
        let (mut idle, mut same) = (0, 0);
        loop {
            system::wait(&self.ends, ends, Some(if same < SAME { SOON } else { LATER }));
            if self.ends.load(Acquire) != ends || self.is_forbidden.load(SeqCst) {
                return self.there.store(NONE, Release);
            }
            let now = look();
            same = if now == idle { same + 1 } else { 0 };
            idle = now;
            if same >= SAME && is_idle() {
                self.there.store(NONE, Release);
                // Memory that came meanwhile did not start a thread.
                let (none, own) = (NONE, forks());
                let stays = || self.there.compare_exchange(none, own, Relaxed, Relaxed).is_ok();
                if is_idle() || !stays() {
                    return;
                }
            }
        }
    }
}
