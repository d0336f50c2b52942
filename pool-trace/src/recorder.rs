//! An observer that writes the requests and frees of pools to a file.

mod lanes;
mod live;
pub(crate) mod sink;
pub(crate) mod writer;

use crate::operation::Kind;
use crate::ring::{Ring, RingSlot, WORDS, slots};
use crate::ticks;
use pool_core::observe::{EventKind, Observer, PoolEvent};
use sink::Sink;
use std::backtrace::Backtrace;
use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use writer::Writer;

/// Writes each request, free and refusal of its pools to a file: an [`Observer`]. The file is
/// compressed with zstd if its name ends in `.zst`, and otherwise plain text.
///
/// A request or free puts a record of 64 bytes into a ring; a thread of the recorder takes it out,
/// writes it and compresses it. If that thread cannot keep up, the ring is full, and the newest
/// records are lost: [`Recorded::lost`] and a `#lost` line of the file count them. A
/// program that is killed leaves a trace without its last operations
/// ([`Log::is_cut_off`](crate::Log::is_cut_off)).
///
/// One recorder can observe several pools. A lane of the file is a stream; streams of the same
/// number of different devices share one, so a device whose streams matter wants a recorder for
/// itself. Once there are 1024 lanes, a new stream gets the lane of one that has no live buffer and
/// was not used for long; if all 65 535 lanes have live buffers, it shares the last one
/// ([`Recorded::shared_lane`] and a `#shared_lane` line of the file count that). In a child after
/// `fork` nothing is recorded.
///
/// # Examples
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_config as config; pub use pool_sim as sim; pub mod trace { pub use pool_trace::*; } }
/// use bucketpool::trace::{Recorder, ptrace};
/// use bucketpool::{BucketPool, MIB, sim::SimDevice};
/// use std::sync::Arc;
///
/// let folder = tempfile::tempdir()?;
/// let file = folder.path().join("program.ptrace.csv.zst");
/// let recorder = Arc::new(Recorder::create(&file)?);
/// let pool = BucketPool::builder(SimDevice::new()).observer(recorder.clone()).build();
/// drop(pool.allocate(3 * MIB)?);
/// let recorded = recorder.finish()?;
/// assert_eq!((recorded.operations, recorded.lost), (2, 0));
/// let log = ptrace::read(std::fs::File::open(&file)?)?;
/// assert_eq!(log.operations[0].bytes, 3 * MIB);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Recorder {
    shared: Arc<Shared>,
    backtraces: bool,
    /// Taken when it ends.
    writer: Mutex<Option<JoinHandle<io::Result<Recorded>>>>,
    /// The process that it was made in.
    process: u32,
}

/// The state that the threads of pools share with the writer.
struct Shared {
    ring: Ring<Box<[RingSlot]>>,
    /// Backtraces whose records are in the ring.
    stacks: Mutex<Stacks>,
    ends: AtomicBool,
}

/// Backtraces by their numbers, which begin with 1.
#[derive(Default)]
struct Stacks {
    by_number: HashMap<u32, Backtrace>,
    last: u32,
}

/// How a [`Recorder`] records.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RecorderOptions {
    /// Operations that the ring has room for, 64 bytes each; 262 144 unless set.
    pub capacity: usize,
    /// Whether each request has the backtrace of its call. One costs some microseconds.
    pub backtraces: bool,
    /// Whether the recorder begins to write at once, or with [`Recorder::resume`].
    pub paused: bool,
    /// The name of the program in the file; the name of this program unless set.
    pub source: String,
}

impl Default for RecorderOptions {
    fn default() -> Self {
        let source = std::env::args_os().next().unwrap_or_default();
        let source = Path::new(&source).file_name().unwrap_or_default();
        Self {
            capacity: 1 << 18,
            backtraces: false,
            paused: false,
            source: source.to_string_lossy().into_owned(),
        }
    }
}

/// The counts of a recorder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recorded {
    /// Operations in the file.
    pub operations: u64,
    /// Buffers that were live when the recorder began to write, or resumed; each is an allocation
    /// in the file.
    pub baseline: u64,
    /// Operations that found the ring full and are not in the file.
    pub lost: u64,
    /// Frees whose allocation was lost, which are not in the file either.
    pub unknown: u64,
    /// Operations in the lane that streams share once 65 535 others have live buffers.
    pub shared_lane: u64,
}

/// A word of the program to the writer, in the order of the operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Pause,
    Resume,
}

impl Mark {
    fn to_words(self) -> [u64; WORDS] {
        let kind = if self == Self::Pause { 3 } else { 4 };
        [kind, 0, 0, 0, 0, 0, 0]
    }

    fn of_words([kind, ..]: [u64; WORDS]) -> Option<Self> {
        match kind {
            3 => Some(Self::Pause),
            4 => Some(Self::Resume),
            _ => None,
        }
    }
}

/// An operation on its way to the writer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) kind: Kind,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) stream: u64,
    pub(crate) ticks: u64,
    pub(crate) tag: u16,
    pub(crate) stack: u32,
}

impl Event {
    pub(crate) fn to_words(self) -> [u64; WORDS] {
        let Self { kind, address, bytes, stream, ticks, tag, stack } = self;
        let kind = match kind {
            Kind::Free => 1,
            Kind::Refuse => 2,
            _ => 0,
        };
        [kind, address, bytes, stream, ticks, u64::from(tag), u64::from(stack)]
    }

    fn of_words([kind, address, bytes, stream, ticks, tag, stack]: [u64; WORDS]) -> Self {
        let kind = match kind {
            1 => Kind::Free,
            2 => Kind::Refuse,
            _ => Kind::Allocate,
        };
        let (tag, stack) = (u16::try_from(tag), u32::try_from(stack));
        let (tag, stack) = (tag.unwrap_or(0), stack.unwrap_or(0));
        Self { kind, address, bytes, stream, ticks, tag, stack }
    }
}

impl Recorder {
    /// Begins a file, and records from now on.
    ///
    /// # Errors
    ///
    /// The error of the file, or of the start of the writer's thread.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_config as config; pub use pool_sim as sim; pub mod trace { pub use pool_trace::*; } }
    /// use bucketpool::trace::Recorder;
    /// use std::io::ErrorKind;
    ///
    /// let folder = tempfile::tempdir()?;
    /// let recorder = Recorder::create(folder.path().join("program.ptrace.csv.zst"))?;
    /// let error = Recorder::create(folder.path().join("missing/program.ptrace.csv.zst"));
    /// assert_eq!(error.unwrap_err().kind(), ErrorKind::NotFound);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn create(file: impl AsRef<Path>) -> io::Result<Self> {
        Self::with(file, RecorderOptions::default())
    }

    /// Begins a file with these options.
    ///
    /// # Errors
    ///
    /// As for [`Recorder::create`].
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_config as config; pub use pool_sim as sim; pub mod trace { pub use pool_trace::*; } }
    /// use bucketpool::trace::{Recorder, RecorderOptions, ptrace};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let file = folder.path().join("program.ptrace.csv.zst");
    /// let mut options = RecorderOptions::default();
    /// options.source = "training".to_owned();
    /// Recorder::with(&file, options.clone())?.finish()?;
    /// assert_eq!(ptrace::read(std::fs::File::open(&file)?)?.source, "training");
    /// assert!(Recorder::with(folder.path(), options).is_err()); // a folder
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with(file: impl AsRef<Path>, options: RecorderOptions) -> io::Result<Self> {
        let RecorderOptions { capacity, backtraces, paused, source } = options;
        let shared = Arc::new(Shared {
            ring: Ring::new(slots(capacity)),
            stacks: Mutex::default(),
            ends: AtomicBool::new(false),
        });
        let writer = Writer::new(Sink::new(File::create(&file)?, file.as_ref())?, &source, !paused);
        let of = shared.clone();
        let work = move || {
            let shared = Ending(of);
            writer.run(&shared.0.ring, &shared.0.ends, &|number| shared.0.take_stack(number))
        };
        let writer = std::thread::Builder::new().name("recorder".into()).spawn(work)?;
        let (writer, process) = (Mutex::new(Some(writer)), std::process::id());
        Ok(Self { shared, backtraces, writer, process })
    }

    /// Stops writing, from this call on. What is live is followed on, for [`Recorder::resume`].
    pub fn pause(&self) {
        self.mark(Mark::Pause);
    }

    /// Writes again: first the buffers that are live at this call, then what comes after it.
    pub fn resume(&self) {
        self.mark(Mark::Resume);
    }

    /// Puts a mark into the ring, and waits until there is room for it.
    fn mark(&self, mark: Mark) {
        let has_ended = || self.shared.ends.load(SeqCst) || std::process::id() != self.process;
        while !has_ended() && !self.shared.ring.push(mark.to_words()) {
            std::thread::yield_now();
        }
    }

    /// Ends the file. Later events are not recorded. Waits for the writer.
    ///
    /// # Errors
    ///
    /// The error of the file, when the writer could not go on;
    /// [`io::ErrorKind::NotFound`] if the recorder has ended already, or in a child after `fork`.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_config as config; pub use pool_sim as sim; pub mod trace { pub use pool_trace::*; } }
    /// use bucketpool::trace::Recorder;
    /// use std::io::ErrorKind;
    ///
    /// let folder = tempfile::tempdir()?;
    /// let recorder = Recorder::create(folder.path().join("program.ptrace.csv.zst"))?;
    /// assert_eq!(recorder.finish()?.operations, 0);
    /// assert_eq!(recorder.finish().unwrap_err().kind(), ErrorKind::NotFound);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn finish(&self) -> io::Result<Recorded> {
        let none = || io::Error::new(io::ErrorKind::NotFound, "the recorder has ended");
        if std::process::id() != self.process {
            return Err(none());
        }
        self.shared.ends.store(true, SeqCst);
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        let writer = writer.ok_or_else(none)?;
        writer.thread().unpark();
        writer.join().unwrap_or_else(|_| Err(io::Error::other("the recorder's thread panicked")))
    }
}

impl Observer for Recorder {
    fn event(&self, event: &PoolEvent<'_>) {
        let kind = match event.kind {
            EventKind::Hit | EventKind::Miss | EventKind::Bypass => Kind::Allocate,
            EventKind::Free => Kind::Free,
            EventKind::Refuse(_) => Kind::Refuse,
            _ => return,
        };
        if self.shared.ends.load(Relaxed) {
            return;
        }
        let stack = if self.backtraces && kind == Kind::Allocate {
            self.shared.add_stack(Backtrace::force_capture())
        } else {
            0
        };
        let event = Event {
            kind,
            address: event.id,
            bytes: event.requested_bytes,
            stream: event.stream,
            ticks: ticks::now(),
            tag: event.tag_number,
            stack,
        };
        if !self.shared.ring.push(event.to_words()) {
            let _ = self.shared.take_stack(stack); // its record is lost
        }
    }
}

/// Ends the recording when the writer's thread ends, also by an error or a panic: nothing reads the
/// ring then.
struct Ending(Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.ends.store(true, SeqCst);
    }
}

impl Shared {
    fn add_stack(&self, backtrace: Backtrace) -> u32 {
        let mut stacks = self.stacks.lock().unwrap_or_else(PoisonError::into_inner);
        // Those of a full turn before have left the ring.
        stacks.last = stacks.last.checked_add(1).unwrap_or(1);
        let number = stacks.last;
        stacks.by_number.insert(number, backtrace);
        number
    }

    fn take_stack(&self, number: u32) -> Option<Backtrace> {
        if number == 0 {
            return None; // most records have none
        }
        let mut stacks = self.stacks.lock().unwrap_or_else(PoisonError::into_inner);
        stacks.by_number.remove(&number)
    }
}

/// Ends the file. A failure is lost; [`Recorder::finish`] returns it.
impl Drop for Recorder {
    fn drop(&mut self) {
        let _ = self.finish();
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("ring", &self.shared.ring).finish_non_exhaustive()
    }
}
