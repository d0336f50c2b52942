//! Free lists: one for each group of ranges and each stream that used them last; and the count of free parts of
//! segments.

use crate::by_size::{SizeKey, SizeSteps};
use crate::observe::levels::{BlockClass, Count};
use crate::port::StreamClock;
use crate::ranges::Ranges;

/// The ranges that may serve the same requests and coalesce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group<K> {
    pub(crate) kind: K,
    /// Whether it is apart from larger requests (`PyTorch`'s small pool).
    pub(crate) small: bool,
}

/// Who used a free range last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UsedBy {
    /// No stream has used it.
    NoStream,
    /// The stream of this number.
    Stream(u64),
    /// One stream of those that have this number modulo [`MAX_LISTS_OF_STREAMS`], of a list only: where there
    /// are more streams than lists, some have one in common.
    OneOf(u64),
    /// More than one stream.
    Several,
    /// There is no memory behind it.
    Hole,
}

impl UsedBy {
    /// The streams of a range that is behind these marks.
    #[inline]
    pub(crate) fn of_marks<C: StreamClock>(clock: &C, marks: &[C::Mark]) -> Self {
        match marks {
            [] => Self::NoStream,
            [one] => Self::Stream(clock.stream_id(*one)),
            [first, rest @ ..] => match rest.iter().all(|mark| clock.same_stream(*first, *mark)) {
                true => Self::Stream(clock.stream_id(*first)),
                false => Self::Several,
            },
        }
    }

    /// Whether a stream of this number may have it without another stream's consent.
    #[inline]
    pub(crate) fn is_own(self, stream: u64) -> bool {
        self == Self::NoStream || self == Self::Stream(stream)
    }

    /// The name of the list that a stream has in common with others.
    pub(super) fn in_common(self) -> Self {
        match self {
            Self::Stream(stream) => Self::OneOf(stream % MAX_LISTS_OF_STREAMS as u64),
            other => other,
        }
    }

    /// The owner of a range that consists of both; `None` if they do not coalesce.
    #[inline]
    pub(crate) fn coalesced(self, other: Self) -> Option<Self> {
        match (self, other) {
            (Self::Several, _) | (_, Self::Several) => None,
            (own, other) if own == other => Some(own),
            (Self::Hole, _) | (_, Self::Hole) => None,
            (Self::NoStream, used_by) | (used_by, Self::NoStream) => Some(used_by),
            _ => None,
        }
    }
}

/// Lists that are searched for what goes back, at once.
const MAX_LISTS_AT_ONCE: usize = 16;
/// Lists after which further streams have one in common with some others, of as many again.
const MAX_LISTS_OF_STREAMS: usize = 512;

/// The free ranges of one group and stream.
#[derive(Debug)]
pub(crate) struct RangeList<K> {
    pub(crate) group: Group<K>,
    pub(crate) used_by: UsedBy,
    pub(crate) bins: SizeSteps,
}

/// All free lists of a shard.
#[derive(Debug)]
pub(crate) struct RangeLists<K> {
    all: Vec<RangeList<K>>,
    /// The lists that were asked for last: of small and of large requests, and those of no stream.
    last: [u16; 4],
    /// The first list of the next portion.
    portion: usize,
    unit_bits: u32,
    /// Whether the ranges of a step are in order.
    ordered: bool,
    /// Whether some lists are of streams that have them in common.
    some_in_common: bool,
}

impl<K: Copy + Eq> RangeLists<K> {
    /// Lists whose sizes are told apart in units of 2 to the power of `unit_bits`, and whose ranges
    /// are in order, or not.
    pub(crate) fn new(unit_bits: u32, ordered: bool) -> Self {
        let (all, last, some_in_common) = (Vec::new(), [0; 4], false);
        Self { all, last, portion: 0, unit_bits, ordered, some_in_common }
    }

    /// The number of the list of a group and stream.
    #[inline]
    pub(crate) fn number(&mut self, group: Group<K>, used_by: UsedBy) -> u16 {
        match self.known(group, used_by) {
            Some(at) => at,
            None => self.add(group, used_by),
        }
    }

    /// The number of the list of a group and stream, or of a group and no stream, if there is one.
    #[expect(clippy::inline_always, reason = "a hit is one function: no calls and no spills")]
    #[inline(always)]
    pub(crate) fn known(&mut self, group: Group<K>, used_by: UsedBy) -> Option<u16> {
        let last = self.last[slot(group.small, used_by)];
        let list = self.all.get(usize::from(last));
        match list.is_some_and(|list| list.used_by == used_by && list.group == group) {
            true => Some(last),
            false => self.search(group, used_by),
        }
    }

    /// A list that is not the one that was asked for last.
    #[inline(never)]
    fn search(&mut self, group: Group<K>, used_by: UsedBy) -> Option<u16> {
        let is = |list: &RangeList<K>| list.used_by == used_by && list.group == group;
        let at = number(self.all.iter().position(is)?);
        self.last[slot(group.small, used_by)] = at;
        Some(at)
    }

    /// Whether some lists are of streams that have them in common.
    #[inline]
    pub(crate) fn some_in_common(&self) -> bool {
        self.some_in_common
    }

    /// An empty list serves again under another name, so that streams that come and go leave
    /// nothing behind.
    #[inline(never)]
    fn add(&mut self, group: Group<K>, used_by: UsedBy) -> u16 {
        if let Some(at) = self.all.iter().position(|list| list.bins.bytes() == 0) {
            (self.all[at].group, self.all[at].used_by) = (group, used_by);
            return number(at);
        }
        if self.all.len() >= MAX_LISTS_OF_STREAMS
            && let UsedBy::Stream(_) = used_by
        {
            self.some_in_common = true;
            return self.number(group, used_by.in_common());
        }
        self.all.push(RangeList {
            group,
            used_by,
            bins: SizeSteps::new(self.unit_bits, self.ordered),
        });
        number(self.all.len() - 1)
    }

    #[inline]
    pub(crate) fn get(&self, at: u16) -> &RangeList<K> {
        &self.all[usize::from(at)]
    }

    #[inline]
    pub(crate) fn bins(&mut self, at: u16) -> &mut SizeSteps {
        &mut self.all[usize::from(at)].bins
    }

    /// After this many portions all lists have had their turn.
    pub(crate) fn portions(&self) -> usize {
        self.all.len().div_ceil(MAX_LISTS_AT_ONCE)
    }

    /// The numbers of lists with free memory, a portion of them; other ones with each call, so that
    /// all have their turn.
    pub(crate) fn next_portion(&mut self) -> impl Iterator<Item = u16> + use<'_, K> {
        let (len, first, count) = (self.all.len(), self.portion, MAX_LISTS_AT_ONCE);
        let numbers = (0..len).map(move |at| (first + at) % len);
        let full = |list: &RangeList<K>| list.used_by != UsedBy::Hole && list.bins.bytes() > 0;
        self.portion = numbers.clone().filter(|at| full(&self.all[*at])).nth(count).unwrap_or(0);
        numbers.filter(move |at| full(&self.all[*at])).take(count).map(number)
    }

    /// All lists with their numbers, from one on and round.
    #[inline]
    pub(crate) fn from(&self, first: usize) -> impl Iterator<Item = (usize, &RangeList<K>)> {
        let (before, after) = self.all.split_at(first.min(self.all.len()));
        let from = |first: usize| move |(at, list)| (first + at, list);
        let after = after.iter().enumerate().map(from(first));
        after.chain(before.iter().enumerate().map(from(0)))
    }

    /// All lists, in the order of their numbers.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &RangeList<K>> {
        self.all.iter()
    }
}

/// Where the list is remembered that was asked for last.
#[inline]
fn slot(small: bool, used_by: UsedBy) -> usize {
    usize::from(small) + if used_by == UsedBy::NoStream { 2 } else { 0 }
}

fn number(at: usize) -> u16 {
    let number = u16::try_from(at);
    invariant!(number.is_ok(), "a shard has fewer than 2^16 free lists");
    number.unwrap_or(u16::MAX)
}

/// Free ranges that are not a whole segment (`PyTorch`: `inactive_split`).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SplitFigures {
    pub(crate) ranges: Count,
    pub(crate) bytes: Count,
}

impl<C: StreamClock, K: Copy + Eq + Default> Ranges<C, K> {
    /// Puts a free range into a list.
    #[inline]
    pub(super) fn insert(&mut self, list: u16, id: u32) {
        self.lists.bins(list).insert(&mut self.nodes, id);
        if self.split.is_some() {
            self.count_split(id, None, Some(self.nodes[id].bytes));
        }
    }

    /// Takes a free range out of its list.
    #[inline]
    pub(super) fn remove(&mut self, list: u16, id: u32) {
        self.remove_changed(list, id, self.nodes[id].key());
    }

    /// Takes a free range out of its list that has changed since it was put in.
    #[inline]
    pub(super) fn remove_changed(&mut self, list: u16, id: u32, was: SizeKey) {
        self.lists.bins(list).remove(&mut self.nodes, id, was);
        if self.split.is_some() {
            self.count_split(id, Some(was.bytes), None);
        }
    }

    /// Follows a free range that was `was` and has changed.
    #[inline]
    pub(super) fn resize(&mut self, list: u16, id: u32, was: SizeKey) {
        let node = &self.nodes[id];
        let (bytes, step) = (node.bytes, node.links.step);
        self.lists.bins(list).resize(&mut self.nodes, (id, step), was, bytes);
        if self.split.is_some() {
            self.count_split(id, Some(was.bytes), Some(bytes));
        }
    }

    /// Follows a range that had `was` bytes in a list and has `is` now.
    pub(super) fn count_split(&mut self, id: u32, was: Option<u64>, is: Option<u64>) {
        let Some(split) = &mut self.split else { return };
        let Some(segment) = self.segments.get(self.nodes[id].segment) else { return };
        let class = BlockClass::small_if(segment.group.small);
        if let (Some(was), Some(is)) = (was, is)
            && was != segment.bytes
            && is != segment.bytes
        {
            split.ranges.replace(class, 1, 1);
            split.bytes.replace(class, was, is);
            return;
        }
        if let Some(was) = was.filter(|bytes| *bytes != segment.bytes) {
            split.ranges.down(class, 1);
            split.bytes.down(class, was);
        }
        if let Some(is) = is.filter(|bytes| *bytes != segment.bytes) {
            split.ranges.up(class, 1);
            split.bytes.up(class, is);
        }
    }
}
