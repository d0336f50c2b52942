//! A log of requests and frees in the columns of RMM's logging adaptor.

use pool_core::observe::{EventKind, Observer, PoolEvent};
use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// Writes each allocation, refusal and free as a line of RMM's `logging_resource_adaptor`: an
/// [`Observer`].
///
/// The columns are `Thread,Time,Action,Pointer,Size,Stream`: a number for the thread, the time of
/// day in UTC (RMM: local time) to the microsecond, `allocate`, `allocate failure` or `free`, a
/// number that no other live buffer has, requested bytes, and the number of the stream. (RMM 25.12,
/// `logging_resource_adaptor_impl.cpp`.)
///
/// A line that cannot be written is counted ([`RmmLog::lost`]); requests go on. Writing is
/// buffered: [`RmmLog::flush`], or the drop of the writer, writes what is left.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; pub mod trace { pub use pool_trace::*; } }
/// use bucketpool::{BucketPool, sim::SimDevice, trace::RmmLog};
/// use std::sync::Arc;
///
/// let log = Arc::new(RmmLog::new(Vec::new())?);
/// let pool = BucketPool::builder(SimDevice::new()).observer(log.clone()).build();
/// drop(pool.allocate(4096)?);
/// drop(pool);
/// let written = Arc::into_inner(log).map(RmmLog::into_inner).transpose()?.unwrap_or_default();
/// let lines: Vec<&str> = std::str::from_utf8(&written)?.lines().collect();
/// assert_eq!(lines[0], "Thread,Time,Action,Pointer,Size,Stream");
/// assert!(lines[1].contains(",allocate,0x") && lines[1].ends_with(",4096,0x0"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RmmLog<W: Write + Send + 'static> {
    out: Mutex<LogWriter<W>>,
}

struct LogWriter<W: Write> {
    writer: io::BufWriter<W>,
    lost: u64,
}

impl<W: Write + Send + 'static> RmmLog<W> {
    /// Begins a log with the line that names the columns.
    ///
    /// # Errors
    ///
    /// The error of the writer.
    ///
    /// See [`RmmLog`] for an example.
    pub fn new(writer: W) -> io::Result<Self> {
        let mut writer = io::BufWriter::new(writer);
        writeln!(writer, "Thread,Time,Action,Pointer,Size,Stream")?;
        Ok(Self { out: Mutex::new(LogWriter { writer, lost: 0 }) })
    }

    /// Writes what is buffered.
    ///
    /// # Errors
    ///
    /// The error of the writer.
    ///
    /// See [`RmmLog`] for an example.
    pub fn flush(&self) -> io::Result<()> {
        self.log().writer.flush()
    }

    fn log(&self) -> MutexGuard<'_, LogWriter<W>> {
        // A panic of the writer loses its line, and the log goes on.
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many lines could not be written.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.log().lost
    }

    /// Ends the log. Returns the writer.
    ///
    /// # Errors
    ///
    /// The error of the writer, for lines that were buffered.
    ///
    /// See [`RmmLog`] for an example.
    pub fn into_inner(self) -> io::Result<W> {
        self.out
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
            .writer
            .into_inner()
            .map_err(io::IntoInnerError::into_error)
    }
}

impl<W: Write + Send + 'static> Observer for RmmLog<W> {
    fn event(&self, event: &PoolEvent<'_>) {
        let action = match event.kind {
            EventKind::Hit | EventKind::Miss | EventKind::Bypass => "allocate",
            EventKind::Refuse(_) => "allocate failure",
            EventKind::Free => "free",
            _ => return,
        };
        let PoolEvent { id, requested_bytes, stream, .. } = event;
        let thread = own_number();
        // The time under the lock, so that times do not fall.
        let mut out = self.log();
        let now = TimeOfDay::now();
        let line =
            writeln!(out.writer, "{thread},{now},{action},{id:#x},{requested_bytes},{stream:#x}");
        out.lost += u64::from(line.is_err());
    }
}

impl<W: Write + Send + 'static> fmt::Debug for RmmLog<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RmmLog").field("lost", &self.lost()).finish_non_exhaustive()
    }
}

/// Returns a number of this thread that no other thread has.
fn own_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static NUMBER: u64 = NEXT.fetch_add(1, Relaxed);
    }
    NUMBER.try_with(|number| *number).unwrap_or(u64::MAX) // a thread that ends
}

/// The time since midnight, UTC.
struct TimeOfDay(Duration);

impl TimeOfDay {
    fn now() -> Self {
        Self(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
    }
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs() % (24 * 60 * 60);
        let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
        let micros = self.0.subsec_micros();
        write!(f, "{hours:02}:{minutes:02}:{:02}.{micros:06}", seconds % 60)
    }
}
