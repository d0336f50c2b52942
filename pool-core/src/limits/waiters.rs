//! Requests that wait for memory, in the order of their arrival.
//!
//! A request first joins the line and then tries to allocate. A thread that frees memory first makes
//! it available and then looks whether a request is to be called. So at least one of the two sees
//! the other:
//!
//! ```text
//!   request                          thread that frees
//!     joins, or begins a try           the block is free, or its bytes are given back
//!     allocates                        is a request to be called? call it
//! ```
//!
//! A request that was called and has not come holds nobody up if it is a task: the task may be polled
//! late, or never. So tasks are called together, up to the first thread, and one that comes before
//! those ahead of it gives them some more chances, and then tries. A thread that was called comes for
//! certain, so nobody passes it. No clock is read, since not each platform has one.

#[cfg(any(loom, shuttle))]
use crate::checker::sync::atomic::{AtomicBool, AtomicUsize};
use crate::limits::asker::Asker;
use crate::sys::Lock;
#[cfg(not(any(loom, shuttle)))]
use crate::sys::atomic::{AtomicBool, AtomicUsize};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering::SeqCst;
use std::task::Waker;

/// The requests that wait under one budget.
pub(crate) struct Waiters {
    count: AtomicUsize,
    /// Whether a return of memory calls a request, or lets one try again that tries now.
    calls: AtomicBool,
    line: Lock<Line>,
}

#[derive(Default)]
struct Line {
    next: u64,
    waiting: VecDeque<Waiter>,
}

/// Who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A thread, which comes when it is called.
    Thread,
    /// A task, which is polled when its executor has time, or never.
    Task,
}

impl Kind {
    /// How often it lets those ahead of it come first: about 10 ms of naps, or of polls of a busy
    /// executor.
    fn most_yields(self) -> u32 {
        match self {
            _ if cfg!(any(loom, shuttle)) => 1, // a checker tries each order
            Self::Thread => 10,
            Self::Task => 1000,
        }
    }
}

/// What a request lacks: only requests that could use the same wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lacks {
    /// Bytes of the budget, or nobody knows.
    Any,
    /// Bytes of its pool's own limit.
    Pool,
    /// Memory of its device.
    Device,
}

pub(crate) struct Waiter {
    id: u64,
    kind: Kind,
    from: Asker,
    /// What its last try lacked.
    lacks: Lacks,
    /// How to call it; `None` while it is called, and has not come.
    waker: Option<Waker>,
    /// Whether memory was made available since its last try began.
    may_try: bool,
    /// How often it has let those ahead of it come first, since it last waited.
    yields: u32,
    /// Whether another has passed it, after it was called and did not come.
    is_passed: bool,
}

/// A request that has joined the line.
pub(crate) struct Joined {
    pub(crate) id: u64,
    /// No other request waits.
    pub(crate) is_only: bool,
}

/// A request that has left the line.
pub(crate) struct Left {
    /// No request waits any more.
    pub(crate) was_last: bool,
    /// The request, whose waker is foreign code: drop it under no lock.
    #[expect(dead_code, reason = "it is dropped, and not read")]
    pub(crate) waiter: Option<Waiter>,
}

/// The next step of a request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextStep {
    /// It tries to allocate.
    Try,
    /// Tasks ahead of it were called and have not come. It comes again soon, by itself.
    Yield,
    /// Its waker is called when it is its turn.
    Wait,
}

impl Waiters {
    pub(crate) fn new() -> Self {
        Self {
            count: AtomicUsize::new(0),
            calls: AtomicBool::new(false),
            line: Lock::new(Line::default()),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(SeqCst)
    }

    #[inline]
    pub(crate) fn has_any(&self) -> bool {
        self.count() > 0
    }

    /// Whether a return of memory is to be followed by [`Waiters::wake`]. If the return was under the
    /// lock of a shard, ask under that lock: a request that begins a try later takes it.
    #[inline]
    pub(crate) fn has_calls(&self) -> bool {
        self.calls.load(SeqCst)
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.line.is_locked()
    }

    /// Whether a request is the first, but for those that others have passed.
    pub(crate) fn is_first(&self, id: u64) -> bool {
        let line = self.line.lock();
        let Some(at) = line.at(id) else { return true };
        !line.is_held(at, |ahead| !(ahead.is_away() && ahead.is_passed))
    }

    /// Adds a request. Returns its number, and whether no other waits.
    pub(crate) fn join(&self, kind: Kind, from: Asker) -> Joined {
        let mut line = self.line.lock();
        let id = line.next;
        // Before the request joins: it would stay in the line for good if this panics.
        invariant!(line.waiting.back().is_none_or(|last| last.id < id), "a line is in order");
        invariant!(self.count() == line.waiting.len(), "each request in the line is counted");
        line.next += 1;
        line.waiting.push_back(Waiter {
            id,
            kind,
            from,
            lacks: Lacks::Any,
            waker: None,
            may_try: true,
            yields: 0,
            is_passed: false,
        });
        let before = self.count.fetch_add(1, SeqCst);
        Joined { id, is_only: before == 0 }
    }

    /// Removes a request, and calls the next if nobody was ahead of it. Returns whether none is left,
    /// and the request with its waker, which the caller drops when it holds no lock.
    pub(crate) fn leave(&self, id: u64) -> Left {
        let mut line = self.line.lock();
        let Some(at) = line.at(id) else { return Left { was_last: false, waiter: None } };
        let was_turn = line.is_turn(at);
        let waiter = line.waiting.remove(at);
        let before = self.count.fetch_sub(1, SeqCst);
        let was_last = before == 1;
        let is_counted = before == line.waiting.len() + 1;
        let called = if was_turn { line.call() } else { Vec::new() };
        self.calls.store(line.has_calls(), SeqCst);
        drop(line);
        call_all(called);
        invariant!(is_counted, "each request in the line is counted");
        // The caller drops the waker. It is foreign code whose drop may panic, so no lock is held
        // then, and it is dropped last.
        Left { was_last, waiter }
    }

    /// Returns whether a request may try: memory was made available since its last try, and nobody is
    /// ahead of it who would come and whom it has to let pass. Otherwise keeps `waker`, which is called
    /// when both may be so. `lacks`: what its last try lacked.
    pub(crate) fn next_step(&self, id: u64, lacks: Lacks, waker: &Waker) -> NextStep {
        let waker = waker.clone(); // foreign code, so not under the lock
        let mut line = self.line.lock();
        let Some(at) = line.at(id) else { return NextStep::Try };
        // Those behind it that had to wait for it may have to no more.
        let lets_more_pass = lacks != Lacks::Any && line.waiting[at].lacks != lacks;
        line.waiting[at].lacks = lacks;
        let called = if lets_more_pass { line.call_behind(at) } else { Vec::new() };
        let (is_turn, passes) = (line.is_turn(at), line.is_held(at, |ahead| !ahead.is_passed));
        let waiter = &mut line.waiting[at];
        waiter.is_passed = false;
        let (step, unused) = if !is_turn || !waiter.may_try {
            waiter.yields = 0;
            (NextStep::Wait, waiter.waker.replace(waker))
        } else if passes && waiter.yields < waiter.kind.most_yields() {
            waiter.yields += 1;
            (NextStep::Yield, Some(waker))
        } else {
            (waiter.may_try, waiter.yields) = (false, 0);
            let ahead = line.waiting.iter_mut().take(at).filter(|ahead| ahead.is_away());
            ahead.for_each(|ahead| ahead.is_passed = true);
            (NextStep::Try, Some(waker))
        };
        self.calls.store(line.has_calls(), SeqCst);
        drop(line);
        call_all(called);
        drop(unused); // foreign code, which may panic, so it comes last
        step
    }

    /// Calls those that may be served by memory that was made available.
    #[cold]
    pub(crate) fn wake(&self) {
        let called = {
            let mut line = self.line.lock();
            let called = line.call();
            self.calls.store(line.has_calls(), SeqCst);
            called
        };
        call_all(called);
    }
}

/// Calls requests, all of them also if one of these calls panics.
fn call_all(called: Vec<Waker>) {
    let mut panic = None;
    for waker in called {
        panic = catch_unwind(AssertUnwindSafe(|| waker.wake())).err().or(panic);
    }
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}

impl Waiter {
    /// Whether it is a task that was called and has not come.
    fn is_away(&self) -> bool {
        self.kind == Kind::Task && self.waker.is_none() && self.may_try
    }

    /// Whether a request goes past it: it could not use what this one lacks.
    fn lets_pass(&self, other: Asker) -> bool {
        match self.lacks {
            Lacks::Any => false,
            Lacks::Pool => self.from.pool != other.pool,
            Lacks::Device => self.from.device != other.device,
        }
    }
}

impl Line {
    fn at(&self, id: u64) -> Option<usize> {
        self.waiting.iter().position(|waiter| waiter.id == id)
    }

    /// For each request in turn whether one ahead holds it up, of those of which `may_hold` says so. One
    /// that is held up itself holds up nobody else: who goes past its holder goes past it. Ends where
    /// all that follow are held up.
    fn held(&self, may_hold: impl Fn(&Waiter) -> bool) -> impl Iterator<Item = bool> {
        let (mut holders, mut ends) = (Vec::<&Waiter>::new(), false);
        self.waiting.iter().map_while(move |waiter| {
            if ends {
                return None;
            }
            let is_held = holders.iter().any(|ahead| !ahead.lets_pass(waiter.from));
            if !is_held && may_hold(waiter) {
                ends = waiter.lacks == Lacks::Any;
                holders.push(waiter);
            }
            Some(is_held)
        })
    }

    /// Whether a request is held up by one ahead of which `may_hold` says so.
    fn is_held(&self, at: usize, may_hold: impl Fn(&Waiter) -> bool) -> bool {
        self.held(may_hold).nth(at).unwrap_or(true)
    }

    /// Whether nobody who would come holds a request up.
    fn is_turn(&self, at: usize) -> bool {
        !self.is_held(at, |ahead| !ahead.is_away())
    }

    /// The requests that a return of memory calls: tasks may not come, so those behind them too, up to
    /// a thread, and behind that those that go past it.
    fn called(&self) -> impl Iterator<Item = usize> {
        let held = self.held(|ahead| ahead.kind == Kind::Thread);
        held.enumerate().filter(|(_, is_held)| !is_held).map(|(at, _)| at)
    }

    /// Lets requests try. Returns how to call them.
    fn call(&mut self) -> Vec<Waker> {
        let called: Vec<usize> = self.called().collect();
        self.let_try(called)
    }

    /// As [`Line::call`], of those behind one.
    fn call_behind(&mut self, at: usize) -> Vec<Waker> {
        let called: Vec<usize> = self.called().filter(|other| *other > at).collect();
        self.let_try(called)
    }

    fn let_try(&mut self, called: Vec<usize>) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for at in called {
            self.waiting[at].may_try = true;
            wakers.extend(self.waiting[at].waker.take());
        }
        wakers
    }

    /// Whether [`Line::call`] would change anything.
    fn has_calls(&self) -> bool {
        let changes = |waiter: &Waiter| !waiter.may_try || waiter.waker.is_some();
        self.called().any(|at| changes(&self.waiting[at]))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::limits::asker::DeviceId;
    use std::any::TypeId;

    #[test]
    fn requests_count_from_when_they_join_until_they_leave() {
        let waiters = Waiters::new();
        assert!(!waiters.has_any());
        let from = Asker { pool: 0, device: DeviceId { clock: TypeId::of::<()>(), address: 0 } };
        let (one, other) = (waiters.join(Kind::Task, from), waiters.join(Kind::Task, from));
        assert!(one.is_only && !other.is_only && waiters.has_any());
        let (first, second) = (one.id, other.id);
        assert!(!waiters.leave(first).was_last, "the second waits");
        assert!(waiters.has_any() && waiters.is_first(second));
        assert!(waiters.leave(second).was_last && !waiters.has_any());
        assert!(!waiters.leave(second).was_last, "it has left");
    }
}
