//! Broken invariants: faults of this library, which are loud.
//!
//! `invariant!(holds, "what")` does nothing where the invariant holds. Where it does not, it panics
//! in a build with debug assertions. In every build, the pool whose call met it is poisoned: its
//! later requests fail with [`Why::Broken`](crate::Why::Broken) and the text of the invariant, and
//! buffers that are dropped later keep their memory, because its records can no longer be trusted.
//! Code far from any pool, such as a stream's clock, only notes the fault; the pool that the thread
//! is in finds the note when it leaves ([`take`]).

use std::cell::Cell;

thread_local! {
    /// The invariant that this thread found broken, until a pool takes the note.
    static BROKEN: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Checks an invariant; the text says what should hold.
macro_rules! invariant {
    ($holds:expr, $what:literal) => {
        if !$holds {
            $crate::invariant::broken(concat!($what, ", at ", file!(), ":", line!()));
        }
    };
}
/// Notes a broken invariant.
#[cold]
#[inline(never)]
pub(crate) fn broken(what: &'static str) {
    // A thread that ends has no note any more, and its pools are going.
    let _ = BROKEN.try_with(|note| note.set(Some(what)));
    // A second panic would end the process.
    assert!(!cfg!(debug_assertions) || std::thread::panicking(), "broken invariant: {what}");
}

/// Takes the note of this thread, if there is one.
pub(crate) fn take() -> Option<&'static str> {
    BROKEN.try_with(Cell::take).ok().flatten()
}
