//! The one cache of the process, and each thread's way into it.
//!
//! The pointer to a thread's front is never null: it points to an empty front until the thread has
//! its own, and again when it has left it, so a hit asks nothing beforehand.

use super::cache::Cache;
use super::front::Front;
use std::cell::Cell;
use std::ptr;

/// The cache of the process.
pub(crate) static CACHE: Cache = Cache::new();

/// No blocks, no room; nobody writes to it.
static EMPTY: Front = Front::EMPTY;

/// Where a thread is.
#[derive(Clone, Copy)]
enum Stage {
    /// It has asked for nothing yet.
    New,
    /// It is about to get its front. What it asks for meanwhile is served by the depot.
    Entering,
    /// The front is its own.
    Entered,
    /// It ends: its front is given up, and what its last destructors ask for is served by the
    /// depot.
    Left,
}

thread_local! {
    // Neither of these has a destructor, so they can be read at any time in the life of a thread.
    static FRONT: Cell<&'static Front> = const { Cell::new(&EMPTY) };
    static STAGE: Cell<Stage> = const { Cell::new(Stage::New) };
    static AT_EXIT: AtExit = const { AtExit };
}

struct AtExit;

impl Drop for AtExit {
    fn drop(&mut self) {
        STAGE.set(Stage::Left);
        let front = FRONT.replace(&EMPTY);
        if !ptr::eq(front, &raw const EMPTY) {
            CACHE.leave(front);
        }
    }
}

/// This thread's front, or the empty one.
#[inline]
pub(crate) fn front() -> &'static Front {
    FRONT.get()
}

/// This thread's front, made if it has none; `None` while that is not possible.
pub(crate) fn own_front() -> Option<&'static Front> {
    match STAGE.get() {
        Stage::Entered => Some(front()),
        Stage::New => enter(),
        Stage::Entering | Stage::Left => None,
    }
}

#[cold]
fn enter() -> Option<&'static Front> {
    STAGE.set(Stage::Entering);
    // Registers the destructor. The standard library allocates past the global allocator there; if
    // it did not, `Entering` would send it to the depot.
    let registered = AT_EXIT.try_with(|_| ()).is_ok();
    let entered = if registered { CACHE.fronts.enter() } else { None };
    match entered {
        Some(front) => {
            FRONT.set(front);
            STAGE.set(Stage::Entered);
        }
        None if registered => STAGE.set(Stage::New), // no memory for a front: another time
        None => STAGE.set(Stage::Left),
    }
    entered
}
