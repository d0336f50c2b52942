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
//! A return of memory calls the first request, and one that is served the next. A task that was called may be
//! polled late, or never. It holds nobody up: who comes before it lets it come first for a moment, and passes it
//! then. So that somebody does, where a task is first the next request is called too, and the first thread,
//! which comes for certain. Tasks that have not come when memory has come back some more times are passed, and
//! those behind them are called.
//!
//! Requests of one pool are in one queue, since each of them holds up those behind it. Of several queues only
//! the first requests matter to each other. No clock is read, since not each platform has one.

use crate::sys::Lock;
use crate::sys::modelled::{AtomicBool, AtomicUsize};
use std::any::TypeId;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering::SeqCst;
use std::task::Waker;
use std::thread;

/// Tasks of a queue that are called at once: the first, and one in reserve.
const CALLED: usize = 2;
/// Requests among which the first thread is looked for.
const MAX_LOOKS: usize = 64;
/// Returns of memory after which a task that was called and has not come is passed.
const MAX_RETURNS: u32 = 4;

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
    /// One for each pool of which a request waits.
    queues: Vec<Queue>,
}

/// The requests of a pool that wait.
struct Queue {
    from: Asker,
    /// In the order of their arrival, which is that of their numbers.
    waiting: VecDeque<Waiter>,
    /// Tasks that were called. Of these, those that came or were passed are taken out when it is looked at.
    called: Vec<u64>,
}

/// By what a request is found in the line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    id: u64,
    from: Asker,
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
    /// How often it lets those that were called come first: 10 ms of naps, or some rounds of an executor.
    fn most_yields(self) -> u32 {
        match self {
            _ if cfg!(any(loom, shuttle)) => 1, // a checker tries each order
            Self::Thread => 10,
            Self::Task => 32,
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
    /// What its last try lacked.
    lacks: Lacks,
    /// How to call it; `None` while it is called, and has not come.
    waker: Option<Waker>,
    /// Whether memory was made available since its last try began.
    may_try: bool,
    /// The request ahead that it lets come first, and how often it has done so.
    lets_come: (u64, u32),
    /// Whether another has passed it, after it was called and did not come.
    is_passed: bool,
    /// Returns of memory since it was called.
    returns: u32,
}

/// A request that has joined the line.
pub(crate) struct Joined {
    pub(crate) ticket: Ticket,
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
    pub(crate) fn is_first(&self, ticket: Ticket) -> bool {
        let line = self.line.lock();
        let at = line.at(ticket);
        let comes = |ahead: &Waiter| !(ahead.is_away() && ahead.is_passed);
        at.is_none_or(|at| line.holder(at, line.firsts(comes)).is_none())
    }

    /// Adds a request. Returns its ticket, and whether no other waits.
    pub(crate) fn join(&self, kind: Kind, from: Asker) -> Joined {
        let mut line = self.line.lock();
        let id = line.next;
        // Before the request joins: it would stay in the line for good if this panics.
        invariant!(self.count() == line.len(), "each request in the line is counted");
        line.next += 1;
        line.queue(from).waiting.push_back(Waiter {
            id,
            kind,
            lacks: Lacks::Any,
            waker: None,
            may_try: true,
            lets_come: (0, 0),
            is_passed: false,
            returns: 0,
        });
        let before = self.count.fetch_add(1, SeqCst);
        Joined { ticket: Ticket { id, from }, is_only: before == 0 }
    }

    /// Removes a request, and calls the next if nobody was ahead of it. Returns whether none is left,
    /// and the request with its waker, which the caller drops when it holds no lock.
    pub(crate) fn leave(&self, ticket: Ticket) -> Left {
        let mut line = self.line.lock();
        let Some(at) = line.at(ticket) else { return Left { was_last: false, waiter: None } };
        let was_turn = line.is_turn(at);
        let waiter = line.remove(at);
        let before = self.count.fetch_sub(1, SeqCst);
        let was_last = before == 1;
        let is_counted = before == line.len() + 1;
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
    pub(crate) fn next_step(&self, ticket: Ticket, lacks: Lacks, waker: &Waker) -> NextStep {
        let waker = waker.clone(); // foreign code, so not under the lock
        let mut line = self.line.lock();
        let Some(at) = line.at(ticket) else { return NextStep::Try };
        // Those behind it that had to wait for it may have to no more.
        let lets_more_pass = lacks != Lacks::Any && line.waiter(at).lacks != lacks;
        (line.waiter(at).lacks, line.waiter(at).is_passed) = (lacks, false);
        let mut called = if lets_more_pass { line.call_behind(at) } else { Vec::new() };
        let (is_turn, called_ahead) = (line.is_turn(at), line.called_ahead(at));
        let waiter = line.waiter(at);
        let mut unused = Some(waker);
        let step = if let Some(ahead) = called_ahead
            && (waiter.may_try || !is_turn)
        {
            let times = if waiter.lets_come.0 == ahead { waiter.lets_come.1 + 1 } else { 1 };
            waiter.lets_come = (ahead, times);
            if times <= waiter.kind.most_yields() {
                NextStep::Yield
            } else {
                line.pass(at);
                if is_turn {
                    line.try_now(at)
                } else {
                    called.extend(line.call());
                    NextStep::Yield
                }
            }
        } else if is_turn && waiter.may_try {
            line.try_now(at)
        } else {
            unused = match unused {
                Some(waker) => waiter.waker.replace(waker),
                None => None,
            };
            NextStep::Wait
        };
        self.calls.store(line.has_calls(), SeqCst);
        drop(line);
        call_all(called);
        drop(unused); // foreign code, which may panic, so it comes last
        step
    }

    /// Calls those that may be served by memory that was made available.
    /// `returned`: a buffer was freed, or memory went back; else there may be memory for another reason.
    #[cold]
    pub(crate) fn wake(&self, returned: bool) {
        let called = {
            let mut line = self.line.lock();
            if returned {
                line.note_return();
            }
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
    if let Some(panic) = panic.filter(|_| !thread::panicking()) {
        resume_unwind(panic);
    }
}

impl Waiter {
    /// Whether it is a task that was called and has not come.
    fn is_away(&self) -> bool {
        self.kind == Kind::Task && self.waker.is_none() && self.may_try
    }

    /// Whether a request of another pool goes past it: it could not use what this one lacks.
    fn lets_pass(&self, own: Asker, other: Asker) -> bool {
        match self.lacks {
            Lacks::Any => false,
            Lacks::Pool => own.pool != other.pool,
            Lacks::Device => own.device != other.device,
        }
    }

    /// Whether it was called, and nobody has passed it.
    fn is_outstanding(&self) -> bool {
        self.is_away() && !self.is_passed
    }
}

impl Queue {
    fn at(&self, id: u64) -> Option<usize> {
        self.waiting.binary_search_by_key(&id, |waiter| waiter.id).ok()
    }

    /// The first request of which `may` says so. Those that were called and do not come are in front.
    fn first(&self, may: impl Fn(&Waiter) -> bool) -> Option<usize> {
        self.waiting.iter().position(may)
    }

    /// The tasks that were called, and neither came nor were passed.
    fn outstanding(&mut self) -> &mut Vec<u64> {
        let mut called = std::mem::take(&mut self.called);
        called.retain(|id| self.at(*id).is_some_and(|at| self.waiting[at].is_outstanding()));
        self.called = called;
        &mut self.called
    }

    /// Whom a return of memory calls, if nobody of another queue holds this one up: each request up to the first
    /// thread ahead of which fewer than `most` tasks are called and not passed; and that thread.
    fn callable(&mut self, most: usize) -> Vec<usize> {
        let (called, mut callable) = (self.outstanding().clone(), Vec::new());
        let waiting = self.waiting.iter().enumerate().filter(|(_, waiter)| !waiter.is_away());
        for (at, waiter) in waiting.take(MAX_LOOKS) {
            let is_thread = waiter.kind == Kind::Thread;
            let ahead = called.iter().filter(|id| **id < waiter.id).count();
            if is_thread || ahead + callable.len() < most {
                callable.push(at);
            }
            if is_thread {
                break;
            }
        }
        callable
    }

    /// Lets them try. Returns how to call them.
    fn call(&mut self, most: usize) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for at in self.callable(most) {
            let waiter = &mut self.waiting[at];
            (waiter.may_try, waiter.returns) = (true, 0);
            wakers.extend(waiter.waker.take());
            if waiter.kind == Kind::Task && !self.called.contains(&waiter.id) {
                self.called.push(waiter.id);
            }
        }
        wakers
    }
}

/// A request, as the numbers of its queue and of its place there.
type At = (usize, usize);

impl Line {
    fn len(&self) -> usize {
        self.queues.iter().map(|queue| queue.waiting.len()).sum()
    }

    /// The queue of a pool.
    fn queue(&mut self, from: Asker) -> &mut Queue {
        let at = self.queues.iter().position(|queue| queue.from == from).unwrap_or_else(|| {
            self.queues.push(Queue { from, waiting: VecDeque::new(), called: Vec::new() });
            self.queues.len() - 1
        });
        &mut self.queues[at]
    }

    fn at(&self, ticket: Ticket) -> Option<At> {
        let of = self.queues.iter().position(|queue| queue.from == ticket.from)?;
        Some((of, self.queues[of].at(ticket.id)?))
    }

    fn waiter(&mut self, (of, at): At) -> &mut Waiter {
        &mut self.queues[of].waiting[at]
    }

    fn remove(&mut self, (of, at): At) -> Option<Waiter> {
        let waiter = self.queues[of].waiting.remove(at);
        if self.queues[of].waiting.is_empty() {
            self.queues.swap_remove(of);
        }
        waiter
    }

    /// Of the first requests of some queues those that no other holds up. One that is held up holds up nobody
    /// else: who goes past its holder goes past it.
    fn holders(&self, mut firsts: Vec<At>) -> Vec<At> {
        firsts.sort_unstable_by_key(|(of, at)| self.queues[*of].waiting[*at].id);
        let mut holders: Vec<At> = Vec::new();
        for (of, at) in firsts {
            let own = self.queues[of].from;
            if holders.iter().all(|ahead| self.lets_pass(*ahead, own)) {
                holders.push((of, at));
            }
        }
        holders
    }

    /// The first requests, of which `may` says so, that no other such one holds up.
    fn firsts(&self, may: impl Fn(&Waiter) -> bool) -> Vec<At> {
        let queues = self.queues.iter().enumerate();
        self.holders(queues.filter_map(|(of, queue)| Some((of, queue.first(&may)?))).collect())
    }

    fn lets_pass(&self, (of, at): At, other: Asker) -> bool {
        let Queue { from, waiting, .. } = &self.queues[of];
        waiting[at].lets_pass(*from, other)
    }

    /// The first of some requests that is ahead of one and holds it up.
    fn holder(&self, (of, at): At, holders: Vec<At>) -> Option<u64> {
        let Queue { from, waiting, .. } = &self.queues[of];
        let holds = holders.into_iter().filter(|ahead| !self.lets_pass(*ahead, *from));
        let mut ids = holds.map(|(of, at)| self.queues[of].waiting[at].id);
        ids.find(|ahead| *ahead < waiting[at].id)
    }

    /// Whether nobody who would come holds a request up.
    fn is_turn(&self, at: At) -> bool {
        self.holder(at, self.firsts(|ahead| !ahead.is_away())).is_none()
    }

    /// One ahead that was called, and neither came nor was passed: there may be memory that nobody takes.
    fn called_ahead(&mut self, at: At) -> Option<u64> {
        let mut firsts = Vec::new();
        for (of, queue) in self.queues.iter_mut().enumerate() {
            let first = queue.outstanding().iter().min().copied();
            firsts.extend(first.and_then(|id| Some((of, queue.at(id)?))));
        }
        self.holder(at, self.holders(firsts))
    }

    /// Passes those ahead of a request that were called, would hold it up, and have not come.
    fn pass(&mut self, (of, at): At) {
        let (id, from) = (self.queues[of].waiting[at].id, self.queues[of].from);
        for queue in &mut self.queues {
            let own = queue.from;
            let ahead = queue.waiting.iter_mut().filter(|ahead| ahead.id < id && ahead.is_away());
            ahead
                .filter(|ahead| !ahead.lets_pass(own, from))
                .for_each(|ahead| ahead.is_passed = true);
        }
    }

    fn try_now(&mut self, at: At) -> NextStep {
        self.waiter(at).may_try = false;
        NextStep::Try
    }

    /// Notes that memory came back. Passes tasks that did not come for it several times.
    fn note_return(&mut self) {
        for queue in &mut self.queues {
            for id in queue.outstanding().clone() {
                let Some(waiter) = queue.at(id).map(|at| &mut queue.waiting[at]) else { continue };
                waiter.returns += 1;
                waiter.is_passed = waiter.returns > MAX_RETURNS;
            }
        }
    }

    /// Lets the first requests try ([`Queue::callable`]), and one of each queue that these alone hold up, should
    /// they not come. Returns how to call them.
    fn call(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for (of, _) in self.firsts(|ahead| !ahead.is_away()) {
            wakers.extend(self.queues[of].call(CALLED));
        }
        for (of, _) in self.firsts(|ahead| !ahead.is_away()) {
            if self.queues[of].outstanding().is_empty() {
                wakers.extend(self.queues[of].call(1));
            }
        }
        wakers
    }

    /// As [`Line::call`], of the other queues, where the first came after this one.
    fn call_behind(&mut self, (own, at): At) -> Vec<Waker> {
        let id = self.queues[own].waiting[at].id;
        let mut firsts = self.firsts(|ahead| !ahead.is_away());
        firsts.retain(|(of, at)| *of != own && self.queues[*of].waiting[*at].id > id);
        firsts.into_iter().flat_map(|(of, _)| self.queues[of].call(CALLED)).collect()
    }

    /// Whether a return of memory would change anything.
    fn has_calls(&mut self) -> bool {
        let firsts = self.firsts(|ahead| !ahead.is_away());
        let is_called = firsts.into_iter().any(|(of, _)| {
            let queue = &mut self.queues[of];
            let mut to_call = queue.callable(CALLED).into_iter();
            to_call.any(|at| !queue.waiting[at].may_try || queue.waiting[at].waker.is_some())
        });
        is_called || self.queues.iter_mut().any(|queue| !queue.outstanding().is_empty())
    }
}

/// The pool of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asker {
    /// The address of its store.
    pub(crate) pool: usize,
    pub(crate) device: DeviceId,
}

/// The device of a pool: the type of its clock, and where streams order its work, the address of the
/// clock that all its pools share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceId {
    pub(crate) clock: TypeId,
    pub(crate) address: usize,
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::limits::waiters::DeviceId;
    use std::any::TypeId;

    fn asker(pool: usize) -> Asker {
        Asker { pool, device: DeviceId { clock: TypeId::of::<()>(), address: 0 } }
    }

    #[test]
    fn requests_count_from_when_they_join_until_they_leave() {
        let waiters = Waiters::new();
        assert!(!waiters.has_any());
        let (one, other) = (waiters.join(Kind::Task, asker(0)), waiters.join(Kind::Task, asker(0)));
        assert!(one.is_only && !other.is_only && waiters.has_any());
        let (first, second) = (one.ticket, other.ticket);
        assert!(!waiters.leave(first).was_last, "the second waits");
        assert!(waiters.has_any() && waiters.is_first(second));
        assert!(waiters.leave(second).was_last && !waiters.has_any());
        assert!(!waiters.leave(second).was_last, "it has left");
    }
}
