//! Memory in transit: between the pools of a budget and their devices, or between two lists of a
//! pool. A search does not find it, so a request that would be refused waits until that memory has
//! arrived.

use crate::sys::atomic::AtomicU64 as Unmodelled;
use crate::sys::forks;
use crate::sys::modelled::AtomicU64;
use crate::sys::modelled::Ordering::{Acquire, Release};
use std::cell::Cell;

/// Budgets that a thread tells apart. It is in calls of more than one where a call of the device, or an observer, uses
/// another pool; of more than these, what is its own counts as that of others.
const MAX_BUDGETS: usize = 8;

/// What a thread does at the moment in the pools of a budget.
#[derive(Clone, Copy)]
struct OfBudget {
    /// The address of the budget's [`Transit`]; 0 for none. After that one is gone another may have it, to which the
    /// returns are a number like any other.
    budget: usize,
    /// Pieces that the thread has on their way.
    pieces: u64,
    /// How often it made memory available again.
    returns: u64,
}

/// What a thread does in pools at the moment.
struct OfThread {
    /// The budgets, those of the last calls first.
    own: Cell<[OfBudget; MAX_BUDGETS]>,
    /// Whether it is inside of a call of the program for a shortage.
    is_asking: Cell<bool>,
}

const NOTHING: OfBudget = OfBudget { budget: 0, pieces: 0, returns: 0 };

impl OfThread {
    const fn new() -> Self {
        Self { own: Cell::new([NOTHING; MAX_BUDGETS]), is_asking: Cell::new(false) }
    }
}

#[cfg(not(any(loom, shuttle)))]
thread_local! {
    static HERE: OfThread = const { OfThread::new() };
}
#[cfg(any(loom, shuttle))]
crate::checker::thread_local! {
    static HERE: OfThread = OfThread::new();
}

/// Counts of memory on its way, and of returns. They change on cold paths only.
#[derive(Debug, Default)]
pub(crate) struct Transit {
    /// In the low 32 bits the number of blocks, ranges and reservations that threads have outside
    /// of all lists. In the high 32 bits the number of the process (`forks`), because a forked child
    /// has none of the threads whose pieces its parent counted.
    pieces: AtomicU64,
    /// The number of times that memory became available again: in a list of free memory, or under a
    /// limit.
    returns: Unmodelled, // a checker would try too many orders
}

/// The pieces of this process in a value of [`Transit::pieces`].
fn pieces_of(packed: u64) -> u64 {
    if packed >> 32 == u64::from(forks()) { packed & u64::from(u32::MAX) } else { 0 }
}

fn packed(pieces: u64) -> u64 {
    u64::from(forks()) << 32 | pieces
}

impl Transit {
    /// Returns whether any memory is on its way.
    pub(crate) fn has_pieces(&self) -> bool {
        pieces_of(self.pieces.load(Acquire)) > 0
    }

    /// Returns whether other threads have memory in transit. Pieces of the calling thread do not
    /// count, because code that a device call or an observer runs would wait for itself.
    pub(crate) fn others_have_pieces(&self) -> bool {
        pieces_of(self.pieces.load(Acquire)) > self.own(|own| own.pieces)
    }

    /// Counts `count` pieces of memory that leave a list, under the lock of that list, which `Store::leaves` and
    /// `Pieces::new` ask for; or that come from the device, and were in none.
    pub(crate) fn begin(&self, count: usize) {
        let count = count as u64;
        self.own(|own| own.pieces += count);
        self.change(|pieces| pieces + count);
    }

    /// Counts `count` pieces of memory that have arrived. Call it on the thread that began.
    pub(crate) fn end(&self, count: usize) {
        if count > 0 {
            let count = count as u64;
            self.own(|own| own.pieces = own.pieces.saturating_sub(count));
            // The return is counted first: a thread that sees no pieces in transit must see the
            // return.
            self.note_return();
            // The thread that forked may have begun this transit before the fork. The child's count
            // does not include it, so the subtraction saturates.
            self.change(|pieces| pieces.saturating_sub(count));
        }
    }

    /// Calls `with` with what this thread does under this budget.
    fn own<R>(&self, with: impl FnOnce(&mut OfBudget) -> R) -> R {
        let budget = std::ptr::from_ref(self).addr();
        HERE.with(|here| {
            let mut all = here.own.get();
            // One that is not known takes the place of the one whose last call is longest ago.
            let known = all.iter().position(|own| own.budget == budget);
            let at = known.or_else(|| all.iter().rposition(|own| own.pieces == 0));
            let Some(at) = at else { return with(&mut OfBudget { budget, ..NOTHING }) };
            all[..=at].rotate_right(1);
            if known.is_none() {
                all[0] = OfBudget { budget, ..NOTHING };
            }
            let done = with(&mut all[0]);
            here.own.set(all);
            done
        })
    }

    fn change(&self, to: impl Fn(u64) -> u64) {
        let change = |old| Some(packed(to(pieces_of(old))));
        let _ = self.pieces.fetch_update(Release, Acquire, change); // never refused
    }

    /// Notes that memory came back without a transit.
    pub(crate) fn note_return(&self) {
        self.returns.fetch_add(1, Release);
        self.own(|own| own.returns = own.returns.wrapping_add(1));
    }

    /// Returns a number that changes when another thread makes memory available again.
    pub(crate) fn returns_of_others(&self) -> u64 {
        self.returns.load(Acquire).wrapping_sub(self.own(|own| own.returns))
    }
}

/// One piece of memory on its way, until the drop.
pub(crate) struct InTransit<'t>(&'t Transit);

impl<'t> InTransit<'t> {
    pub(crate) fn new(transit: &'t Transit) -> Self {
        transit.begin(1);
        Self(transit)
    }
}

impl Drop for InTransit<'_> {
    fn drop(&mut self) {
        self.0.end(1);
    }
}

/// A call of the program for a shortage, until the drop.
pub(crate) struct InShortage(());

impl InShortage {
    /// `None` if this thread is inside of one.
    pub(crate) fn enter() -> Option<Self> {
        HERE.with(|here| !here.is_asking.replace(true)).then(|| Self(()))
    }
}

impl Drop for InShortage {
    fn drop(&mut self) {
        HERE.with(|here| here.is_asking.set(false));
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn only_what_other_threads_return_changes_the_number() {
        let transit = Transit::default();
        let before = transit.returns_of_others();
        drop(InTransit::new(&transit));
        transit.note_return();
        assert_eq!(transit.returns_of_others(), before);
        thread::scope(|scope| {
            scope.spawn(|| drop(InTransit::new(&transit)));
        });
        assert_eq!(transit.returns_of_others(), before + 1);
        assert!(!transit.has_pieces());
    }

    #[test]
    fn a_thread_does_not_wait_for_its_own_pieces() {
        let transit = Transit::default();
        let _own = InTransit::new(&transit);
        assert!(transit.has_pieces() && !transit.others_have_pieces());
        thread::scope(|scope| {
            scope.spawn(|| assert!(transit.others_have_pieces()));
        });
    }

    #[test]
    fn what_a_thread_does_under_one_budget_is_not_its_own_under_another() {
        let [one, other] = [Transit::default(), Transit::default()];
        let _own = InTransit::new(&other);
        let before = one.returns_of_others();
        other.note_return();
        assert_eq!(one.returns_of_others(), before);
        thread::scope(|scope| {
            let (begun, has_begun) = std::sync::mpsc::channel();
            let (end, ends) = std::sync::mpsc::channel();
            let one = &one;
            scope.spawn(move || {
                let _piece = InTransit::new(one);
                begun.send(()).unwrap();
                ends.recv().unwrap();
            });
            has_begun.recv().unwrap();
            assert!(one.others_have_pieces());
            end.send(()).unwrap();
        });
    }

    #[test]
    fn a_thread_knows_its_pieces_of_a_few_budgets() {
        let budgets = [(); MAX_BUDGETS].map(|()| Transit::default());
        let own: Vec<_> = budgets.iter().map(InTransit::new).collect();
        assert!(budgets.iter().all(|of| of.has_pieces() && !of.others_have_pieces()));
        let further = Transit::default();
        drop(InTransit::new(&further));
        assert!(!further.has_pieces());
        drop(own);
        assert!(budgets.iter().all(|of| !of.has_pieces() && !of.others_have_pieces()));
    }

    /// As if a thread of the parent had begun, which the child does not have.
    #[test]
    fn pieces_of_a_parent_do_not_count_in_its_child() {
        let transit = Transit::default();
        transit.pieces.store((u64::from(forks()).wrapping_sub(1)) << 32 | 3, Release);
        assert!(!transit.has_pieces());
        let own = InTransit::new(&transit);
        assert_eq!(pieces_of(transit.pieces.load(Acquire)), 1);
        drop(own);
        transit.end(1); // it began before the fork
        assert!(!transit.has_pieces());
    }
}
