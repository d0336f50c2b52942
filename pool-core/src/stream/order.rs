//! Stream order: the marks that memory waits for, and the conditions under which it may be reused.
//!
//! A free records no event. The block keeps a mark for each stream that used it: the end of the
//! last use. When a request on another stream needs the block, the clock records an event, and that
//! stream waits for it on the device. Memory that the CPU can access is reused only after a query
//! has seen its marks done, because the host cannot wait on the device.

use crate::port::{DeviceError, Order, StreamClock};

/// The condition under which a request may steal memory that another stream used last.
///
/// Each policy allows memory whose last uses the stream of the request is already ordered after,
/// and memory of a retired stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum StealPolicy {
    /// A request steals no memory that it would have to wait for. Streams do not delay each other,
    /// and each has a separate cache.
    Never,
    /// A request also steals memory that is ready after an event that was recorded already. It
    /// costs one wait on the device.
    Ordered,
    /// If there is no such event, the pool records one now, rather than allocate from the device.
    /// The stream of the request then waits for all work that the other stream has queued until
    /// now.
    #[default]
    Wait,
}

impl StealPolicy {
    /// Returns whether a request on `on` may use memory whose last use is `mark`. Makes no device
    /// call.
    ///
    /// A request in a capture gets no memory that needs a wait, but memory that a query finds done. A
    /// wait would run only at a launch of the graph, while the remainder of a range that was split for
    /// the request would count as ready at once.
    pub(crate) fn allows<C: StreamClock>(self, clock: &C, on: &C::Stream, mark: C::Mark) -> bool {
        if !clock.takes_work(on) {
            return clock.is_ordered(on, mark) || (self > Self::Never && clock.is_submitted(mark));
        }
        let free = || clock.is_ordered(on, mark) || clock.is_retired(mark);
        match self {
            Self::Wait => true,
            Self::Ordered => clock.has_event(mark) || free(),
            Self::Never => free(),
        }
    }
}

/// The stream of a request, and the conditions under which the request may use memory.
pub(crate) struct Requester<'r, C: StreamClock> {
    pub(crate) clock: &'r C,
    pub(crate) on: &'r C::Stream,
    pub(crate) steal: StealPolicy,
    /// True if the CPU can access the memory. Then a query must have seen all marks of a block
    /// done, also those on the request's own stream.
    pub(crate) cpu_touches: bool,
    /// True if nothing can be ordered in front of the request's work: that of a graph of which nobody
    /// tells a launch. Then all marks must be seen done, as where the CPU touches the memory.
    pub(crate) is_untold: bool,
    /// True if the host may wait, because nothing else is left: for a stream that only another thread
    /// can record an event on.
    pub(crate) host_waits: bool,
}

impl<C: StreamClock> Clone for Requester<'_, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C: StreamClock> Copy for Requester<'_, C> {}

impl<C: StreamClock> Requester<'_, C> {
    /// Returns whether memory behind `mark` may be taken as it is. Makes no device call.
    #[inline]
    pub(crate) fn is_ready(&self, mark: C::Mark) -> bool {
        match self.needs_done() {
            true => self.clock.is_seen_done(mark),
            false => self.clock.is_ordered(self.on, mark),
        }
    }

    /// Returns whether memory behind all of these marks may be taken as it is. Makes no device
    /// call.
    #[inline]
    pub(crate) fn are_ready(&self, after: &Pending<C::Mark>) -> bool {
        match after {
            Pending::One(mark) => self.is_ready(*mark),
            Pending::Nothing => true,
            Pending::Many(marks) => self.are_all_ready(marks),
        }
    }

    #[cold]
    #[inline(never)]
    fn are_all_ready(&self, after: &[C::Mark]) -> bool {
        after.iter().all(|mark| self.is_ready(*mark))
    }

    /// Returns whether work on the request's own stream must be done, too, and not only before it.
    #[inline]
    pub(crate) fn needs_done(&self) -> bool {
        self.cpu_touches || self.is_untold
    }

    /// Returns whether the taker may query or wait for `mark`. Makes no device call.
    pub(crate) fn may_query(&self, mark: C::Mark) -> bool {
        let may = self.needs_done() || self.steal.allows(self.clock, self.on, mark);
        may && (self.host_waits || self.clock.can_order(mark))
    }

    /// Returns whether memory behind `mark` is ready, and queries the device if needed. Does not
    /// wait.
    pub(crate) fn query_done(&self, mark: C::Mark) -> Result<Order, DeviceError> {
        let done = self.is_ready(mark) || self.clock.is_done(mark)?;
        Ok(if done { Order::Ordered } else { Order::NotYet })
    }

    /// Makes memory behind `mark` ready, if that is possible without blocking the host.
    pub(crate) fn make_ready(&self, mark: C::Mark) -> Result<Order, DeviceError> {
        match () {
            () if self.cpu_touches && self.host_waits && !self.clock.can_order(mark) => {
                self.clock.synchronize(mark).map(|()| Order::Ordered)
            }
            () if self.must_be_done() => self.query_done(mark),
            () => self.clock.order(self.on, &[mark]),
        }
    }

    /// Whether no wait on the device makes memory ready: the CPU touches it, or the work of the request
    /// is captured.
    pub(crate) fn must_be_done(&self) -> bool {
        self.needs_done() || !self.clock.takes_work(self.on)
    }
}

/// The marks that must be done before memory is reused: the last use on each stream that used it.
/// Most programs have one mark, which needs no heap.
#[derive(Clone, Debug, Default)]
pub(crate) enum Pending<M> {
    #[default]
    Nothing,
    One(M),
    Many(Box<[M]>),
}

impl<M: Copy> Pending<M> {
    pub(crate) fn of(marks: &[M]) -> Self {
        match marks {
            [] => Self::Nothing,
            [one] => Self::One(*one),
            many => Self::Many(many.into()),
        }
    }

    #[inline]
    pub(crate) fn marks(&self) -> &[M] {
        match self {
            Self::Nothing => &[],
            Self::One(mark) => std::slice::from_ref(mark),
            Self::Many(marks) => marks,
        }
    }

    /// Returns whether two ranges with these last uses may coalesce. They may not if work on one of
    /// them has not reached the device: a stream that could use the other range at once would then
    /// have to wait for that work.
    #[inline]
    pub(crate) fn may_coalesce<C: StreamClock<Mark = M>>(&self, clock: &C, other: &Self) -> bool {
        match (self, other) {
            (Self::Nothing, Self::Nothing) => true,
            (Self::One(a), Self::One(b)) if clock.same_stream(*a, *b) => true,
            (a, b) => a.marks().iter().chain(b.marks()).all(|mark| clock.is_submitted(*mark)),
        }
    }

    /// Adds the marks of `other`, and keeps the later mark of each stream.
    #[inline]
    pub(crate) fn join<C: StreamClock<Mark = M>>(&mut self, clock: &C, other: Self) {
        match (&mut *self, other) {
            (_, Self::Nothing) => {}
            (own @ Self::Nothing, other) => *own = other,
            (Self::One(own), Self::One(other)) if clock.same_stream(*own, other) => {
                *own = clock.later(*own, other);
            }
            (own, other) => *own = own.joined(clock, &other),
        }
    }

    #[cold]
    fn joined<C: StreamClock<Mark = M>>(&self, clock: &C, other: &Self) -> Self {
        let mut joined = self.marks().to_vec();
        for mark in other.marks() {
            match joined.iter_mut().find(|known| clock.same_stream(**known, *mark)) {
                Some(known) => *known = clock.later(*known, *mark),
                None => joined.push(*mark),
            }
        }
        invariant!(
            joined.len() <= self.marks().len() + other.marks().len(),
            "joined marks are one for each stream of either"
        );
        invariant!(!joined.is_empty(), "marks are joined where there are some");
        Self::of(&joined)
    }
}
