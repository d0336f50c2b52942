//! A recorder in parts, for allocators: records as words of a ring, and a writer that runs on a
//! thread of the allocator's own. [`Recorder`](crate::Recorder) is the same for pools.

use crate::operation::Kind;
use crate::recorder::sink::Sink;
use crate::recorder::writer::Writer;
use crate::recorder::{Event, Recorded};
use crate::ring::{Ring, RingSlot, WORDS};
use crate::ticks;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Returns the record of an allocation: the address of the block, bytes requested, and a number for
/// the thread.
#[must_use]
pub fn allocated(address: u64, bytes: u64, thread: u64) -> [u64; WORDS] {
    words(Kind::Allocate, address, bytes, thread)
}

/// Returns the record of a free. It must be put before the block is free for other threads.
#[must_use]
pub fn freed(address: u64, thread: u64) -> [u64; WORDS] {
    words(Kind::Free, address, 0, thread)
}

/// Returns the record of a request that was refused.
#[must_use]
pub fn refused(bytes: u64, thread: u64) -> [u64; WORDS] {
    words(Kind::Refuse, 0, bytes, thread)
}

fn words(kind: Kind, address: u64, bytes: u64, stream: u64) -> [u64; WORDS] {
    Event { kind, address, bytes, stream, ticks: ticks::now(), tag: 0, stack: 0 }.to_words()
}

/// Writes what is put into a ring to a file, until `ends` is set and the ring is empty. The calling
/// thread is the ring's only reader.
///
/// # Errors
///
/// The error of the file.
///
/// ```
/// use pool_trace::ring::{Ring, slots};
/// use pool_trace::raw;
/// use std::{fs::File, sync::atomic::AtomicBool};
///
/// let folder = tempfile::tempdir()?;
/// let file = folder.path().join("program.ptrace.csv.zst");
/// let (ring, ends) = (Ring::new(slots(8)), AtomicBool::new(true)); // no more records follow
/// assert!(ring.push(raw::allocated(0x1000, 64, 1)) && ring.push(raw::freed(0x1000, 1)));
/// let recorded = raw::write(&ring, File::create(&file)?, &file, "program", &ends)?;
/// assert_eq!((recorded.operations, recorded.lost), (2, 0));
/// assert!(raw::write(&ring, File::open(&file)?, &file, "program", &ends).is_err()); // not writable
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn write<S: Deref<Target = [RingSlot]>>(
    ring: &Ring<S>,
    file: File,
    path: &Path,
    source: &str,
    ends: &AtomicBool,
) -> io::Result<Recorded> {
    Writer::new(Sink::new(file, path)?, source, true).run(ring, ends, &|_| None)
}
