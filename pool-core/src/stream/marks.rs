//! The last uses of a block: one for each stream that used it.

use crate::stream::clock::StreamClock;
use crate::stream::order::{After, Taker};

/// Uses of a block, each stream's last. Moved on each hit, so it is to be small.
#[derive(Debug)]
#[expect(clippy::box_collection, reason = "one word instead of three in each block")]
pub(crate) struct Marks<C: StreamClock> {
    /// The stream that the block was allocated for.
    home: Used<C::Mark>,
    /// The few others that it was taken to. None in most programs, and then one word.
    also: Option<Box<Vec<Used<C::Mark>>>>,
    /// Whether its own stream used it after all of these; they are in the order of their uses.
    home_is_newest: bool,
}

#[derive(Clone, Copy, Debug)]
struct Used<M> {
    last: M,
    /// Whether any use began. If none did, this is only the point of the allocation.
    touched: bool,
    /// Uses begun and not ended. Any left at the drop means that a `Use` was forgotten, or that the
    /// stream was recorded: what it was given until then counts as used.
    open: u32,
}

impl<C: StreamClock> Marks<C> {
    #[inline]
    pub(crate) fn new(home: C::Mark) -> Self {
        Self {
            home: Used { last: home, touched: false, open: 0 },
            also: None,
            home_is_newest: true,
        }
    }

    /// As new, for the next user of a block that is ready.
    #[inline]
    pub(crate) fn restart(&mut self, home: C::Mark) {
        self.also = None;
        self.home = Used { last: home, touched: false, open: 0 };
        self.home_is_newest = true;
    }

    /// As new, for the next user of a block that one stream used.
    #[inline]
    pub(crate) fn restart_home(&mut self, home: C::Mark) {
        debug_assert!(self.also.is_none());
        self.home = Used { last: home, touched: false, open: 0 };
        self.home_is_newest = true;
    }

    /// Whether they are all of one stream, the one of this mark.
    #[inline]
    pub(crate) fn are_of(&self, clock: &C, mark: C::Mark) -> bool {
        self.also.is_none() && clock.same_stream(self.home.last, mark)
    }

    /// Whether each use has ended.
    #[inline]
    pub(crate) fn are_closed(&self) -> bool {
        self.also.is_none() && self.home.open == 0 && !C::UNTIL_DROP
    }

    #[inline]
    pub(crate) fn home(&self) -> C::Mark {
        self.home.last
    }

    /// What a new use on `on` must be ordered behind and is not yet. A use that is still open
    /// counts up to now.
    pub(crate) fn behind(&self, clock: &C, on: &C::Stream, cpu_touches: bool) -> Vec<C::Mark> {
        let counted = self.newest_first().filter(|used| used.touched || !cpu_touches);
        let now = |used: &Used<C::Mark>| {
            if used.open > 0 || C::UNTIL_DROP { clock.latest(used.last) } else { used.last }
        };
        counted.map(now).filter(|mark| !clock.is_ordered(on, *mark)).collect()
    }

    pub(crate) fn begin(&mut self, clock: &C, mark: C::Mark) {
        let used = self.of_stream(clock, mark);
        used.touched = true;
        used.open = used.open.saturating_add(1);
    }

    pub(crate) fn end(&mut self, clock: &C, mark: C::Mark) {
        let used = self.of_stream(clock, mark);
        used.touched = true;
        used.open = used.open.saturating_sub(1);
        used.last = clock.later(used.last, mark);
    }

    fn of_stream(&mut self, clock: &C, mark: C::Mark) -> &mut Used<C::Mark> {
        self.home_is_newest = clock.same_stream(self.home.last, mark);
        if self.home_is_newest {
            return &mut self.home;
        }
        let also = self.also.get_or_insert_default();
        match also.iter().position(|used| clock.same_stream(used.last, mark)) {
            Some(at) => also[at..].rotate_left(1),
            None => also.push(Used { last: mark, touched: true, open: 0 }),
        }
        let newest = also.len() - 1;
        &mut also[newest]
    }

    /// The block is given back: settles what no `Use` has ended.
    #[inline]
    pub(crate) fn close(&mut self, clock: &C) {
        if self.are_closed() {
            return;
        }
        let also = self.also.iter_mut().flat_map(|also| also.iter_mut());
        let lasts = |used: &&mut Used<C::Mark>| used.open > 0 || C::UNTIL_DROP;
        for used in also.chain([&mut self.home]).filter(lasts) {
            *used = Used { last: clock.latest(used.last), open: 0, ..*used };
        }
    }

    /// Whether one stream alone used the block, and a taker may have it as it is.
    #[inline]
    pub(crate) fn is_one_and_ready(&self, taker: &Taker<'_, C>) -> bool {
        self.also.is_none()
            && ((taker.cpu_touches && !self.home.touched) || taker.is_ready(self.home.last))
    }

    /// Whether a taker may have the block as it is. Makes no device call.
    #[inline]
    pub(crate) fn is_ready(&self, taker: &Taker<'_, C>) -> bool {
        if self.also.is_none() {
            return (taker.cpu_touches && !self.home.touched) || taker.is_ready(self.home.last);
        }
        self.counted(taker.cpu_touches).all(|mark| taker.is_ready(mark))
    }

    /// The marks that count. What the CPU touches was seen done when it was granted, so there only
    /// real uses do. Elsewhere the point of the allocation does too: it is ordered after what was
    /// before.
    #[inline]
    fn counted(&self, cpu_touches: bool) -> impl Iterator<Item = C::Mark> + '_ {
        self.newest_first().filter(move |used| used.touched || !cpu_touches).map(|used| used.last)
    }

    /// The latest stream first: who is ordered after it is often ordered after the others already.
    #[inline]
    fn newest_first(&self) -> impl Iterator<Item = &Used<C::Mark>> + '_ {
        let home = |is_its_turn: bool| is_its_turn.then_some(&self.home).into_iter();
        let also = self.also.iter().flat_map(|also| also.iter().rev());
        home(self.home_is_newest).chain(also).chain(home(!self.home_is_newest))
    }

    /// Whether all marks are as `is` says.
    pub(crate) fn all_are(&self, is: impl Fn(C::Mark) -> bool) -> bool {
        self.newest_first().all(|used| is(used.last))
    }

    /// The marks that the memory must be behind before it serves again.
    #[inline]
    pub(crate) fn after(&self, cpu_touches: bool) -> After<C::Mark> {
        match (&self.also, self.home.touched || !cpu_touches) {
            (None, true) => After::One(self.home.last),
            (None, false) => After::Nothing,
            (Some(_), _) => self.after_several(cpu_touches),
        }
    }

    #[cold]
    fn after_several(&self, cpu_touches: bool) -> After<C::Mark> {
        After::of(&self.counted(cpu_touches).collect::<Vec<_>>())
    }
}
