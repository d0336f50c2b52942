//! Broken invariants: faults of this library, which are loud.
//!
//! `invariant!(holds, "what")` does nothing where the invariant holds. Where it does not, it panics
//! in a build with debug assertions. In every build, the pool whose call met it is poisoned: its
//! later requests fail with [`Why::Broken`](crate::Why::Broken) and the text of the invariant, and
//! buffers that are dropped later keep their memory, because its records can no longer be trusted.
//! Code far from any pool, such as a stream's clock, leaves a note for the thread; the pool whose
//! call the thread is in finds it when the call ends ([`take`]). If a program uses a device's clock
//! outside of such a call, no pool finds the note.

use std::cell::Cell;

/// The text of a broken invariant, as one pointer: calls put it aside and back.
pub(crate) type Note = Option<&'static &'static str>;

thread_local! {
    /// The invariant that this thread found broken, until a pool takes the note.
    static BROKEN: Cell<Note> = const { Cell::new(None) };
}

/// Checks an invariant; the text says what should hold.
macro_rules! invariant {
    ($holds:expr, $what:literal) => {
        if !$holds {
            $crate::invariant::broken(&concat!($what, ", at ", file!(), ":", line!()));
        }
    };
}
/// Notes a broken invariant.
#[cold]
#[inline(never)]
pub(crate) fn broken(what: &'static &'static str) {
    // A thread that ends has no note any more, and its pools are going.
    let _ = BROKEN.try_with(|note| note.set(Some(what)));
    // A second panic would end the process.
    assert!(!cfg!(debug_assertions) || std::thread::panicking(), "broken invariant: {what}");
}

/// A call of a pool, which may run inside a call of another pool: it keeps the note of the outer call, and puts it
/// back when it is dropped.
pub(crate) struct Scope {
    outer: Note,
}

impl Scope {
    #[inline]
    pub(crate) fn enter() -> Self {
        Self { outer: take() }
    }
}

impl Drop for Scope {
    #[inline]
    fn drop(&mut self) {
        let _ = BROKEN.try_with(|note| note.set(self.outer));
    }
}

/// Whether this thread has a note.
#[inline]
pub(crate) fn is_noted() -> bool {
    BROKEN.try_with(|note| note.get().is_some()).unwrap_or(false)
}

/// Takes the note of this thread, if there is one.
#[inline]
pub(crate) fn take() -> Note {
    BROKEN.try_with(Cell::take).ok().flatten()
}
