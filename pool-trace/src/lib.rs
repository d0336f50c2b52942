//! Traces: the requests and frees of a program, recorded, written, and read again.
//!
//! A [`Recorder`] observes pools and writes a `.ptrace.csv.zst` file, which `cargo xtask replay`
//! and `cargo xtask advise` read. [`ptrace`] is that format, [`rmm`] the log of RMM's logging
//! adaptor, [`torch`] the memory snapshot of `PyTorch`, and [`perfetto`] counters for Perfetto's
//! viewer. Each becomes a [`Log`], or is written from one. [`Breakdown`], [`LeakTracker`] and
//! [`RmmLog`] are further observers. This crate reads no clock of a device and makes no pool.
#![deny(unsafe_code)]

mod breakdown;
mod decompress;
mod leaks;
mod lines;
mod malformed;
#[cfg(feature = "metrics")]
pub mod metrics;
mod operation;
pub mod perfetto;
pub mod ptrace;
pub mod raw;
mod recorder;
pub mod ring;
pub mod rmm;
mod rmm_log;
mod ticks;
pub mod torch;
#[cfg(feature = "tracing")]
mod tracing_events;

use std::io::{BufRead, Cursor, Read};

pub use breakdown::{Breakdown, RequestCounts};
pub use leaks::{LeakTracker, LiveBuffer};
pub use malformed::Malformed;
pub use operation::{Kind, Log, Operation};
pub use recorder::{Recorded, Recorder, RecorderOptions};
pub use rmm_log::RmmLog;
#[cfg(feature = "tracing")]
pub use tracing_events::TracingEvents;

/// Reads a log of any of the formats: `.ptrace.csv`, RMM's log or a snapshot of `PyTorch`, each
/// plain or in zstd frames. The first bytes tell which it is.
///
/// ```
/// let rmm = "Thread,Time,Action,Pointer,Size,Stream\n1,0:0:0,allocate,0x1,64,0x0\n";
/// assert_eq!(pool_trace::read(rmm.as_bytes())?.operations[0].bytes, 64);
/// # Ok::<(), pool_trace::Malformed>(())
/// ```
///
/// # Errors
///
/// As for the `read` of the format; a compressed file whose contents are more than a mebibyte and
/// 100 times as long as the file.
pub fn read(source: impl Read) -> Result<Log, Malformed> {
    read_plain(decompress::open(source)?)
}

/// The first byte of a pickle of protocol 2 and later.
const PICKLE: u8 = 0x80;

fn read_plain(mut source: impl BufRead) -> Result<Log, Malformed> {
    let mut start = Vec::new();
    let first = source.by_ref().take(1 << 10).read_until(b'\n', &mut start);
    first.map_err(|error| lines::unreadable(&error).in_line(1))?;
    let is_rmm = rmm::COLUMNS
        .iter()
        .all(|column| std::str::from_utf8(&start).is_ok_and(|line| line.contains(column)))
        || start.starts_with(b"Thread,")
        || std::str::from_utf8(&start).is_ok_and(rmm::is_row);
    let is_pickle = start.first() == Some(&PICKLE);
    let whole = Cursor::new(start).chain(source);
    match (is_pickle, is_rmm) {
        (true, _) => torch::read(whole),
        (_, true) => rmm::read(whole),
        _ => ptrace::read(whole),
    }
}
