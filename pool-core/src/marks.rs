//! The last uses of a block: one mark for each stream that used it.

use crate::clock::{Order, StreamClock};
use crate::error::DeviceError;

/// Uses of a block, each stream's last.
#[derive(Debug)]
pub(crate) struct Marks<C: StreamClock> {
    /// The stream that the block was allocated for.
    home: C::Mark,
    /// The few others that it was taken to. Empty in most programs.
    also: Vec<C::Mark>,
    /// Uses begun and not ended. More than none at the drop means that a `Use` was forgotten, or
    /// that a stream was recorded: what its streams were given until then counts as used.
    open: u32,
}

impl<C: StreamClock> Marks<C> {
    #[inline]
    pub(crate) fn new(home: C::Mark) -> Self {
        Self { home, also: Vec::new(), open: 0 }
    }

    #[inline]
    pub(crate) fn home(&self) -> C::Mark {
        self.home
    }

    pub(crate) fn begin(&mut self, clock: &C, mark: C::Mark) {
        self.open += 1;
        self.add(clock, mark);
    }

    pub(crate) fn end(&mut self, clock: &C, mark: C::Mark) {
        self.open = self.open.saturating_sub(1);
        self.add(clock, mark);
    }

    fn add(&mut self, clock: &C, mark: C::Mark) {
        if clock.same_stream(self.home, mark) {
            self.home = clock.later(self.home, mark);
        } else if let Some(known) = self.also.iter_mut().find(|m| clock.same_stream(**m, mark)) {
            *known = clock.later(*known, mark);
        } else {
            self.also.push(mark);
        }
    }

    /// The block is given back: settles what no `Use` has ended.
    #[inline]
    pub(crate) fn close(&mut self, clock: &C) {
        if self.open > 0 {
            self.open = 0;
            self.home = clock.latest(self.home);
            for mark in &mut self.also {
                *mark = clock.latest(*mark);
            }
        }
    }

    /// Whether a taker on `on` may have the block as it is. Makes no device call.
    #[inline]
    pub(crate) fn is_ready(&self, clock: &C, on: &C::Stream, cpu_touches: bool) -> bool {
        self.newest_first().all(|mark| {
            if cpu_touches { clock.is_seen_done(mark) } else { clock.is_ordered(on, mark) }
        })
    }

    /// Makes the block ready for a taker on `on`, if that is possible without blocking the host.
    pub(crate) fn make_ready(
        &self,
        clock: &C,
        on: &C::Stream,
        cpu_touches: bool,
    ) -> Result<Order, DeviceError> {
        for mark in self.newest_first() {
            let order = match cpu_touches {
                true if clock.is_done(mark)? => Order::Ordered,
                true => Order::NotYet,
                false => clock.order(on, &[mark])?,
            };
            if order == Order::NotYet {
                return Ok(Order::NotYet);
            }
        }
        Ok(Order::Ordered)
    }

    /// The latest use first: who is ordered after it is often ordered after the others already.
    fn newest_first(&self) -> impl Iterator<Item = C::Mark> + '_ {
        self.also.iter().rev().copied().chain([self.home])
    }

    pub(crate) fn all(&self) -> Vec<C::Mark> {
        self.newest_first().collect()
    }
}
