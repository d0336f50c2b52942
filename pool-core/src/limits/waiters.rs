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
    called: bool,
}

/// The next step of a request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
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
    pub(crate) fn are_any(&self) -> bool {
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
    pub(crate) fn join(&self) -> (u64, bool) {
        let mut line = self.line.lock();
        let id = line.next;
        line.next += 1;
        invariant!(line.waiting.back().is_none_or(|last| last.id < id), "a line is in order");
        line.waiting.push_back(Waiter { id, waker: None, called: true });
        let before = self.count.fetch_add(1, SeqCst);
        invariant!(before + 1 == line.waiting.len(), "each request in the line is counted");
        (id, before == 0)
    }

    /// Removes a request, and wakes the next if it was the first. Returns whether none is left, and
    /// the request with its waker, which the caller drops when it holds no lock.
    pub(crate) fn leave(&self, id: u64) -> (bool, Option<Waiter>) {
        let mut line = self.line.lock();
        let Some(at) = line.waiting.iter().position(|waiter| waiter.id == id) else {
            return (false, None);
        };
        let left = line.waiting.remove(at);
        let before = self.count.fetch_sub(1, SeqCst);
        let last = before == 1;
        invariant!(before == line.waiting.len() + 1, "each request in the line is counted");
        let next = if at == 0 { line.call_first() } else { None };
        drop(line);
        if let Some(next) = next {
            next.wake();
        }
        // The caller drops the waker. It is foreign code whose drop may panic, so no lock is held
        // then, and it is dropped last.
        (last, left)
    }

    /// Returns whether a request may try: it is the first, and memory was made available since its
    /// last try. Otherwise keeps `waker`, which is called when both are so.
    pub(crate) fn turn(&self, id: u64, waker: &Waker) -> Turn {
        let waker = waker.clone(); // foreign code, so not under the lock
        let mut line = self.line.lock();
        let Some(at) = line.waiting.iter().position(|waiter| waiter.id == id) else {
            return Turn::Try;
        };
        let waiter = &mut line.waiting[at];
        let tries = at == 0 && std::mem::take(&mut waiter.called);
        let unused = if tries { Some(waker) } else { waiter.waker.replace(waker) };
        drop(line);
        drop(unused);
        if tries { Turn::Try } else { Turn::Wait }
    }

    /// Lets the first request try.
    #[cold]
    pub(crate) fn wake(&self) {
        let waker = self.line.lock().call_first();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Line {
    fn call_first(&mut self) -> Option<Waker> {
        let first = self.waiting.front_mut()?;
        first.called = true;
        first.waker.take()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn requests_count_from_when_they_join_until_they_leave() {
        let waiters = Waiters::new();
        assert!(!waiters.are_any());
        let ((first, is_alone), (second, is_second_alone)) = (waiters.join(), waiters.join());
        assert!(is_alone && !is_second_alone && waiters.are_any());
        assert!(!waiters.leave(first).0, "the second waits");
        assert!(waiters.are_any() && waiters.is_first(second));
        assert!(waiters.leave(second).0 && !waiters.are_any());
        assert!(!waiters.leave(second).0, "it has left");
    }
}
