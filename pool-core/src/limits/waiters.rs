//! Requests that wait for memory, in the order of their arrival.
//!
//! A request first joins the queue and then tries to allocate. A thread that frees memory first
//! makes it available and then checks whether a request waits. So at least one of the two sees the
//! other:
//!
//! ```text
//!   request                          thread that frees
//!     count += 1                       the block is free, or its bytes are given back
//!     all pools: frees past caches     count > 0? wake the first request
//!     allocate
//! ```

#[cfg(any(loom, shuttle))]
use crate::checker::sync::atomic::AtomicUsize;
use crate::sys::Lock;
#[cfg(not(any(loom, shuttle)))]
use crate::sys::atomic::AtomicUsize;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::SeqCst;
use std::task::Waker;

/// The requests that wait under one budget.
pub(crate) struct Waiters {
    count: AtomicUsize,
    line: Lock<Line>,
}

#[derive(Default)]
struct Line {
    next: u64,
    waiting: VecDeque<Waiter>,
}

pub(crate) struct Waiter {
    id: u64,
    waker: Option<Waker>,
    /// Whether memory was made available since the last try of the request.
    may_try: bool,
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
    /// Its waker is called when it is its turn.
    Wait,
}

impl Waiters {
    pub(crate) fn new() -> Self {
        Self { count: AtomicUsize::new(0), line: Lock::new(Line::default()) }
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(SeqCst)
    }

    #[inline]
    pub(crate) fn has_any(&self) -> bool {
        self.count() > 0
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.line.is_locked()
    }

    /// Whether a request is the first.
    pub(crate) fn is_first(&self, id: u64) -> bool {
        self.line.lock().waiting.front().is_some_and(|waiter| waiter.id == id)
    }

    /// Adds a request. Returns its number, and whether no other waits.
    pub(crate) fn join(&self) -> Joined {
        let mut line = self.line.lock();
        let id = line.next;
        // Before the request joins: it would stay in the line for good if this panics.
        invariant!(line.waiting.back().is_none_or(|last| last.id < id), "a line is in order");
        invariant!(self.count() == line.waiting.len(), "each request in the line is counted");
        line.next += 1;
        line.waiting.push_back(Waiter { id, waker: None, may_try: true });
        let before = self.count.fetch_add(1, SeqCst);
        Joined { id, is_only: before == 0 }
    }

    /// Removes a request, and wakes the next if it was the first. Returns whether none is left, and
    /// the request with its waker, which the caller drops when it holds no lock.
    pub(crate) fn leave(&self, id: u64) -> Left {
        let mut line = self.line.lock();
        let Some(at) = line.waiting.iter().position(|waiter| waiter.id == id) else {
            return Left { was_last: false, waiter: None };
        };
        let waiter = line.waiting.remove(at);
        let before = self.count.fetch_sub(1, SeqCst);
        let was_last = before == 1;
        let is_counted = before == line.waiting.len() + 1;
        let next = if at == 0 { line.let_first_try() } else { None };
        drop(line);
        if let Some(next) = next {
            next.wake();
        }
        invariant!(is_counted, "each request in the line is counted");
        // The caller drops the waker. It is foreign code whose drop may panic, so no lock is held
        // then, and it is dropped last.
        Left { was_last, waiter }
    }

    /// Returns whether a request may try: it is the first, and memory was made available since its
    /// last try. Otherwise keeps `waker`, which is called when both are so.
    pub(crate) fn next_step(&self, id: u64, waker: &Waker) -> NextStep {
        let waker = waker.clone(); // foreign code, so not under the lock
        let mut line = self.line.lock();
        let Some(at) = line.waiting.iter().position(|waiter| waiter.id == id) else {
            return NextStep::Try;
        };
        let waiter = &mut line.waiting[at];
        let tries = at == 0 && std::mem::take(&mut waiter.may_try);
        let unused = if tries { Some(waker) } else { waiter.waker.replace(waker) };
        drop(line);
        drop(unused);
        if tries { NextStep::Try } else { NextStep::Wait }
    }

    /// Lets the first request try.
    #[cold]
    pub(crate) fn wake(&self) {
        let waker = self.line.lock().let_first_try();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Line {
    fn let_first_try(&mut self) -> Option<Waker> {
        let first = self.waiting.front_mut()?;
        first.may_try = true;
        first.waker.take()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn requests_count_from_when_they_join_until_they_leave() {
        let waiters = Waiters::new();
        assert!(!waiters.has_any());
        let (one, other) = (waiters.join(), waiters.join());
        assert!(one.is_only && !other.is_only && waiters.has_any());
        let (first, second) = (one.id, other.id);
        assert!(!waiters.leave(first).was_last, "the second waits");
        assert!(waiters.has_any() && waiters.is_first(second));
        assert!(waiters.leave(second).was_last && !waiters.has_any());
        assert!(!waiters.leave(second).was_last, "it has left");
    }
}
