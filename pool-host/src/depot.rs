//! Cached blocks that all threads share: one free list of magazines for each size class.
//!
//! Each free list has its own lock. A request takes blocks from the newest magazine of its class,
//! because those blocks are most likely in the processor's caches. Eviction takes blocks from the
//! oldest magazine of all classes; a magazine's age is the epoch of the first batch in it.
//!
//! The depot never calls the inner allocator and never frees a block: blocks to be evicted are
//! returned to the caller. No call waits without bound for a lock. Memory for magazines comes from
//! the system and is never unmapped.

mod class;
mod lease;
mod magazine;
#[cfg(all(test, loom))]
mod model;
mod sync;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

pub(crate) use class::{CLASSES, Class, LARGEST};
use lease::Leases;
pub(crate) use magazine::{Batch, MAGAZINE};
use magazine::{Link, Magazine, Vacant};
pub(crate) use sync::TryLock;
use sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use sync::const_unless_loom;

/// Block size in bytes from which each batch has its own magazine. The magazine (256 bytes) is then
/// at most 3 % of a block.
const ALONE: usize = 8 << 10;

/// The depot: a free list for each size class, and the leases that bound their bytes.
#[derive(Debug)]
pub(crate) struct Depot {
    lists: [FreeList; CLASSES],
    pub(crate) leases: Leases,
    vacant: Vacant,
    /// The depot's clock: increases by one with each batch that is pushed.
    epoch: AtomicU64,
    /// Number of the class at which [`Depot::take_due`] begins its search.
    cursor: AtomicUsize,
}

/// The free list of one class, and copies of its figures that are read without its lock.
///
/// It is aligned to two cache lines, because processors fetch lines in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct FreeList {
    /// Epoch of the oldest magazine; 0 if the list is empty. [`Depot::take_oldest`] compares it
    /// across classes.
    oldest: AtomicU64,
    /// Cached bytes.
    bytes: AtomicUsize,
    /// Blocks that have decayed and that [`Depot::take_due`] may take.
    due: AtomicUsize,
    /// Requests from threads without a thread cache, and blocks that these threads freed.
    cacheless: [AtomicU64; 2],
    inside: TryLock<Contents>,
}

/// The part of a free list that its lock guards.
#[derive(Debug)]
struct Contents {
    /// The newest magazine.
    top: Link,
    /// The oldest magazine.
    bottom: Link,
    /// Empty magazines for the next batches: the last one that became empty, and those that
    /// `vacant` could not take.
    spare: Link,
    /// Number of cached blocks.
    blocks: usize,
    /// Bytes that this list has leased: at least the bytes of its blocks.
    leased: usize,
    /// Smallest number of blocks since the last call of [`Depot::age`]: no request needed these
    /// blocks.
    low: usize,
    /// Number of blocks that have decayed and are to be evicted.
    due: usize,
}

// SAFETY: `top`, `bottom` and `spare` link magazines of this free list only. A magazine is in one
// free list or in `Vacant`, and each of these is reached only under its `TryLock`, so no two
// threads use a magazine's cells at once. The pointers in a magazine are cached blocks, which no
// thread owns.
#[expect(unsafe_code, reason = "links are shared references to cells")]
unsafe impl Send for Contents {}

/// Why a free list did not take a batch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The caller must first lease this many more bytes.
    Unleased(usize),
    /// Another thread holds the lock, or the system has no memory for a magazine.
    Busy,
}

impl FreeList {
    const_unless_loom! {
        fn new() -> Self {
            let inside = Contents {
                top: None,
                bottom: None,
                spare: None,
                blocks: 0,
                leased: 0,
                low: 0,
                due: 0,
            };
            Self {
                cacheless: [AtomicU64::new(0), AtomicU64::new(0)],
                oldest: AtomicU64::new(0),
                bytes: AtomicUsize::new(0),
                due: AtomicUsize::new(0),
                inside: TryLock::new(inside),
            }
        }
    }

    /// Runs `work` under the lock, then updates the copies that are read without it. Returns `None`
    /// if the lock is held for too long.
    #[inline]
    fn enter<R>(&self, class: Class, work: impl FnOnce(&mut Contents) -> R) -> Option<R> {
        self.inside.enter(|inside| {
            let result = work(inside);
            self.oldest.store(inside.bottom.map_or(0, |bottom| bottom.stamp.get()), Relaxed);
            self.bytes.store(inside.blocks * class.bytes(), Relaxed);
            self.due.store(inside.due, Relaxed);
            result
        })
    }
}

impl Contents {
    /// Returns a magazine with room for `len` blocks: the newest one if they fit and are less than
    /// half a magazine, else an empty one that becomes the newest, with this stamp. Returns `None`
    /// if there is no empty magazine.
    fn place(&mut self, len: usize, stamp: u64, vacant: &Vacant) -> Link {
        if let Some(top) = self.top
            && top.len.get() + len <= MAGAZINE
            && len < MAGAZINE / 2
        {
            return Some(top);
        }
        let fresh = match self.spare {
            Some(spare) => {
                self.spare = spare.below.get();
                spare
            }
            None => vacant.take()?,
        };
        fresh.stamp.set(stamp);
        self.link(fresh);
        Some(fresh)
    }

    /// Links a magazine as the newest.
    fn link(&mut self, magazine: &'static Magazine) {
        magazine.below.set(self.top);
        magazine.above.set(None);
        match self.top {
            Some(top) => top.above.set(Some(magazine)),
            None => self.bottom = Some(magazine),
        }
        self.top = Some(magazine);
    }

    /// Unlinks an empty magazine and keeps it as a spare. The earlier spares go to `vacant`, as far
    /// as it takes them.
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
        let mut spare = self.spare;
        while let Some(other) = spare {
            let next = other.below.get();
            if !vacant.put(other) {
                other.below.set(next);
                break;
            }
            spare = next;
        }
        magazine.below.set(spare);
        self.spare = Some(magazine);
    }

    /// Takes at most `most` blocks from one magazine; `None` without a magazine.
    fn take(&mut self, from: Link, most: usize, vacant: &Vacant) -> Option<Batch> {
        let magazine = from?;
        let batch = magazine.take(most);
        if magazine.len.get() == 0 {
            self.unlink(magazine, vacant);
        }
        self.blocks -= batch.len;
        self.low = self.low.min(self.blocks);
        self.due = self.due.min(self.blocks);
        Some(batch)
    }

    /// Removes the unused bytes from this list's lease and returns them. The caller must give them
    /// back to [`Leases`].
    fn unused_lease(&mut self, class: Class) -> usize {
        let unused = self.leased - self.blocks * class.bytes();
        self.leased -= unused;
        unused
    }
}

impl Depot {
    const_unless_loom! {
        /// Creates an empty depot that leases at most `limit` bytes.
        pub(crate) fn new(limit: usize) -> Self {
            #[cfg(not(loom))]
            #[expect(clippy::large_stack_arrays, reason = "made by the compiler, in a static")]
            let lists = [const { FreeList::new() }; CLASSES];
            #[cfg(loom)]
            let lists = std::array::from_fn(|_| FreeList::new());
            Self {
                lists,
                leases: Leases::new(limit),
                vacant: Vacant::new(),
                epoch: AtomicU64::new(1),
                cursor: AtomicUsize::new(0),
            }
        }
    }

    #[inline]
    fn list(&self, class: Class) -> &FreeList {
        &self.lists[class.number()]
    }

    /// Takes at most `most` blocks from the newest magazine of a class. Returns `None` if the class
    /// has no blocks or its lock is held for too long.
    pub(crate) fn pop(&self, class: Class, most: usize) -> Option<Batch> {
        self.list(class).enter(class, |inside| inside.take(inside.top, most, &self.vacant))?
    }

    /// Adds a batch as the newest blocks of its class.
    ///
    /// `lease` is in bytes, and the caller has leased them. The free list keeps the part that it
    /// needs for the batch; the result is the rest. After an error the caller keeps the batch and
    /// the whole lease.
    #[inline]
    pub(crate) fn push(
        &self,
        class: Class,
        batch: &mut Batch,
        lease: usize,
    ) -> Result<usize, Refused> {
        let entered = self.list(class).enter(class, |inside| {
            let bytes = (inside.blocks + batch.len) * class.bytes();
            let needed = bytes.saturating_sub(inside.leased);
            if needed > lease {
                return Err(Refused::Unleased(needed - lease));
            }
            // A batch of large blocks has its own magazine, and so its own age.
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

    /// Advances the depot's clock and returns its epoch before that. Batches pushed later are
    /// younger.
    #[inline]
    fn next_epoch(&self) -> u64 {
        self.epoch.fetch_add(1, Relaxed)
    }

    /// Returns the classes that have blocks, with the epoch of the oldest magazine of each.
    fn in_use(&self) -> impl Iterator<Item = (u64, Class, &FreeList)> {
        let all = Class::all().zip(&self.lists);
        let with_age = all.map(|(class, list)| (list.oldest.load(Relaxed), class, list));
        with_age.filter(|(oldest, ..)| *oldest > 0)
    }

    /// Takes blocks from the oldest magazine of all classes, at most as many as `bytes` need.
    ///
    /// The search first skips classes that have less than a quarter of `bytes`: evicting a hundred
    /// small blocks for one large block costs a hundred misses (82 % hits instead of 47 % on the
    /// worst of the loads in `tcache/cache/tests/loads.rs`). If no other class has blocks, the
    /// search covers all classes.
    #[cold]
    pub(crate) fn take_oldest(&self, bytes: usize) -> Option<(Class, Batch)> {
        let worth = |class: Class| 4 * self.bytes(class) >= bytes;
        self.take_oldest_where(bytes, worth).or_else(|| self.take_oldest_where(bytes, |_| true))
    }

    /// Takes blocks from the oldest magazine of the classes that `may` accepts, at most as many as
    /// `bytes` need.
    fn take_oldest_where(
        &self,
        bytes: usize,
        may: impl Fn(Class) -> bool,
    ) -> Option<(Class, Batch)> {
        let mut passed = (0, 0);
        loop {
            // A list whose lock is held is skipped too.
            let age = |(oldest, class, _): &(u64, Class, &FreeList)| (*oldest, class.number());
            let candidates = self.in_use().filter(|list| age(list) > passed && may(list.1));
            let (oldest, class, list) = candidates.min_by_key(age)?;
            passed = (oldest, class.number());
            let most = bytes.div_ceil(class.bytes());
            if let Some(batch) = self.take_oldest_of(class, list, most) {
                return Some((class, batch));
            }
        }
    }

    /// Takes at most `most` blocks from the oldest magazine of a class, and gives back the list's
    /// unused lease.
    fn take_oldest_of(&self, class: Class, list: &FreeList, most: usize) -> Option<Batch> {
        let (batch, unused) = list.enter(class, |inside| {
            let batch = inside.take(inside.bottom, most, &self.vacant)?;
            Some((batch, inside.unused_lease(class)))
        })??;
        self.leases.give_back(unused);
        Some(batch)
    }

    /// Gives back the bytes that free lists have leased and do not use. Returns the bytes.
    #[cold]
    pub(crate) fn reclaim_leases(&self) -> usize {
        let unused = Class::all().zip(&self.lists).map(|(class, list)| {
            let unused = list.inside.enter(|inside| inside.unused_lease(class)).unwrap_or(0);
            self.leases.give_back(unused);
            unused
        });
        unused.sum()
    }

    /// Marks blocks that no request needed recently, for [`Depot::take_due`].
    ///
    /// `turns` is the number of decay intervals since the last call. For the first, each class
    /// marks `low / 2` blocks (rounded up), where `low` is the fewest blocks that it had since the
    /// last call. For each further interval, which is taken to be without requests, it marks half
    /// of the blocks that are left.
    pub(crate) fn age(&self, turns: u32) {
        for (_, class, list) in self.in_use() {
            list.enter(class, |inside| {
                let low = std::mem::replace(&mut inside.low, inside.blocks);
                let stays = (inside.blocks - low.div_ceil(2)).checked_shr(turns.saturating_sub(1));
                inside.due = inside.due.max(inside.blocks - stays.unwrap_or(0));
            });
        }
    }

    /// Takes at most `most` marked blocks from the oldest magazine of one class, and gives back the
    /// list's unused lease. Returns `None` if no class that can be locked has marked blocks.
    pub(crate) fn take_due(&self, most: usize) -> Option<(Class, Batch)> {
        let cursor = self.cursor.load(Relaxed);
        (cursor..cursor + CLASSES).find_map(|number| {
            let class = Class::numbered(number % CLASSES);
            let list = self.list(class);
            let due = list.due.load(Relaxed);
            if due == 0 {
                return None;
            }
            self.cursor.store(class.number(), Relaxed);
            let (batch, unused) = list.enter(class, |inside| {
                let due = inside.due;
                let batch = inside.take(inside.bottom, due.min(most), &self.vacant)?;
                inside.due = due.saturating_sub(batch.len);
                Some((batch, inside.unused_lease(class)))
            })??;
            self.leases.give_back(unused);
            Some((class, batch))
        })
    }

    /// Returns the cached bytes of all classes.
    pub(crate) fn all_bytes(&self) -> usize {
        Class::all().map(|class| self.bytes(class)).sum()
    }

    /// Returns the cached bytes of a class.
    pub(crate) fn bytes(&self, class: Class) -> usize {
        self.list(class).bytes.load(Relaxed)
    }

    /// Runs `work` while the free list of a class is locked.
    #[cfg(test)]
    pub(crate) fn while_held(&self, class: Class, work: impl FnOnce()) {
        assert!(self.list(class).enter(class, |_| work()).is_some(), "the lock was had");
    }
}
