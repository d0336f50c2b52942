//! Observers: what a pool tells about each request, free and eviction; tags, by which programs tell requests
//! apart; and the damage that guards find.
#![expect(unsafe_code, reason = "names are shared by address, without a lock")]

use crate::error::Figures;
use crate::port::Why;
use crate::sys::{forks, watch_forks};
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Release};

/// Receives the events of a pool. A closure is one; `Breakdown`, `LeakTracker` and
/// `RmmLog` in `pool-trace` are others.
///
/// The pool calls it on the thread of the request or free, with no lock held: after an allocation,
/// before a free, after an eviction. Calls of several threads overlap, and the order of two of them
/// need not be that of the two operations. The pool catches a panic of the observer and goes on,
/// since a drop may not panic. Allocations and frees by an observer are not observed, so it must
/// not free a buffer that other code allocated: a leak tracker would count that buffer as live for
/// ever.
///
/// In a forked child it is told nothing: a thread that does not exist there may hold its lock.
///
/// With an observer, a hit and its free take some 20 nanoseconds longer, plus the time that the
/// observer takes. Without one, or if no observer sees hits ([`Observer::sees_hits`]), they cost
/// one more load and branch.
///
/// # Examples
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
/// use bucketpool::{BucketPool, observe::{EventKind, PoolEvent}, sim::SimDevice};
/// use std::sync::{Arc, atomic::{AtomicU64, Ordering::Relaxed}};
///
/// let misses = Arc::new(AtomicU64::new(0));
/// let count = misses.clone();
/// let pool = BucketPool::builder(SimDevice::new())
///     .observer(Arc::new(move |event: &PoolEvent<'_>| {
///         if event.kind == EventKind::Miss {
///             count.fetch_add(1, Relaxed);
///         }
///     }))
///     .build();
/// for _ in 0..10 {
///     pool.allocate(4096)?;
/// }
/// assert_eq!(misses.load(Relaxed), 1);
/// # Ok::<(), pool_core::AllocError>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot observe a pool",
    note = "an observer is `Arc::new(|event: &PoolEvent<'_>| ..)`, or a type that implements \
            `Observer`"
)]
pub trait Observer: Send + Sync + 'static {
    /// Takes note of an event.
    fn event(&self, event: &PoolEvent<'_>);

    /// Returns whether the observer receives hits and frees. If no observer of a pool does, a hit
    /// has no cost for observers. The builder calls this once, when the observer is added.
    fn sees_hits(&self) -> bool {
        true
    }
}

impl<F: Fn(&PoolEvent<'_>) + Send + Sync + 'static> Observer for F {
    fn event(&self, event: &PoolEvent<'_>) {
        self(event);
    }
}

/// An event in the life of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolEvent<'e> {
    /// The kind of event.
    pub kind: EventKind,
    /// The name of the pool ([`PoolBuilder::name`](crate::PoolBuilder::name)); empty unless set.
    pub pool: &'e str,
    /// The tag of the request ([`BucketPool::tagged`](crate::BucketPool::tagged)), also when its
    /// buffer is freed; empty unless set, and for an eviction.
    pub tag: &'static str,
    /// The number of the tag in this process ([`tag_name`]); 0 for none.
    pub tag_number: u16,
    /// The number of the stream that the request was for
    /// ([`StreamClock::stream_id`](crate::StreamClock::stream_id)); 0 for an eviction.
    pub stream: u64,
    /// A number that no other live buffer of the process has; 0 for an event without a buffer.
    pub id: u64,
    /// Bytes that were requested; 0 for an eviction.
    pub requested_bytes: u64,
    /// Bytes of the block, also of one that would have served a request that is refused; for an eviction
    /// those that went back to the device. 0 for a request that waits.
    pub bytes: u64,
    /// The figures of a request that is refused, as its [`AllocError`](crate::AllocError) has them.
    pub refusal: Option<&'e Figures>,
}

/// The kinds of a [`PoolEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// A cached block served a request.
    Hit,
    /// The device served a request of a size class.
    Miss,
    /// The device served a request that fits no size class.
    Bypass,
    /// A buffer was dropped, or left the pool.
    Free,
    /// Free memory went back to the device.
    Evict(Reason),
    /// A request was refused.
    Refuse(Why),
    /// A request waits for memory.
    Wait,
}

/// Why free memory went back to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The pool does not keep it: the cached limit, the bucket limit or the slack of an arena would
    /// have been exceeded, it belongs to no size class, or it was a detached buffer's. All deferred
    /// frees have this reason.
    Bound,
    /// It was older than the retention allows.
    Age,
    /// A request needed the memory, of this pool or of another one of its budget; or the budget was
    /// trimmed or its limit lowered.
    Shortage,
    /// The program called `trim`, `shrink_to` or `clear`, or lowered the pool's own limit.
    Asked,
    /// The pool was closed.
    Closed,
}

/// The observers of a pool, and its name.
#[derive(Clone, Default)]
pub(crate) struct Observers {
    pub(crate) name: Arc<str>,
    all: Vec<Listener>,
}

/// An observer, and whether it is told of hits and frees.
#[derive(Clone)]
struct Listener {
    observer: Arc<dyn Observer>,
    /// The forks of the process when it was added. In a child of that, a thread that does not exist
    /// may hold a lock of the observer, so it is told nothing.
    forks: u32,
    sees_hits: bool,
}

/// The fields of an event that are not the pool's own.
#[derive(Clone, Copy, Default)]
pub(crate) struct EventFields {
    pub(crate) tag: Tag,
    pub(crate) stream: u64,
    pub(crate) id: u64,
    pub(crate) requested: u64,
    pub(crate) bytes: u64,
}

thread_local! {
    /// Whether this thread is inside of an observer.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

impl Observers {
    pub(crate) fn add(&mut self, observer: Arc<dyn Observer>) {
        let sees_hits = observer.sees_hits();
        watch_forks();
        self.all.push(Listener { observer, forks: forks(), sees_hits });
    }

    pub(crate) fn has_any(&self) -> bool {
        !self.all.is_empty()
    }

    /// Whether any is told of hits and frees.
    pub(crate) fn any_sees_hits(&self) -> bool {
        self.all.iter().any(|listener| listener.sees_hits)
    }

    /// Calls the observers that see this kind of event. Call it with no lock held.
    #[cold]
    pub(crate) fn notify(&self, kind: EventKind, fields: EventFields, refusal: Option<&Figures>) {
        let EventFields { tag, stream, id, requested: requested_bytes, bytes } = fields;
        let pool = &*self.name;
        let (tag, tag_number) = (tag.name(), tag.number());
        let event =
            PoolEvent { kind, pool, tag, tag_number, stream, id, requested_bytes, bytes, refusal };
        // Events of a thread that has already dropped its thread-local variables are not reported.
        let entered = INSIDE.try_with(|inside| !inside.replace(true)).unwrap_or(false);
        if !entered {
            return;
        }
        let is_seldom = !matches!(kind, EventKind::Hit | EventKind::Free);
        let hears = |listener: &&Listener| is_seldom || listener.sees_hits;
        let here = forks();
        for listener in self.all.iter().filter(hears).filter(|listener| listener.forks == here) {
            // The panic hook has reported it.
            let _ = catch_unwind(AssertUnwindSafe(|| listener.observer.event(&event)));
        }
        INSIDE.with(|inside| inside.set(false));
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Bound => "bound",
            Self::Age => "age",
            Self::Shortage => "shortage",
            Self::Asked => "asked",
            Self::Closed => "closed",
        })
    }
}

/// A fault of the program that guards have found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// The misuse.
    pub misuse: Misuse,
    /// The tag of the buffer's request ([`BucketPool::tagged`](crate::BucketPool::tagged)). For
    /// memory that was written after its free, the tag of the next request that gets the memory.
    pub tag: &'static str,
    /// Bytes that this request has.
    pub requested_bytes: u64,
    /// The first byte that was overwritten, from the start of the buffer.
    pub at: u64,
}

/// The misuses that guards find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Misuse {
    /// Bytes behind the end of a buffer were written; found when the buffer is freed.
    WrittenBehindEnd,
    /// A cached block was written; found when it is handed out again.
    WrittenAfterFree,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (at, requested) = (self.at, self.requested_bytes);
        match self.misuse {
            Misuse::WrittenBehindEnd => {
                write!(f, "byte {at} of a buffer of {requested} was written")
            }
            Misuse::WrittenAfterFree => {
                write!(f, "byte {at} was written after it was freed; found for {requested} bytes")
            }
        }?;
        if self.tag.is_empty() { Ok(()) } else { write!(f, ", tag {:?}", self.tag) }
    }
}

/// The number of a tag; 0 stands for a request without a tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tag(u16);

/// A name that is never freed, or null.
type Name = AtomicPtr<&'static str>;

/// The names of all tags of the process, before the first null. A name is written once and stays.
/// There is no lock: a forked child could find one held for ever.
static NAMES: [Name; u16::MAX as usize] = [const { Name::new(ptr::null_mut()) }; _];

impl Tag {
    /// Returns the tag of a name; no tag when all numbers have names. The cost is linear in the
    /// number of names.
    pub(crate) fn new(name: &'static str) -> Self {
        let number = NAMES.iter().position(|known| is_or_becomes(known, name));
        Self(number.and_then(|at| u16::try_from(at + 1).ok()).unwrap_or(0))
    }

    pub(crate) fn number(self) -> u16 {
        self.0
    }

    /// Returns its name; empty for no tag.
    pub(crate) fn name(self) -> &'static str {
        let at = usize::from(self.0).checked_sub(1);
        at.and_then(|at| NAMES.get(at)).and_then(read).unwrap_or("")
    }
}

fn read(known: &Name) -> Option<&'static str> {
    // SAFETY: a pointer that is not null came from `Box::leak` in `is_or_becomes`, and no code
    // writes or frees its target.
    NonNull::new(known.load(Acquire)).map(|name| unsafe { *name.as_ref() })
}

/// Returns whether an entry has the name `name`. An empty entry is set to `name` first.
fn is_or_becomes(known: &Name, name: &'static str) -> bool {
    if let Some(known) = read(known) {
        return known == name;
    }
    let new = ptr::from_mut(Box::leak(Box::new(name)));
    if known.compare_exchange(ptr::null_mut(), new, Release, Acquire).is_ok() {
        return true;
    }
    // SAFETY: it came from the box above, and no other thread has seen it.
    drop(unsafe { Box::from_raw(new) });
    read(known) == Some(name)
}

/// Returns the name of the tag with a number
/// ([`PoolEvent::tag_number`](crate::observe::PoolEvent::tag_number)): empty for 0, and for a number that no
/// tag has.
///
/// ```
/// assert_eq!(pool_core::observe::tag_name(0), "");
/// ```
#[must_use]
pub fn tag_name(number: u16) -> &'static str {
    Tag(number).name()
}

#[cfg(test)]
mod tag_tests {
    use super::*;
    use std::thread;

    #[test]
    fn threads_that_name_the_same_tags_get_the_same_numbers() {
        const OF_TEST: [&str; 4] = ["tag one", "tag two", "tag three", "tag four"];
        let of_thread = |turn: usize| {
            let mut tags = [Tag::default(); 4];
            (0..4).map(|at| (at + turn) % 4).for_each(|at| tags[at] = Tag::new(OF_TEST[at]));
            tags
        };
        let all: Vec<_> = thread::scope(|scope| {
            let threads = [0, 1, 2, 3].map(|turn| scope.spawn(move || of_thread(turn)));
            threads.map(|thread| thread.join().unwrap_or_default()).into()
        });
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{all:?}");
        assert_eq!(all[0].map(Tag::name), OF_TEST);
        assert!(all[0].iter().all(|tag| tag_name(tag.number()) == tag.name()));
        assert_eq!((Tag::default().name(), tag_name(u16::MAX)), ("", ""));
    }
}
