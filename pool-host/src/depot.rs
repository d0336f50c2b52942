//! Idle blocks of all threads: a stack of magazines for each class, each behind a lock of its own.
//!
//! Newest first out, since those are warm; oldest first evicted, whatever its class, by the epoch
//! in which it came. Nothing here allocates, blocks or frees: what is to go is handed to the
//! caller.

mod class;
mod hot;
mod lease;
mod magazine;
#[cfg(all(test, loom))]
mod model;
mod sync;

pub(crate) use class::{CLASSES, Class, FRONT_CLASSES, FRONT_LARGEST, STEP};
use hot::Hot;
pub(crate) use hot::Put;
use lease::Leases;
pub(crate) use magazine::{Batch, MAGAZINE};
use magazine::{Link, Magazine, Vacant};
pub(crate) use sync::TryLock;
use sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use sync::const_unless_loom;

/// From here on batches do not share a magazine, which is then 3 % of a block at most.
const ALONE: usize = 8 << 10;

#[derive(Debug)]
pub(crate) struct Depot {
    stacks: [Stack; CLASSES],
    pub(crate) leases: Leases,
    vacant: Vacant,
    /// Moves with each block that goes below the hot one; what comes in one epoch counts as equally
    /// old.
    epoch: AtomicU64,
    /// When the decay came by last.
    decayed: AtomicU64,
}

/// Two cache lines, since processors fetch them in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Stack {
    /// The newest block, of large classes.
    hot: Hot,
    /// The epoch of the oldest magazine; 0 without any. For those who look for the oldest of all.
    oldest: AtomicU64,
    /// Idle bytes, for those who only want to know.
    bytes: AtomicUsize,
    /// Requests of threads without a front, and blocks that they gave back.
    orphans: [AtomicU64; 2],
    inside: TryLock<Inside>,
}

#[derive(Debug)]
struct Inside {
    top: Link,
    bottom: Link,
    /// One that is empty, for the next that comes.
    spare: Link,
    blocks: usize,
    leased: usize,
    /// The fewest blocks since the last decay: so many nobody needed.
    low: usize,
}

// SAFETY: the links lead to magazines of this stack only, which nobody else reaches, and their
// blocks are memory that belongs to no thread.
#[expect(unsafe_code, reason = "links are shared references to cells")]
unsafe impl Send for Inside {}

/// Why a stack did not take a batch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// So many bytes must be leased first.
    Unleased(usize),
    /// Somebody holds it, or the system has no memory for a magazine.
    Busy,
}

impl Stack {
    const_unless_loom! {
        fn new() -> Self {
            let inside = Inside {
                top: None,
                bottom: None,
                spare: None,
                blocks: 0,
                leased: 0,
                low: 0,
            };
            Self {
                hot: Hot::new(),
                orphans: [AtomicU64::new(0), AtomicU64::new(0)],
                oldest: AtomicU64::new(0),
                bytes: AtomicUsize::new(0),
                inside: TryLock::new(inside),
            }
        }
    }

    #[inline]
    fn enter<R>(&self, class: Class, work: impl FnOnce(&mut Inside) -> R) -> Option<R> {
        self.inside.enter(|inside| {
            let result = work(inside);
            self.oldest.store(inside.bottom.map_or(0, |bottom| bottom.stamp.get()), Relaxed);
            self.bytes.store(inside.blocks * class.bytes(), Relaxed);
            result
        })
    }
}

impl Inside {
    /// A place for the batch: the newest magazine if it has room, else a vacant one on top.
    fn place(&mut self, len: usize, stamp: u64, vacant: &Vacant) -> Link {
        if let Some(top) = self.top
            && top.len.get() + len <= MAGAZINE
            && len < MAGAZINE / 2
        {
            return Some(top);
        }
        let fresh = self.spare.take().or_else(|| vacant.take())?;
        fresh.stamp.set(stamp);
        self.link(fresh);
        Some(fresh)
    }

    fn link(&mut self, magazine: &'static Magazine) {
        magazine.below.set(self.top);
        magazine.above.set(None);
        match self.top {
            Some(top) => top.above.set(Some(magazine)),
            None => self.bottom = Some(magazine),
        }
        self.top = Some(magazine);
    }

    fn unlink(&mut self, magazine: &'static Magazine, vacant: &Vacant) {
        let (below, above) = (magazine.below.get(), magazine.above.get());
        match below {
            Some(below) => below.above.set(above),
            None => self.bottom = above,
        }
        match above {
            Some(above) => above.below.set(below),
            None => self.top = below,
        }
        if let Some(spare) = self.spare.replace(magazine) {
            // Where it cannot go it stays unused for good; that is 256 bytes.
            let _ = vacant.put(spare);
        }
    }

    /// Takes at most so many blocks out of one magazine.
    fn take(&mut self, from: Link, most: usize, vacant: &Vacant) -> Option<Batch> {
        let magazine = from?;
        let batch = magazine.take(most);
        if magazine.len.get() == 0 {
            self.unlink(magazine, vacant);
        }
        self.blocks -= batch.len;
        self.low = self.low.min(self.blocks);
        Some(batch)
    }

    fn unused_lease(&mut self, class: Class) -> usize {
        let unused = self.leased - self.blocks * class.bytes();
        self.leased -= unused;
        unused
    }
}

impl Depot {
    const_unless_loom! {
        pub(crate) fn new(limit: usize) -> Self {
            #[cfg(not(loom))]
            #[expect(clippy::large_stack_arrays, reason = "made by the compiler, in a static")]
            let stacks = [const { Stack::new() }; CLASSES];
            #[cfg(loom)]
            let stacks = std::array::from_fn(|_| Stack::new());
            Self {
                stacks,
                leases: Leases::new(limit),
                vacant: Vacant::new(),
                epoch: AtomicU64::new(1),
                decayed: AtomicU64::new(0),
            }
        }
    }

    #[inline]
    fn stack(&self, class: Class) -> &Stack {
        &self.stacks[class.number()]
    }

    /// The newest large block, without a lock. It is not always here: [`Depot::pop`] finds others.
    #[inline]
    pub(crate) fn take_hot(&self, class: Class) -> Option<*mut u8> {
        self.stack(class).hot.take()
    }

    /// Keeps a large block, where that needs neither a lock nor a lease.
    #[inline]
    pub(crate) fn put_hot(&self, class: Class, block: *mut u8) -> bool {
        self.stack(class).hot.put(block, self.epoch.load(Relaxed))
    }

    /// Keeps a large block as the newest; what was the newest may have to go to the stack.
    pub(crate) fn put_above(&self, class: Class, block: *mut u8) -> Put {
        self.stack(class).hot.put_above(block, self.next_epoch())
    }

    /// Makes a place for a large block that needs no lock, of so many leased bytes as it has; false
    /// if there is one.
    pub(crate) fn open(&self, class: Class) -> bool {
        self.stack(class).hot.open()
    }

    /// The newest blocks of a class, at most so many.
    pub(crate) fn pop(&self, class: Class, most: usize) -> Option<Batch> {
        let stack = self.stack(class);
        if let Some(block) = stack.hot.take() {
            return Some(Batch::of(block));
        }
        stack.enter(class, |inside| inside.take(inside.top, most, &self.vacant))?
    }

    /// Keeps a batch as the newest of its class, and of so many leased bytes what it needs; returns
    /// the rest of them. A refusal leaves all with the caller.
    #[inline]
    pub(crate) fn push(
        &self,
        class: Class,
        batch: &mut Batch,
        lease: usize,
    ) -> Result<usize, Refused> {
        let entered = self.stack(class).enter(class, |inside| {
            let bytes = (inside.blocks + batch.len) * class.bytes();
            let needed = bytes.saturating_sub(inside.leased);
            if needed > lease {
                return Err(Refused::Unleased(needed - lease));
            }
            // What is not small keeps an age of its own.
            let room = if class.bytes() < ALONE { batch.len } else { MAGAZINE };
            let place = inside.place(room, self.next_epoch(), &self.vacant);
            let place = place.ok_or(Refused::Busy)?;
            inside.blocks += batch.len;
            inside.leased += needed;
            place.add(batch);
            Ok(lease - needed)
        });
        entered.unwrap_or(Err(Refused::Busy))
    }

    /// Counts a request of a thread without a front.
    pub(crate) fn count_allocation(&self, class: Class) {
        self.stack(class).orphans[0].fetch_add(1, Relaxed);
    }

    /// Counts a block that such a thread gave back.
    pub(crate) fn count_free(&self, class: Class) {
        self.stack(class).orphans[1].fetch_add(1, Relaxed);
    }

    /// The requests of threads without a front, and what they gave back.
    pub(crate) fn orphans(&self, class: Class) -> [u64; 2] {
        self.stack(class).orphans.each_ref().map(|count| count.load(Relaxed))
    }

    /// The time of the depot. What comes from here on is younger.
    #[inline]
    fn next_epoch(&self) -> u64 {
        self.epoch.fetch_add(1, Relaxed)
    }

    /// The classes that have blocks, and the epoch of the oldest in each.
    fn in_use(&self) -> impl Iterator<Item = (u64, Class, &Stack)> {
        self.stacks.iter().enumerate().filter_map(|(number, stack)| {
            let stacked = Some(stack.oldest.load(Relaxed)).filter(|oldest| *oldest > 0);
            let oldest = stacked.or_else(|| stack.hot.age())?;
            Some((oldest, Class::numbered(number), stack))
        })
    }

    /// Takes out the oldest blocks of all classes: as many as hold `bytes`, out of one magazine.
    ///
    /// A class that has less than a quarter of that is passed over while another has more: to throw
    /// away a hundred small blocks for a large one costs a hundred misses (82 % hits instead of 47
    /// on the worst of the loads in `tcache/cache/tests/loads.rs`).
    #[cold]
    pub(crate) fn take_oldest(&self, bytes: usize) -> Option<(Class, Batch)> {
        let worth = |class: Class| 4 * self.bytes(class) >= bytes;
        self.take_oldest_where(bytes, worth).or_else(|| self.take_oldest_where(bytes, |_| true))
    }

    fn take_oldest_where(
        &self,
        bytes: usize,
        may: impl Fn(Class) -> bool,
    ) -> Option<(Class, Batch)> {
        let mut passed = (0, 0);
        loop {
            // Those that cannot be entered are passed over too.
            let age = |(oldest, class, _): &(u64, Class, &Stack)| (*oldest, class.number());
            let candidates = self.in_use().filter(|stack| age(stack) > passed && may(stack.1));
            let (oldest, class, stack) = candidates.min_by_key(age)?;
            passed = (oldest, class.number());
            let most = bytes.div_ceil(class.bytes());
            if let Some(batch) = self.take_oldest_of(class, stack, most) {
                return Some((class, batch));
            }
        }
    }

    /// Takes out the oldest blocks of a class, at most so many and out of one magazine, and gives
    /// back what was leased for them.
    fn take_oldest_of(&self, class: Class, stack: &Stack, most: usize) -> Option<Batch> {
        let stacked = stack.enter(class, |inside| {
            let batch = inside.take(inside.bottom, most, &self.vacant)?;
            Some((batch, inside.unused_lease(class)))
        });
        if let Some((batch, unused)) = stacked? {
            self.leases.give_back(unused);
            return Some(batch);
        }
        let hot = stack.hot.take()?;
        self.close(class, stack);
        Some(Batch::of(hot))
    }

    /// Gives back what is leased for a hot block, if there is none.
    fn close(&self, class: Class, stack: &Stack) -> usize {
        let unused = if stack.hot.close() { class.bytes() } else { 0 };
        self.leases.give_back(unused);
        unused
    }

    /// Gives back what stacks have leased and do not use. Returns the bytes.
    #[cold]
    pub(crate) fn reclaim_leases(&self) -> usize {
        let stacks = self.stacks.iter().enumerate();
        let unused = stacks.map(|(number, stack)| {
            let class = Class::numbered(number);
            let unused = stack.inside.enter(|inside| inside.unused_lease(class)).unwrap_or(0);
            self.leases.give_back(unused);
            unused + self.close(class, stack)
        });
        unused.sum()
    }

    /// Hands out what nobody needed lately: in each class half of the fewest blocks that it had
    /// since the last time. If more than one turn went by, nobody looked at it in the others, and
    /// half of what is left goes for each.
    pub(crate) fn decay(&self, turns: u32, mut give_back: impl FnMut(Class, Batch)) {
        let last = self.decayed.swap(self.next_epoch(), Relaxed);
        for (_, class, stack) in self.in_use() {
            let due = stack.enter(class, |inside| {
                let low = std::mem::replace(&mut inside.low, inside.blocks);
                let stays = (inside.blocks - low.div_ceil(2)).checked_shr(turns.saturating_sub(1));
                inside.blocks - stays.unwrap_or(0)
            });
            let mut due = due.unwrap_or(0);
            // The hot block came last. It goes when no other is left, and if nobody took it since
            // the last time.
            let is_alone = stack.bytes.load(Relaxed) == 0;
            let is_cold = stack.hot.age().is_some_and(|came| came < last || turns > 1);
            due += usize::from(is_alone && is_cold);
            while due > 0
                && let Some(batch) = self.take_oldest_of(class, stack, due)
            {
                due -= batch.len;
                give_back(class, batch);
            }
        }
    }

    /// All idle bytes.
    pub(crate) fn all_bytes(&self) -> usize {
        (0..CLASSES).map(|number| self.bytes(Class::numbered(number))).sum()
    }

    /// Idle bytes of a class.
    pub(crate) fn bytes(&self, class: Class) -> usize {
        let stack = self.stack(class);
        let hot = if stack.hot.age().is_some() { class.bytes() } else { 0 };
        stack.bytes.load(Relaxed) + hot
    }

    /// Works while somebody is in the stack of a class.
    #[cfg(test)]
    pub(crate) fn while_held(&self, class: Class, work: impl FnOnce()) {
        self.stack(class).enter(class, |_| work());
    }
}
