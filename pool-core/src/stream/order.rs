//! Stream order: which marks memory waits for, and when it may serve again.
//!
//! A free names marks, the end of the last use on each stream. Nothing is recorded then. What
//! waits on a device waits there, by an event that is made when somebody asks; what the CPU touches
//! waits for a query, since the host is a stream that cannot wait on a device.

use crate::error::DeviceError;
use crate::stream::clock::{Order, StreamClock};

/// When a stream may take memory that another stream used last.
///
/// Memory whose marks the taker is already ordered after is free for the taking under each of
/// these, and so is what a retired stream left behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum StealPolicy {
    /// Never at the price of a wait. Streams do not hold each other up, and each keeps a cache of
    /// its own.
    Never,
    /// At the price of one wait on the device, where an event after the marks exists already.
    Ordered,
    /// Also by recording an event now, instead of a call to the device for memory. The taker then
    /// waits for all that the other stream has queued by now.
    #[default]
    Wait,
}

impl StealPolicy {
    /// Whether a taker on `on` may have what is behind `mark`. Makes no device call.
    ///
    /// In a capture nothing is waited for before the launch, and what is left of a range that was
    /// taken for one must not look as if it had been: there it is as if no wait were allowed.
    pub(crate) fn allows<C: StreamClock>(self, clock: &C, on: &C::Stream, mark: C::Mark) -> bool {
        if !clock.takes_work(on) {
            return clock.is_ordered(on, mark);
        }
        let free = || clock.is_ordered(on, mark) || clock.is_retired(mark);
        match self {
            Self::Wait => true,
            Self::Ordered => clock.has_event(mark) || free(),
            Self::Never => free(),
        }
    }
}

/// Who asks for memory, and on which terms.
pub(crate) struct Taker<'r, C: StreamClock> {
    pub(crate) clock: &'r C,
    pub(crate) on: &'r C::Stream,
    pub(crate) steal: StealPolicy,
    /// The CPU touches the memory, so it must be seen done, whatever the stream.
    pub(crate) cpu_touches: bool,
}

impl<C: StreamClock> Clone for Taker<'_, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C: StreamClock> Copy for Taker<'_, C> {}

impl<C: StreamClock> Taker<'_, C> {
    /// Whether memory behind `mark` may be had as it is. Makes no device call.
    #[inline]
    pub(crate) fn is_ready(&self, mark: C::Mark) -> bool {
        match self.cpu_touches {
            true => self.clock.is_seen_done(mark),
            false => self.clock.is_ordered(self.on, mark),
        }
    }

    /// Whether memory behind all of these marks may be had as it is. Makes no device call.
    #[inline]
    pub(crate) fn are_ready(&self, after: &After<C::Mark>) -> bool {
        match after {
            After::One(mark) => self.is_ready(*mark),
            After::Nothing => true,
            After::Many(marks) => marks.iter().all(|mark| self.is_ready(*mark)),
        }
    }

    /// Whether it may be asked for at all. Makes no device call.
    pub(crate) fn may_ask(&self, mark: C::Mark) -> bool {
        self.cpu_touches || self.steal.allows(self.clock, self.on, mark)
    }

    /// Returns whether memory behind `mark` is ready, by a query if it must be. Nothing waits.
    pub(crate) fn see_done(&self, mark: C::Mark) -> Result<Order, DeviceError> {
        let done = self.is_ready(mark) || self.clock.is_done(mark)?;
        Ok(if done { Order::Ordered } else { Order::NotYet })
    }

    /// Makes it ready, if that is possible without blocking the host.
    pub(crate) fn make_ready(&self, mark: C::Mark) -> Result<Order, DeviceError> {
        match self.cpu_touches {
            true if self.clock.is_done(mark)? => Ok(Order::Ordered),
            true => Ok(Order::NotYet),
            false => self.clock.order(self.on, &[mark]),
        }
    }
}

/// What must be done before memory serves again: the last use on each stream that used it. One in
/// most programs, and that one without a heap.
#[derive(Clone, Debug, Default)]
pub(crate) enum After<M> {
    #[default]
    Nothing,
    One(M),
    Many(Box<[M]>),
}

impl<M: Copy> After<M> {
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

    /// Whether ranges behind these marks may coalesce. If work on one of them has not reached the
    /// device, a stream that may have the other one would have to wait for that work.
    #[inline]
    pub(crate) fn may_coalesce<C: StreamClock<Mark = M>>(&self, clock: &C, other: &Self) -> bool {
        match (self, other) {
            (Self::Nothing, Self::Nothing) => true,
            (Self::One(a), Self::One(b)) if clock.same_stream(*a, *b) => true,
            (a, b) => a.marks().iter().chain(b.marks()).all(|mark| clock.is_submitted(*mark)),
        }
    }

    /// Adds the marks of another: the later one of each stream stays.
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
        Self::of(&joined)
    }
}
