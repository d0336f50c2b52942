//! Free blocks that all threads share: for each size class a list behind a lock of its own.
//!
//! ```text
//!   thread caches         batches of blocks
//!        |  ^
//!        v  |
//!     recent              the last blocks that came, in an array
//!        |  ^
//!        v  |
//!     spans               pages/span.rs: marks beside the pages; a span without a used block goes
//!                         back to the pages
//! ```
//!
//! Blocks that one thread frees and another takes pass through `recent` and touch no span. All
//! classes together have a bounded number of bytes there ([`Depot::most_now`]). A class that finds no
//! room puts blocks into the spans, and takes room from classes that did not need theirs. What no
//! request needed for a while moves to the spans ([`Depot::age`]), and pages between blocks in use go
//! back ([`Depot::give_back`]); each call does a bounded part of that.
//!
//! Like the pages, no list is waited for while another thread forks. A request is then refused, and
//! a block that comes back is linked to those that the next thread takes in which has the lock. A
//! fork writes to one word for all classes.
#![expect(unsafe_code, reason = "what a lock guards is not beside it")]

mod list;

use crate::class::{CLASSES, Class};
use crate::pages::lock::Gate;
use crate::pages::span::span_bytes;
use crate::pages::{Pages, end_once_for};
use crate::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use list::{ClassList, Locked, Recent};
use std::cell::UnsafeCell;
use std::ptr;

/// The most blocks of a batch.
pub(crate) const BATCH: usize = 32;
/// The most bytes of a batch of more than one block.
const BATCH_BYTES: usize = 256 << 10;
/// The most recent blocks of a class, and their most bytes.
const RECENT: usize = 16 * BATCH;
const RECENT_BYTES: usize = 8 * BATCH_BYTES;
/// The part of the cached limit that the recent blocks of all classes may have, as a divisor.
const PART_OF_LIMIT: usize = 8;
/// The part of the used pages that they may have beyond [`LEAST`], as a divisor.
const PART_OF_USED: usize = 8;
const LEAST: usize = 2 << 20;
/// The most classes from which a call that finds no room takes some.
const CLASSES_FOR_ROOM: usize = 8;
/// Rounds of [`Depot::age`] after which a span that nobody used loses the memory of its free pages.
const ROUNDS: u32 = 10;

/// Returns how many blocks of a class move at once.
pub(crate) const fn batch_len(class: Class) -> usize {
    at_most(BATCH, BATCH_BYTES, class)
}

/// Returns how many blocks have at most so many bytes: at most `most`, and at least one.
const fn at_most(most: usize, bytes: usize, class: Class) -> usize {
    let fit = bytes / class.bytes();
    if fit > most {
        most
    } else if fit == 0 {
        1
    } else {
        fit
    }
}

/// Blocks of one class that move.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    blocks: [*mut u8; BATCH],
    len: usize,
}

impl Batch {
    /// A batch without blocks.
    pub(crate) const EMPTY: Self = Self { blocks: [ptr::null_mut(); BATCH], len: 0 };

    /// Adds a block. A full batch, of [`BATCH`] blocks, does not take it.
    pub(crate) fn add(&mut self, block: *mut u8) {
        if let Some(place) = self.blocks.get_mut(self.len) {
            *place = block;
            self.len += 1;
        }
    }

    /// Takes the block that was added last.
    pub(crate) fn pop(&mut self) -> Option<*mut u8> {
        self.len = self.len.checked_sub(1)?;
        self.blocks.get(self.len).copied()
    }

    /// Returns the blocks in the order in which they were added.
    pub(crate) fn as_slice(&self) -> &[*mut u8] {
        self.blocks.get(..self.len).unwrap_or_default()
    }
}

/// The free blocks of all classes. Those on pages only: blocks of an inner allocator go back to it.
///
/// What a fork writes to comes first.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Depot {
    /// Before the locks of all lists. It is read where a list is used, so its cache line has nothing else.
    gate: Gate,
    lists: [ClassList; CLASSES],
    /// The bytes of recent blocks that all classes together may have by their caps.
    room: AtomicUsize,
    /// The most that it may become by the cached limit.
    most: AtomicUsize,
    /// The classes that come next: in a round of [`Depot::age`], in one of [`Depot::give_back`], and
    /// where room is looked for.
    ages: AtomicUsize,
    gives: AtomicUsize,
    yields: AtomicUsize,
    recent: [Recent; CLASSES],
}

impl Depot {
    /// Without blocks.
    pub(crate) const fn new() -> Self {
        #[expect(clippy::large_stack_arrays, reason = "made by the compiler, in a static")]
        let recent = [const { Recent(UnsafeCell::new([ptr::null_mut(); RECENT])) }; CLASSES];
        Self {
            lists: [const { ClassList::new() }; CLASSES],
            recent,
            gate: Gate::new(),
            room: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            ages: AtomicUsize::new(CLASSES),
            gives: AtomicUsize::new(CLASSES),
            yields: AtomicUsize::new(0),
        }
    }

    /// Bounds the recent blocks by their part of the cached limit.
    pub(crate) fn configure(&self, limit: usize) {
        self.most.store(limit / PART_OF_LIMIT, Relaxed);
    }

    /// Returns the part of the cached limit that recent blocks may have.
    pub(crate) fn limit(&self) -> usize {
        self.most.load(Relaxed)
    }

    /// Returns the most bytes of recent blocks of all classes together: 2 MiB and an eighth of the
    /// used pages, and at most an eighth of the cached limit.
    fn most_now(&self, pages: &Pages) -> usize {
        (LEAST + pages.used_bytes() / PART_OF_USED).min(self.limit())
    }

    #[inline]
    fn list(&self, class: Class) -> &ClassList {
        &self.lists[class.number()]
    }

    /// Runs `work` under the lock of a class, after what came during a fork. `None` if another thread
    /// forks.
    ///
    /// Then ends the program if a block came back that is none, or was free already.
    fn enter<R>(
        &self,
        class: Class,
        pages: &Pages,
        work: impl FnOnce(&mut Locked<'_>) -> R,
    ) -> Option<R> {
        let list = self.list(class);
        let (result, invalid) = self.gate.enter(&list.inside, |inside| {
            // SAFETY: this thread holds the lock of the class, and no other place makes a reference.
            let recent = unsafe { &mut *self.recent[class.number()].0.get() };
            let mut held = Locked { class, inside, recent, pages };
            if !list.late.load(Relaxed).is_null() {
                list.take_late(&mut held);
            }
            let result = work(&mut held);
            list.publish(held.inside);
            (result, held.inside.spans.take_invalid())
        })?;
        if !invalid.is_null() {
            end_once_for(invalid);
        }
        Some(result)
    }

    /// Takes blocks of a class, at most `most`: the newest. `None` if there is no memory for one, and
    /// while another thread forks.
    pub(crate) fn take(&self, class: Class, most: usize, pages: &Pages) -> Option<Batch> {
        self.enter(class, pages, |held| held.take(most))?
    }

    /// Takes blocks of a class back, as the newest.
    pub(crate) fn put(&self, class: Class, batch: &Batch, pages: &Pages) {
        if batch.len == 0 {
            return;
        }
        let has_room = self.enter(class, pages, |held| {
            let has_room = self.widen(held, batch.len);
            batch.as_slice().iter().for_each(|block| held.put(*block));
            has_room
        });
        match has_room {
            Some(true) => {}
            Some(false) => self.make_room(batch.len * class.bytes(), pages),
            None => {
                let list = self.list(class);
                batch.as_slice().iter().for_each(|block| list.put_late(*block));
            }
        }
    }

    /// Lets a class have so many recent blocks more than it has, as far as a class may and as there is
    /// room for all classes together. Returns whether that was enough. The first are
    /// a whole batch.
    #[expect(clippy::cast_possible_truncation, reason = "at most RECENT")]
    fn widen(&self, held: &mut Locked<'_>, more: usize) -> bool {
        let (cap, block) = (held.inside.cap as usize, held.class.bytes());
        if cap == 0 && more < batch_len(held.class) {
            return true; // few blocks, and far between: their array would be a page
        }
        let next = (held.len() + more).min(at_most(RECENT, RECENT_BYTES, held.class));
        if next <= cap {
            return true;
        }
        let asked = (next - cap) * block;
        let before = self.room.fetch_add(asked, Relaxed);
        let fits = self.most_now(held.pages).saturating_sub(before).min(asked) / block;
        held.inside.cap += fits as u32;
        let has_room = fits * block == asked;
        if !has_room {
            self.room.fetch_sub(asked - fits * block, Relaxed);
        }
        has_room
    }

    /// Takes room from the classes that come next, of [`CLASSES_FOR_ROOM`] at most: of each at most a batch
    /// that no request needed moves to spans, until there is room for so many bytes. Does nothing for what
    /// is more than half of all room.
    #[cold]
    fn make_room(&self, bytes: usize, pages: &Pages) {
        let most = self.most_now(pages);
        if bytes > most / 2 {
            return;
        }
        let mut looks = 0..CLASSES;
        let next = || {
            let at = self.yields.fetch_add(1, Relaxed) % CLASSES;
            looks.next().map(|_| Class::numbered(at))
        };
        let with_room = std::iter::from_fn(next)
            .filter(|class| self.list(*class).cap.load(Relaxed) > 0)
            .take(CLASSES_FOR_ROOM);
        for class in with_room {
            self.enter(class, pages, |held| self.shed(held, |low| low.min(BATCH)));
            if self.room.load(Relaxed) + bytes <= most {
                return;
            }
        }
    }

    /// Moves blocks as [`Locked::shed`] does, and gives back the room of the class. Returns how many.
    ///
    /// Both happen under the lock, which a fork takes, so that a child counts each byte of room once.
    fn shed(&self, held: &mut Locked<'_>, count: impl FnOnce(usize) -> usize) -> usize {
        let (moved, room) = held.shed(count);
        self.room.fetch_sub(room, Relaxed);
        moved
    }

    /// Begins a round of [`Depot::age`] and one of [`Depot::give_back`], unless the last one is not
    /// done.
    pub(crate) fn begin_round(&self) {
        for next in [&self.ages, &self.gives] {
            if next.load(Relaxed) >= CLASSES {
                next.store(0, Relaxed);
            }
        }
    }

    /// Moves half of the recent blocks that no request needed since the last round to their spans, for
    /// the classes that come next in this round, until about `blocks` blocks have moved. Returns
    /// whether more is due.
    pub(crate) fn age(&self, blocks: usize, pages: &Pages) -> bool {
        self.go_on(&self.ages, blocks, |class, left| {
            let moved = self.enter(class, pages, |held| {
                held.inside.spans.tick();
                self.shed(held, |low| low.div_ceil(2))
            });
            *left = left.saturating_sub(moved.unwrap_or_default());
            true
        })
    }

    /// Gives back the memory of spans that no request needed for [`ROUNDS`] rounds of
    /// [`Depot::age`], for the classes that come next in this round, until about so much work is done
    /// ([`Spans::give_back`]). Returns whether more is due.
    pub(crate) fn give_back(&self, work: usize, pages: &Pages) -> bool {
        self.go_on(&self.gives, work, |class, left| {
            // While another thread forks, the class waits for the next round.
            let is_done = self.enter(class, pages, |held| {
                held.inside.spans.give_back(class, ROUNDS, left, pages)
            });
            is_done.unwrap_or(true)
        })
    }

    /// Continues a round over the classes that are in use, while something is left of a budget. A class
    /// for which `work` returns false comes first in the next call. Returns whether the round is not
    /// done.
    fn go_on(
        &self,
        next: &AtomicUsize,
        mut left: usize,
        work: impl Fn(Class, &mut usize) -> bool,
    ) -> bool {
        while left > 0 && next.load(Relaxed) < CLASSES {
            let at = next.fetch_add(1, Relaxed);
            if at < CLASSES && self.is_in_use(Class::numbered(at)) {
                let is_done = work(Class::numbered(at), &mut left);
                if !is_done {
                    // If another thread works on a later class meanwhile, this one waits for the next round.
                    let _ = next.compare_exchange(at + 1, at, Relaxed, Relaxed);
                    break;
                }
            }
        }
        next.load(Relaxed) < CLASSES
    }

    /// Moves all recent blocks to their spans, and gives back the memory of free pages of spans.
    pub(crate) fn clear(&self, pages: &Pages) {
        for class in Class::all().filter(|class| self.is_in_use(*class)) {
            self.enter(class, pages, |held| {
                held.retire(held.len());
                held.inside.spans.tick();
                held.inside.spans.give_back_all(class, pages);
            });
        }
    }

    /// Returns whether a class has free blocks, or room for some.
    fn is_in_use(&self, class: Class) -> bool {
        let list = self.list(class);
        list.cap.load(Relaxed) > 0
            || list.free.load(Relaxed) > 0
            || !list.late.load(Relaxed).is_null()
    }

    /// Returns the bytes that the recent blocks of all classes may have now.
    pub(crate) fn room_bytes(&self) -> usize {
        self.room.load(Relaxed)
    }

    /// Returns the bytes of recent blocks that all classes may have by their caps, one by one.
    #[cfg(test)]
    pub(crate) fn cap_bytes(&self) -> usize {
        let of = |class: Class| self.list(class).cap.load(Relaxed) as usize * class.bytes();
        Class::all().map(of).sum()
    }

    /// Returns the bytes of the recent blocks of a class.
    pub(crate) fn recent_bytes(&self, class: Class) -> usize {
        self.list(class).recent.load(Relaxed) as usize * class.bytes()
    }

    /// Returns the bytes of the free blocks of spans of a class.
    pub(crate) fn free_bytes(&self, class: Class) -> usize {
        self.list(class).free.load(Relaxed) * class.bytes()
    }

    /// Returns the bytes of the spans of a class.
    pub(crate) fn span_bytes(&self, class: Class) -> usize {
        self.list(class).spans.load(Relaxed) as usize * span_bytes(class)
    }

    /// Counts a request from a thread without a thread cache.
    pub(crate) fn count_allocation(&self, class: Class) {
        self.list(class).cacheless[0].fetch_add(1, Relaxed);
    }

    /// Counts a block that a thread without a thread cache freed.
    pub(crate) fn count_free(&self, class: Class) {
        self.list(class).cacheless[1].fetch_add(1, Relaxed);
    }

    /// Returns the requests from threads without a thread cache, and the blocks that they freed.
    pub(crate) fn cacheless(&self, class: Class) -> [u64; 2] {
        self.list(class).cacheless.each_ref().map(|count| count.load(Relaxed))
    }

    /// Has no thread in any list before a fork, so that the child finds the lists whole.
    ///
    /// A signal handler may have interrupted its own thread where that has the lock of the pages. The
    /// background thread may wait for that with the lock of a class, which is not awaited then: the child
    /// does without the class.
    pub(crate) fn before_fork(&self, pages: &Pages) {
        let waits = !pages.is_inside();
        self.gate.before_fork(self.lists.iter().map(|list| &list.inside), waits);
    }

    /// Lets threads in after a fork, in the parent.
    pub(crate) fn after_fork(&self) {
        self.gate.after_fork();
    }

    /// Lets threads in after a fork, in the child.
    ///
    /// Blocks that came during the fork are lost to it: the program may have told the system to give
    /// a child not the pages through which they are linked.
    pub(crate) fn in_child(&self) {
        for list in &self.lists {
            // Reads cost the child no page of its own.
            if !list.late.load(Relaxed).is_null() {
                list.late.store(ptr::null_mut(), Relaxed);
            }
        }
        self.gate.in_child(self.lists.iter().map(|list| &list.inside));
    }
}
