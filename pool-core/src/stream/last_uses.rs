//! The last uses of a block, one for each stream that used it.

use crate::port::StreamClock;
use crate::stream::order::{Pending, Requester};

/// The most uses that [`LastUses::uses_are_distinct`] compares with each other.
const MAX_CHECKED_USES: usize = 8;

/// The last use of a block on each stream. Each hit moves it, so it must be small.
#[derive(Debug)]
#[expect(clippy::box_collection, reason = "one word instead of three in each block")]
pub(crate) struct LastUses<C: StreamClock> {
    /// The last use on the stream that the block was allocated for.
    own: Used<C::Mark>,
    /// The last uses on other streams, the oldest first. Most programs have none, and `None` takes
    /// only one word.
    others: Option<Box<Vec<Used<C::Mark>>>>,
    /// True if `own` is newer than all uses in `others`.
    own_is_newest: bool,
    /// True if no stream had the block: each may have it as it is.
    is_nobodys: bool,
}

#[derive(Clone, Copy, Debug)]
struct Used<M> {
    last: M,
    /// True if any use began. If none did, `last` is only the point of the allocation.
    has_begun: bool,
    /// The number of uses that have begun and not ended. If it is not 0 when the buffer is dropped,
    /// a `Use` was leaked or `record_stream` was called. Then all work that the stream was given
    /// before the drop counts as a use.
    open_uses: u32,
}

impl<C: StreamClock> LastUses<C> {
    #[inline]
    pub(crate) fn new(own: C::Mark) -> Self {
        Self {
            own: Used { last: own, has_begun: false, open_uses: 0 },
            others: None,
            own_is_newest: true,
            is_nobodys: false,
        }
    }

    /// Resets the marks for the next user of a block that is ready.
    #[inline]
    pub(crate) fn restart(&mut self, own: C::Mark) {
        if self.others.is_some() {
            self.others = None;
        }
        self.is_nobodys = false;
        self.own = Used { last: own, has_begun: false, open_uses: 0 };
        self.own_is_newest = true;
    }

    /// Notes that no stream had the block, which is fresh and ready for all.
    pub(crate) fn belong_to_nobody(&mut self) {
        self.is_nobodys = true;
    }

    /// Returns whether all uses are on one stream, the stream of this mark.
    #[inline]
    pub(crate) fn are_all_on(&self, clock: &C, mark: C::Mark) -> bool {
        self.others.is_none() && clock.same_stream(self.own.last, mark)
    }

    /// Returns whether one stream alone used the block, and each use has ended.
    #[inline]
    pub(crate) fn are_closed(&self) -> bool {
        self.others.is_none() && self.own.open_uses == 0 && !C::UNTIL_DROP
    }

    /// Returns whether any use has begun and not ended.
    pub(crate) fn has_open_uses(&self) -> bool {
        self.newest_first().any(|used| used.open_uses > 0)
    }

    #[inline]
    pub(crate) fn own(&self) -> C::Mark {
        self.own.last
    }

    /// Returns the marks that `on` must be ordered after before a new use, and is not yet ordered
    /// after. For an open use this is the latest mark of its stream.
    pub(crate) fn unordered_marks(
        &mut self,
        clock: &C,
        on: &C::Stream,
        cpu_touches: bool,
    ) -> Vec<C::Mark> {
        if self.others.is_some() {
            self.forget_ended(clock);
        }
        let relevant = self.newest_first().filter(|used| used.has_begun || !cpu_touches);
        let now = |used: &Used<C::Mark>| {
            if used.open_uses > 0 || C::UNTIL_DROP { clock.latest(used.last) } else { used.last }
        };
        relevant.map(now).filter(|mark| !clock.is_ordered(on, *mark)).collect()
    }

    /// Forgets uses that no stream has to wait for any more. If no uses on other streams remain, a
    /// drop can free the block under one lock again.
    #[cold]
    #[inline(never)]
    fn forget_ended(&mut self, clock: &C) {
        let Some(others) = &mut self.others else { return };
        forget_obsolete(clock, others);
        if others.is_empty() {
            self.others = None;
        }
    }

    /// Returns the marks of all uses so far, and leaves open uses open. For an open use this is the
    /// latest mark of its stream.
    pub(crate) fn current_marks(&self, clock: &C, cpu_touches: bool) -> Vec<C::Mark> {
        let relevant = self.newest_first().filter(|used| used.has_begun || !cpu_touches);
        let now = |used: &Used<C::Mark>| {
            if used.open_uses > 0 || C::UNTIL_DROP { clock.latest(used.last) } else { used.last }
        };
        relevant.map(now).collect()
    }

    pub(crate) fn begin(&mut self, clock: &C, mark: C::Mark) {
        let used = self.of_stream(clock, mark);
        used.has_begun = true;
        used.open_uses = used.open_uses.saturating_add(1);
    }

    pub(crate) fn end(&mut self, clock: &C, mark: C::Mark) {
        let used = self.of_stream(clock, mark);
        used.has_begun = true;
        used.open_uses = used.open_uses.saturating_sub(1);
        used.last = clock.later(used.last, mark);
    }

    fn of_stream(&mut self, clock: &C, mark: C::Mark) -> &mut Used<C::Mark> {
        self.own_is_newest = clock.same_stream(self.own.last, mark);
        if self.own_is_newest {
            return &mut self.own;
        }
        let others = self.others.get_or_insert_default();
        if let Some(at) = others.iter().position(|used| clock.same_stream(used.last, mark)) {
            others[at..].rotate_left(1);
        } else {
            forget_obsolete(clock, others);
            others.push(Used { last: mark, has_begun: true, open_uses: 0 });
        }
        debug_assert!(others.last().is_some_and(|used| clock.same_stream(used.last, mark)));
        let newest = others.len() - 1;
        &mut others[newest]
    }

    /// Ends the uses that are still open when the block is freed: they last until the latest mark
    /// of their stream.
    #[inline]
    pub(crate) fn close(&mut self, clock: &C) {
        if self.are_closed() {
            return;
        }
        let others = self.others.iter_mut().flat_map(|others| others.iter_mut());
        let lasts = |used: &&mut Used<C::Mark>| used.open_uses > 0 || C::UNTIL_DROP;
        for used in others.chain([&mut self.own]).filter(lasts) {
            *used = Used { last: clock.latest(used.last), open_uses: 0, ..*used };
        }
        invariant!(self.uses_are_distinct(clock), "a block has one last use on each stream");
        invariant!(!self.has_open_uses(), "a free ends each use");
    }

    /// Returns whether no two uses are on one stream.
    fn uses_are_distinct(&self, clock: &C) -> bool {
        let others = self.others.as_ref().map_or(&[][..], |others| others.as_slice());
        let is_new = |(at, used): (usize, &Used<C::Mark>)| {
            let before = others[..at].iter().chain([&self.own]);
            !before.into_iter().any(|known| clock.same_stream(known.last, used.last))
        };
        // Beyond some streams the check would cost more than what it checks.
        others.len() > MAX_CHECKED_USES || others.iter().enumerate().all(is_new)
    }

    /// Returns whether a taker may have the block as it is. Makes no device call.
    #[inline]
    pub(crate) fn is_ready(&self, requester: &Requester<'_, C>) -> bool {
        if self.others.is_none() {
            return (requester.cpu_touches && !self.own.has_begun)
                || self.is_nobodys
                || requester.is_ready(self.own.last);
        }
        self.relevant(requester.cpu_touches).all(|mark| requester.is_ready(mark))
    }

    /// Returns the marks that the next user of the block must be ordered after.
    ///
    /// If the CPU can access the memory, all earlier work was seen done when the block was
    /// allocated, so only uses that have begun count. For other memory the mark of the allocation
    /// counts too, because it is ordered after the uses of earlier buffers.
    #[inline]
    fn relevant(&self, cpu_touches: bool) -> impl Iterator<Item = C::Mark> + '_ {
        self.newest_first().filter(move |used| used.has_begun || !cpu_touches).map(|used| used.last)
    }

    /// Returns the uses, the newest first: a stream that is ordered after the newest is often
    /// ordered after the others already.
    #[inline]
    fn newest_first(&self) -> impl Iterator<Item = &Used<C::Mark>> + '_ {
        let own = |is_its_turn: bool| is_its_turn.then_some(&self.own).into_iter();
        let others = self.others.iter().flat_map(|others| others.iter().rev());
        own(self.own_is_newest).chain(others).chain(own(!self.own_is_newest))
    }

    /// Returns whether `is` holds for all marks.
    pub(crate) fn all_are(&self, is: impl Fn(C::Mark) -> bool) -> bool {
        self.newest_first().all(|used| is(used.last))
    }

    /// Returns the marks that the memory must be behind before it is reused.
    #[inline]
    pub(crate) fn pending(&self, cpu_touches: bool) -> Pending<C::Mark> {
        let is_used = self.own.has_begun || !(cpu_touches || self.is_nobodys);
        match (&self.others, is_used) {
            (None, true) => Pending::One(self.own.last),
            (None, false) => Pending::Nothing,
            (Some(_), _) => self.pending_several(cpu_touches),
        }
    }

    #[cold]
    fn pending_several(&self, cpu_touches: bool) -> Pending<C::Mark> {
        Pending::of(&self.relevant(cpu_touches).collect::<Vec<_>>())
    }
}

/// Forgets the uses that nothing has to wait for any more. Otherwise a buffer that lives long would
/// have a mark of each stream that has ended: wgpu has a stream for each frame.
fn forget_obsolete<C: StreamClock>(clock: &C, uses: &mut Vec<Used<C::Mark>>) {
    uses.retain(|used| !clock.is_obsolete(used.last));
}
