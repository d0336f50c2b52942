//! The last uses of a block, one for each stream that used it.
//!
//! A use reads or writes. A read comes after the last write on each stream, and a write after all
//! uses, so streams that read one buffer do not wait for each other. A use that the program orders
//! itself (`record_stream`) counts as a write.

use crate::port::StreamClock;
use crate::stream::order::{Pending, Requester};

/// The most uses that [`LastUses::uses_are_distinct`] compares with each other.
const MAX_CHECKED_USES: usize = 8;
/// A block keeps the last uses of at most so many other streams. Those that wrote, are open or under
/// capture, and those that the device refused to order, come on top.
const MAX_STREAMS: usize = 32;
/// The reads that another is ordered after at once, so that not each beyond the most is.
const JOINED_AT_ONCE: usize = 8;

/// What a use does with the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    /// It may read, too.
    Write,
}

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
    /// Whether a use was forgotten because its stream has ended.
    outlived: bool,
}

#[derive(Clone, Copy, Debug)]
struct Used<M> {
    last: M,
    /// The last use that wrote and has ended, as `writes` says.
    written: M,
    writes: Writes,
    /// True if any use began. If none did, `last` is the point of the allocation, as `writes` says.
    has_begun: bool,
    open_reads: OpenUses,
    open_writes: OpenUses,
}

/// What the mark `written` of a stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writes {
    /// Nothing: no write on the stream has ended, or no stream has the block.
    None,
    /// The point of the allocation of a fresh block, which no earlier buffer wrote: a read waits for
    /// nothing. What follows all uses is behind it, as behind `Allocated`.
    Fresh,
    /// The point of the allocation. If the CPU can access the memory, all earlier work was seen
    /// done then, and it counts as nothing. For other memory it counts as a write, because it is
    /// ordered after the uses of earlier buffers.
    Allocated,
    Written,
}

/// The number of uses that have begun and not ended. If it is not 0 when the buffer is dropped, a
/// `Use` was leaked or `record_stream` was called. Then all work that the stream was given before
/// the drop counts as a use. Once it is at its most, some stay open until then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OpenUses(u16);

impl OpenUses {
    #[inline]
    fn begin(&mut self) {
        self.0 = self.0.saturating_add(1);
    }

    #[inline]
    fn end(&mut self) {
        if self.0 < u16::MAX {
            self.0 = self.0.saturating_sub(1);
        }
    }
}

impl<M: Copy> Used<M> {
    #[inline]
    fn new(mark: M, writes: Writes, has_begun: bool) -> Self {
        let [open_reads, open_writes] = [OpenUses::default(); 2];
        Self { last: mark, written: mark, writes, has_begun, open_reads, open_writes }
    }

    #[inline]
    fn open(&mut self, access: Access) -> &mut OpenUses {
        match access {
            Access::Read => &mut self.open_reads,
            Access::Write => &mut self.open_writes,
        }
    }

    /// A use begins. While one that writes is open, the latest mark of its stream counts as written.
    #[inline]
    fn begin(&mut self, access: Access) {
        self.has_begun = true;
        self.open(access).begin();
    }

    #[inline]
    fn is_open(&self) -> bool {
        self.open_reads != OpenUses(0) || self.open_writes != OpenUses(0)
    }

    /// Returns whether what comes after all uses must be behind this one.
    #[inline]
    fn counts(&self, cpu_touches: bool) -> bool {
        match self.writes {
            Writes::None => self.has_begun,
            Writes::Fresh | Writes::Allocated => self.has_begun || !cpu_touches,
            Writes::Written => true,
        }
    }

    #[inline]
    fn has_written(&self, cpu_touches: bool) -> bool {
        let has_ended = match self.writes {
            Writes::None | Writes::Fresh => false,
            Writes::Allocated => !cpu_touches,
            Writes::Written => true,
        };
        has_ended || self.open_writes != OpenUses(0)
    }

    /// Returns the mark that a new use on another stream must be ordered after, if any. For an open
    /// use it is the latest mark of the stream.
    #[inline]
    fn before<C: StreamClock<Mark = M>>(
        &self,
        clock: &C,
        access: Access,
        cpu_touches: bool,
    ) -> Option<M> {
        let (counts, mark, is_open) = match access {
            Access::Write => (self.counts(cpu_touches), self.last, self.is_open()),
            Access::Read => {
                let is_open = self.open_writes != OpenUses(0);
                (self.has_written(cpu_touches), self.written, is_open)
            }
        };
        let lasts = is_open || C::UNTIL_DROP;
        counts.then(|| if lasts { clock.latest(mark) } else { mark })
    }

    /// A use ends at `mark`.
    #[inline]
    fn end<C: StreamClock<Mark = M>>(&mut self, clock: &C, mark: M, access: Access) {
        let is_last = clock.is_later(mark, self.last);
        let writes = access == Access::Write;
        if writes && (self.writes != Writes::Written || clock.is_later(mark, self.written)) {
            (self.written, self.writes) = (mark, Writes::Written);
        }
        if is_last {
            self.last = mark;
        }
        self.open(access).end(); // last: a panic of the clock leaves it open
    }
}

impl<C: StreamClock> LastUses<C> {
    #[inline]
    pub(crate) fn new(own: C::Mark) -> Self {
        let own = Used::new(own, Writes::Allocated, false);
        Self { own, others: None, own_is_newest: true, outlived: false }
    }

    /// Resets the marks for the next user of a block that is ready.
    #[inline]
    pub(crate) fn restart(&mut self, own: C::Mark) {
        if self.others.is_some() {
            self.others = None;
        }
        self.restart_plain(own);
    }

    /// As [`LastUses::restart`], of a block that one stream alone used.
    #[inline]
    pub(crate) fn restart_plain(&mut self, own: C::Mark) {
        debug_assert!(self.others.is_none(), "a plain block has no uses elsewhere");
        self.own = Used::new(own, Writes::Allocated, false);
        self.own_is_newest = true;
        self.outlived = false;
    }

    /// Notes that the block is fresh, and that each stream may read it at once.
    pub(crate) fn set_fresh(&mut self) {
        self.own.writes = Writes::Fresh;
    }

    /// Notes that no stream had the block, which is fresh and ready for all.
    pub(crate) fn clear_owner(&mut self) {
        self.own.writes = Writes::None;
    }

    /// Returns whether all uses are on one stream, the stream of this mark.
    #[inline]
    pub(crate) fn are_all_on(&self, clock: &C, mark: C::Mark) -> bool {
        self.others.is_none() && clock.same_stream(self.own.last, mark)
    }

    /// Returns whether a use on the block's own stream has begun and not ended.
    #[inline]
    pub(crate) fn is_open_on_own(&self) -> bool {
        self.own.is_open()
    }

    /// Returns whether other streams used the block.
    #[inline]
    pub(crate) fn has_others(&self) -> bool {
        self.others.is_some()
    }

    /// As [`LastUses::is_ready`] for a requester on a stream, of a block that one stream alone used.
    #[inline]
    pub(crate) fn own_is_ready(&self, clock: &C, on: &C::Stream, cpu_touches: bool) -> bool {
        let last = self.own.last;
        match cpu_touches {
            true => !self.own.counts(true) || clock.is_seen_done(last),
            false => clock.is_on(on, last) || clock.is_ordered(on, last),
        }
    }

    /// Returns whether one stream alone used the block, and each use has ended that ends before the drop.
    #[inline]
    fn are_closed(&self) -> bool {
        self.others.is_none() && !self.own.is_open()
    }

    /// Returns whether any use has begun and not ended.
    pub(crate) fn has_open_uses(&self) -> bool {
        self.newest_first().any(Used::is_open)
    }

    #[inline]
    pub(crate) fn own(&self) -> C::Mark {
        self.own.last
    }

    /// Returns the marks that `on` must be ordered after before a new use, and is not yet ordered
    /// after.
    pub(crate) fn unordered_marks(
        &mut self,
        clock: &C,
        on: &C::Stream,
        access: Access,
        cpu_touches: bool,
    ) -> Vec<C::Mark> {
        if self.others.is_some() {
            self.forget_done(clock);
        }
        let marks = self.newest_first().filter_map(|used| used.before(clock, access, cpu_touches));
        marks.filter(|mark| !clock.is_ordered(on, *mark)).collect()
    }

    /// Returns the marks that a new use must be ordered after, on whatever stream.
    pub(crate) fn current_marks(
        &self,
        clock: &C,
        access: Access,
        cpu_touches: bool,
    ) -> Vec<C::Mark> {
        self.newest_first().filter_map(|used| used.before(clock, access, cpu_touches)).collect()
    }

    /// Forgets uses that no stream has to wait for any more. If no uses on other streams remain, a
    /// drop can free the block under one lock again.
    #[cold]
    #[inline(never)]
    fn forget_done(&mut self, clock: &C) {
        let is_over = |used: &Used<C::Mark>| {
            let has_ended = !used.is_open() && !C::UNTIL_DROP;
            clock.is_obsolete(used.last) || (has_ended && clock.is_seen_done(used.last))
        };
        self.forget(is_over);
    }

    fn forget(&mut self, is_over: impl Fn(&Used<C::Mark>) -> bool) {
        let Some(others) = &mut self.others else { return };
        let known = others.len();
        others.retain(|used| !is_over(used));
        self.outlived |= others.len() < known;
        if others.is_empty() {
            self.others = None;
        }
    }

    /// Returns the oldest reads that have ended, if the block has uses on too many streams for a new
    /// one on `on`: what is ordered after them stands for them.
    pub(crate) fn too_many(&self, clock: &C, on: &C::Stream, access: Access) -> Vec<C::Mark> {
        let others = self.others.as_ref().map_or(&[][..], |others| others.as_slice());
        if access == Access::Write || others.len() < MAX_STREAMS || C::UNTIL_DROP {
            return Vec::new();
        }
        let now = clock.mark(on);
        if self.newest_first().any(|used| clock.same_stream(used.last, now)) {
            return Vec::new();
        }
        let is_over = |used: &&Used<C::Mark>| {
            used.writes == Writes::None && !used.is_open() && clock.is_submitted(used.last)
        };
        others.iter().filter(is_over).map(|used| used.last).take(JOINED_AT_ONCE).collect()
    }

    /// Returns whether the block was used in work that has not reached the device, and that work only
    /// reads it.
    pub(crate) fn are_unsubmitted_reads(&self, clock: &C, cpu_touches: bool) -> bool {
        let is_late = |used: &Used<C::Mark>, access| {
            let mark = used.before(clock, access, cpu_touches);
            mark.is_some_and(|mark| !clock.is_submitted(mark))
        };
        let used = self.newest_first().any(|used| used.has_begun && is_late(used, Access::Write));
        used && !self.newest_first().any(|used| is_late(used, Access::Read))
    }

    /// Forgets uses on other streams that the new use on `on` was ordered after: what is behind it
    /// is behind them. Call it with all uses (`None`) after a write has begun, which is behind all,
    /// and with those of [`LastUses::too_many`] after a read has.
    #[inline]
    pub(crate) fn join(&mut self, clock: &C, on: &C::Stream, these: Option<&[C::Mark]>) {
        // What a capture is ordered after, only its launches are.
        if self.others.is_some() && !C::UNTIL_DROP && clock.takes_work(on) {
            self.join_others(clock, on, these);
        }
    }

    #[cold]
    fn join_others(&mut self, clock: &C, on: &C::Stream, these: Option<&[C::Mark]>) {
        let now = clock.mark(on);
        self.forget(|used| {
            // Another thread may have written on the stream since.
            let is_meant = these.is_none_or(|these| {
                let is_known = these.iter().any(|mark| clock.is_later(*mark, used.last));
                used.writes == Writes::None && is_known
            });
            is_meant
                && !used.is_open()
                && !clock.same_stream(used.last, now)
                && (clock.is_ordered(on, used.last) || clock.is_seen_done(used.last))
        });
    }

    #[cfg(feature = "check")]
    pub(crate) fn count_others(&self) -> usize {
        self.others.as_ref().map_or(0, |others| others.len())
    }

    /// Begins a use on `on`, if one stream alone used the block, which is `on`, and nothing is to be
    /// waited for. Returns false, and does nothing, if that is not so.
    #[inline]
    pub(crate) fn begin_alone(&mut self, clock: &C, on: &C::Stream, access: Access) -> bool {
        let last = self.own.last;
        let is_alone = self.others.is_none() && clock.is_on(on, last) && clock.is_ordered(on, last);
        if is_alone {
            self.own.begin(access);
        }
        is_alone
    }

    #[inline]
    pub(crate) fn begin(&mut self, clock: &C, mark: C::Mark, access: Access) {
        self.of_stream(clock, mark).begin(access);
    }

    /// Ends a use that began, if one stream alone used the block, that of `mark`. Returns false, and does
    /// nothing, if that is not so.
    #[inline]
    pub(crate) fn end_alone(&mut self, clock: &C, mark: C::Mark, access: Access) -> bool {
        let is_alone = self.are_all_on(clock, mark);
        if is_alone {
            self.own.end(clock, mark, access);
        }
        is_alone
    }

    #[inline]
    pub(crate) fn end(&mut self, clock: &C, mark: C::Mark, access: Access) {
        let used = self.of_stream(clock, mark);
        used.has_begun = true;
        used.end(clock, mark, access);
    }

    /// Puts the block into the hands of the stream of `mark`, behind all uses that have ended. Those
    /// that are open last on. So does an allocation that no use followed: who orders a stream behind
    /// the uses of a buffer need not know what the memory was before.
    #[inline]
    pub(crate) fn hand_to(&mut self, clock: &C, mark: C::Mark) {
        let own = Used::new(mark, Writes::Written, true);
        let is_used = self.own.has_begun || clock.same_stream(self.own.last, mark);
        if is_used && self.are_closed() && !C::UNTIL_DROP {
            self.own = own;
            self.own_is_newest = true;
        } else {
            self.hand_to_besides_open(clock, own);
        }
    }

    #[cold]
    fn hand_to_besides_open(&mut self, clock: &C, own: Used<C::Mark>) {
        let before = std::mem::replace(&mut self.own, own);
        self.own_is_newest = true;
        let others = self.others.take().unwrap_or_default();
        let lasts = |used: &Used<_>| used.is_open() || !used.has_begun || C::UNTIL_DROP;
        for used in others.into_iter().chain([before]).filter(lasts) {
            if clock.same_stream(used.last, own.last) {
                (self.own.open_reads, self.own.open_writes) = (used.open_reads, used.open_writes);
            } else {
                self.others.get_or_insert_default().push(used);
            }
        }
    }

    #[inline]
    fn of_stream(&mut self, clock: &C, mark: C::Mark) -> &mut Used<C::Mark> {
        self.own_is_newest = clock.same_stream(self.own.last, mark);
        if self.own_is_newest {
            return &mut self.own;
        }
        self.of_another_stream(clock, mark)
    }

    #[inline(never)]
    fn of_another_stream(&mut self, clock: &C, mark: C::Mark) -> &mut Used<C::Mark> {
        let others = self.others.get_or_insert_default();
        if let Some(at) = others.iter().position(|used| clock.same_stream(used.last, mark)) {
            others[at..].rotate_left(1);
        } else {
            // A buffer that lives long outlives streams: wgpu has one for each frame.
            let known = others.len();
            others.retain(|used| !clock.is_obsolete(used.last));
            self.outlived |= others.len() < known;
            others.push(Used::new(mark, Writes::None, true));
        }
        debug_assert!(others.last().is_some_and(|used| clock.same_stream(used.last, mark)));
        let newest = others.len() - 1;
        &mut others[newest]
    }

    /// As [`LastUses::close`], of a block that one stream alone used and that no use has open, where uses last
    /// until the drop. Returns false if the program may have used it on streams that no call told of: these count
    /// then ([`LastUses::close`]).
    pub(crate) fn close_plain(&mut self, clock: &C) -> bool {
        debug_assert!(self.are_closed(), "no use of a plain block is open or elsewhere");
        let own = self.own.last;
        let may_be_elsewhere = self.outlived || clock.may_have_ended(own);
        let is_plain = !may_be_elsewhere || clock.open_marks(own).is_empty();
        if is_plain {
            self.own.last = clock.latest(own);
        }
        is_plain
    }

    /// Ends the uses that are still open when the block is freed: they last until the latest mark
    /// of their stream.
    #[inline]
    pub(crate) fn close(&mut self, clock: &C) {
        if !C::UNTIL_DROP && self.are_closed() {
            return;
        }
        if C::UNTIL_DROP {
            self.use_on_open_streams(clock);
        }
        let others = self.others.iter_mut().flat_map(|others| others.iter_mut());
        let lasts = |used: &&mut Used<C::Mark>| used.is_open() || C::UNTIL_DROP;
        for used in others.chain([&mut self.own]).filter(lasts) {
            let [open_reads, open_writes] = [OpenUses::default(); 2];
            *used = Used { last: clock.latest(used.last), open_reads, open_writes, ..*used };
        }
        invariant!(self.uses_are_distinct(clock), "a block has one last use on each stream");
        invariant!(!self.has_open_uses(), "a free ends each use");
    }

    /// Counts a buffer that the program had for longer than one of its streams, as far as it may think, as
    /// used by all streams that are open and began after that of its allocation: the program may have
    /// recorded it in each of them, which no call told.
    fn use_on_open_streams(&mut self, clock: &C) {
        self.forget(|used| clock.is_obsolete(used.last));
        if !self.outlived && !self.newest_first().any(|used| clock.may_have_ended(used.last)) {
            return;
        }
        for mark in clock.open_marks(self.own.last) {
            if self.newest_first().all(|used| !clock.same_stream(used.last, mark)) {
                let others = self.others.get_or_insert_default();
                others.push(Used::new(mark, Writes::Written, true));
                self.own_is_newest = false;
            }
        }
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
            return !self.own.counts(requester.cpu_touches) || requester.is_ready(self.own.last);
        }
        self.relevant(requester.cpu_touches).all(|mark| requester.is_ready(mark))
    }

    /// Returns the marks that the next user of the block must be ordered after.
    #[inline]
    pub(crate) fn relevant(&self, cpu_touches: bool) -> impl Iterator<Item = C::Mark> + '_ {
        self.newest_first().filter(move |used| used.counts(cpu_touches)).map(|used| used.last)
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
    pub(crate) fn all_are(&self, mut is: impl FnMut(C::Mark) -> bool) -> bool {
        self.newest_first().all(|used| is(used.last))
    }

    /// Returns the marks that the memory must be behind before it is reused.
    #[inline]
    pub(crate) fn pending(&self, cpu_touches: bool) -> Pending<C::Mark> {
        match (&self.others, self.own.counts(cpu_touches)) {
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
