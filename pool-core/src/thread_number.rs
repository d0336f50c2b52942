//! A small number for each thread that lives: what says which thread cache is its own.
//!
//! A thread that ends gives its number back, so that programs with many short threads have few.

#![cfg_attr(
    all(unix, not(any(miri, loom, shuttle))),
    expect(unsafe_code, reason = "a lock is held over a fork")
)]

#[cfg(not(any(loom, shuttle)))]
use crate::lock::Lock;
#[cfg(not(any(loom, shuttle)))]
use std::cell::Cell;

/// The number of threads that came when all others were taken, and of those that are ending.
pub(crate) const NONE: usize = NUMBERS;
/// Numbers that there are.
const NUMBERS: usize = 64 * WORDS - 1;
/// Words of a bit for each number.
const WORDS: usize = 16;
/// Not asked yet.
const UNKNOWN: usize = usize::MAX;

/// A bit for each number that a thread has. The last one is [`NONE`], which nobody has.
#[cfg(not(any(loom, shuttle)))]
static TAKEN: Lock<[u64; WORDS]> = Lock::new([0; WORDS]);

#[cfg(not(any(loom, shuttle)))]
thread_local! {
    // No destructor, so it can be read while a thread ends.
    static NUMBER: Cell<usize> = const { Cell::new(UNKNOWN) };
    static AT_EXIT: AtExit = const { AtExit };
}

#[cfg(not(any(loom, shuttle)))]
struct AtExit;

#[cfg(not(any(loom, shuttle)))]
impl Drop for AtExit {
    fn drop(&mut self) {
        let number = NUMBER.replace(NONE);
        if number < NUMBERS {
            // The lock orders what this thread did before what the next with this number does.
            TAKEN.lock()[number / 64] &= !(1 << (number % 64));
        }
    }
}

/// Under a checker a thread has the number that the model gives it: its threads are not the
/// system's.
#[cfg(any(loom, shuttle))]
pub(crate) mod modelled {
    crate::checker::thread_local! {
        static NUMBER: std::cell::Cell<usize> = std::cell::Cell::new(0);
    }
    pub(crate) fn get() -> usize {
        NUMBER.with(std::cell::Cell::get)
    }
    pub(crate) fn set(number: usize) {
        NUMBER.with(|own| own.set(number));
    }
}
#[cfg(any(loom, shuttle))]
pub(crate) use modelled::{get, get as known};

/// This thread's own number, the same as long as it lives; [`NONE`] when it has none of its own.
#[cfg(not(any(loom, shuttle)))]
#[inline]
pub(crate) fn get() -> usize {
    let number = NUMBER.get();
    if number == UNKNOWN { take() } else { number }
}

/// The same, or a number that nobody has before [`get`] was called.
#[cfg(not(any(loom, shuttle)))]
#[inline]
pub(crate) fn known() -> usize {
    NUMBER.get()
}

/// Takes the lock of the numbers: before a fork, so that no other thread has it in the child.
#[cfg(all(unix, not(any(miri, loom, shuttle))))]
pub(crate) fn hold() {
    std::mem::forget(TAKEN.lock());
}

/// Gives it up.
///
/// # Safety
///
/// This thread called [`hold`], or is the only one of a child whose parent did.
#[cfg(all(unix, not(any(miri, loom, shuttle))))]
pub(crate) unsafe fn let_go() {
    // SAFETY: as the caller says.
    unsafe { TAKEN.force_unlock() };
}

#[cfg(not(any(loom, shuttle)))]
#[cold]
fn take() -> usize {
    // What this calls may come here again, and gets none then.
    NUMBER.set(NONE);
    if AT_EXIT.try_with(|_| ()).is_err() {
        return NONE;
    }
    let taken = &mut *TAKEN.lock();
    let Some(word) = taken.iter().position(|word| *word != u64::MAX) else { return NONE };
    let bit = taken[word].trailing_ones() as usize;
    let number = 64 * word + bit;
    if number < NUMBERS {
        taken[word] |= 1 << bit;
        NUMBER.set(number);
        number
    } else {
        // For as long as this thread lives: to look each time would take the lock each time.
        NONE
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_thread_keeps_its_number_and_gives_it_back() {
        let own = get();
        assert_eq!(get(), own);
        for _ in 0..if cfg!(miri) { 20 } else { 1000 } {
            let other = thread::spawn(|| (get(), get())).join().unwrap();
            assert_eq!(other.0, other.1);
            assert_ne!(other.0, own);
            assert_ne!(other.0, NONE, "a thousand threads, a few at a time");
        }
    }
}
