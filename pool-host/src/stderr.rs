//! Lines on stderr, also for programs that close it before they end.
//!
//! Many tools of GNU (`sort`, `cat`, `tar`) close descriptor 2 when they exit, before the library
//! prints its line, and a program may have opened a file of its own under that number since. So the
//! library keeps a second descriptor of stderr, and writes to no file but that one.
#![expect(unsafe_code, reason = "the system is called through C")]

use crate::system;
use std::ffi::{CStr, c_int};
use std::fmt::{self, Write};
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// The least number of the kept descriptor: shells and daemons use the low ones for their own. The
/// second is for a process that may have few descriptors.
const LEAST: [c_int; 2] = [900, 64];

/// The stderr of the start of the process; `None` if it was closed then.
static KEPT: OnceLock<Option<Kept>> = OnceLock::new();

struct Kept {
    /// A second descriptor of it; negative if the process may have no more, and in a forked child.
    descriptor: AtomicI32,
    file: File,
}

/// The device and the inode of an open file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct File(libc::dev_t, libc::ino_t);

impl File {
    /// Returns the file of a descriptor; `None` if it is closed.
    fn of(descriptor: c_int) -> Option<Self> {
        let mut file = MaybeUninit::<libc::stat>::zeroed();
        // SAFETY: `fstat` writes one `stat` to `file`, which has room for one.
        let known = unsafe { libc::fstat(descriptor, file.as_mut_ptr()) } == 0;
        // SAFETY: the struct consists of integers, which `zeroed` initialized; any value is valid.
        let file = unsafe { file.assume_init() };
        known.then_some(Self(file.st_dev, file.st_ino))
    }
}

/// Keeps the present stderr for lines that are written when the process ends. Further calls change
/// nothing.
///
/// Who reads the stderr of this process waits for its end, also if the program closes its own.
/// Neither a forked child nor a program that the process becomes (`exec`) has the descriptor: a
/// daemon that a program leaves behind keeps nobody waiting.
pub(crate) fn keep() {
    KEPT.get_or_init(|| {
        let file = File::of(libc::STDERR_FILENO)?;
        let duplicates = LEAST.into_iter().map(|least| {
            // SAFETY: `fcntl` takes numbers, and makes a new descriptor.
            unsafe { libc::fcntl(libc::STDERR_FILENO, libc::F_DUPFD_CLOEXEC, least) }
        });
        let descriptor = { duplicates }.find(|descriptor| *descriptor >= 0);
        // SAFETY: the handler closes a descriptor that is the library's own, which is legal in a
        // forked child. If it cannot be registered, children keep the descriptor.
        unsafe { libc::pthread_atfork(None, None, Some(close_in_child)) };
        Some(Kept { descriptor: AtomicI32::new(descriptor.unwrap_or(-1)), file })
    });
}

extern "C" fn close_in_child() {
    let Some(Some(kept)) = KEPT.get() else { return };
    let descriptor = kept.descriptor.swap(-1, Relaxed);
    if descriptor >= 0 && File::of(descriptor) == Some(kept.file) {
        // SAFETY: the descriptor is the one that `keep` made, since it is still the same file.
        unsafe { libc::close(descriptor) };
    }
}

/// Returns a descriptor of the stderr of the start of the process, or of the present one if that
/// was not kept; `None` if the program has closed it, or was started without it.
fn at_end() -> Option<c_int> {
    let Some(kept) = KEPT.get() else { return Some(libc::STDERR_FILENO) };
    let Kept { descriptor, file } = kept.as_ref()?;
    let descriptors = [descriptor.load(Relaxed), libc::STDERR_FILENO];
    descriptors.into_iter().find(|descriptor| File::of(*descriptor) == Some(*file))
}

/// Writes text to stderr, one piece after the other.
pub(crate) fn say(pieces: &[&[u8]]) {
    write_to(libc::STDERR_FILENO, pieces);
}

/// Writes text to the stderr that [`keep`] has kept: a line of the end of a process.
pub(crate) fn say_at_end(pieces: &[&[u8]]) {
    if let Some(descriptor) = at_end() {
        write_to(descriptor, pieces);
    }
}

fn write_to(descriptor: c_int, pieces: &[&[u8]]) {
    for piece in pieces {
        // SAFETY: `write` reads `piece.len()` bytes of `piece`. A failed or partial write is
        // ignored.
        unsafe { libc::write(descriptor, piece.as_ptr().cast(), piece.len()) };
    }
}

/// Writes a summary to the stderr that [`keep`] has kept, in one line that begins with the name and
/// number of the process.
///
/// A summary of more than 512 bytes is cut.
pub(crate) fn summarize(summary: &dyn fmt::Display) {
    let (mut line, mut name) = (Line { bytes: [0; 512], used: 0 }, [0_u8; 16]);
    // SAFETY: `PR_GET_NAME` writes at most 16 bytes, with a zero byte at the end.
    unsafe { system::prctl(libc::PR_GET_NAME, name.as_mut_ptr().expose_provenance()) };
    let name = CStr::from_bytes_until_nul(&name).ok().and_then(|name| name.to_str().ok());
    let name = name.unwrap_or("?");
    // SAFETY: `getpid` has no preconditions.
    let number = unsafe { libc::getpid() };
    // A line that is too long is cut, which is no error here.
    let _ = write!(line, "bucketpool: {name} ({number}): {summary}");
    say_at_end(&[&line.bytes[..line.used], b"\n"]);
}

/// Text in a buffer of fixed size, so that it needs no allocation.
struct Line {
    bytes: [u8; 512],
    used: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let rest = &mut self.bytes[self.used..];
        let len = text.len().min(rest.len());
        rest[..len].copy_from_slice(&text.as_bytes()[..len]);
        self.used += len;
        if len == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}
