//! Recording of all requests and frees of an allocator, for the word `trace=FILE`: a ring in mapped
//! memory, and a thread that writes it to the file.
//!
//! The calls of the writer's own thread are not recorded, so it may allocate. In a child after
//! `fork` nothing is recorded. Without the word, each request and free has one load more.
#![expect(unsafe_code, reason = "memory is mapped, and a thread is made through C")]

use crate::background::{Background, confine};
use crate::{stderr, system};
use pool_trace::raw;
use pool_trace::ring::{Ring, RingSlot};
use std::ffi::{OsStr, c_int, c_void};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
    Ordering::SeqCst,
};

/// Records that the ring has room for, 64 bytes each.
const CAPACITY: usize = 1 << 18;
/// The longest name of a file, in bytes.
const NAME_MOST: usize = 1024;
/// Times that the end of the process looks for the end of the writer.
const LOOKS: u32 = 100_000;

/// Stack of the writer in bytes: it compresses.
const STACK: usize = 1 << 20;

/// Whether requests and frees are recorded.
static ON: AtomicBool = AtomicBool::new(false);
static RING: OnceLock<Ring<&'static [RingSlot]>> = OnceLock::new();
/// The name of the file, and how many bytes of it are used.
static NAME: OnceLock<([u8; NAME_MOST], usize)> = OnceLock::new();
/// Whether only faults are told.
static IS_SILENT: AtomicBool = AtomicBool::new(false);
/// The number of the writer's thread.
static WRITER: AtomicU64 = AtomicU64::new(0);
static ENDS: AtomicBool = AtomicBool::new(false);
static DONE: AtomicBool = AtomicBool::new(false);
static THREAD: Background = Background::new(STACK);

/// Takes the name of the file. Returns false if it is empty, too long, or another one than before.
pub(crate) fn name_file(name: &[u8]) -> bool {
    if name.is_empty() || name.len() > NAME_MOST {
        return false;
    }
    let mut bytes = [0; NAME_MOST];
    bytes[..name.len()].copy_from_slice(name);
    let named = (bytes, name.len());
    NAME.set(named).is_ok() || NAME.get() == Some(&named)
}

/// Has the writer say nothing about a file that is whole.
pub(crate) fn be_silent() {
    IS_SILENT.store(true, Relaxed);
}

/// Begins to record, if a file is named: maps the ring and requests the writer's thread. Returns
/// whether requests are recorded, from now on or from when the thread that came first has begun.
pub fn begin() -> bool {
    if NAME.get().is_none() {
        return false;
    }
    if RING.get().is_some() {
        return !DONE.load(Acquire);
    }
    let Some(slots) = map_slots() else {
        stderr::say(&[b"bucketpool: trace: no memory for the ring\n"]);
        return false;
    };
    if RING.set(Ring::new(slots)).is_err() {
        return !DONE.load(Acquire); // another thread was first
    }
    // SAFETY: the handler stores a flag, which is legal in a forked child. If it cannot be
    // registered, a child would fill a ring that nothing reads.
    unsafe { libc::pthread_atfork(None, None, Some(stop)) };
    if !IS_SILENT.load(Relaxed) {
        stderr::keep();
    }
    system::at_exit(end);
    THREAD.request();
    ON.store(true, Release);
    true
}

/// Stops recording where no writer reads the ring: in a forked child, and without a thread.
extern "C" fn stop() {
    ON.store(false, Relaxed);
    DONE.store(true, Relaxed);
}

/// Maps the slots of the ring: fresh pages are zeroes, which are empty slots.
fn map_slots() -> Option<&'static [RingSlot]> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let bytes = CAPACITY * size_of::<RingSlot>();
    // SAFETY: a new anonymous mapping anywhere touches no memory of the program.
    let at = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the mapping has that many bytes, is aligned to a page, reads as zeroes, which are
    // valid slots, and is never unmapped. Only shared references to it exist: slots are atomics.
    Some(unsafe { std::slice::from_raw_parts(at.cast::<RingSlot>(), CAPACITY) })
}

/// Returns whether requests and frees are recorded.
#[inline]
pub fn is_on() -> bool {
    ON.load(Relaxed)
}

/// Returns a number of the calling thread.
fn thread() -> u64 {
    system::thread_identity() as u64
}

fn push(words: impl FnOnce(u64) -> [u64; 7]) {
    if !is_on() {
        return; // the recorder has ended, or this is a forked child
    }
    let thread = thread();
    if thread == WRITER.load(Relaxed) {
        return;
    }
    if let Some(ring) = RING.get() {
        ring.push(words(thread));
    }
    if THREAD.is_requested() && !THREAD.start(run) {
        stderr::say(&[b"bucketpool: the system makes no thread for the trace\n"]);
        stop(); // no thread will ever read the ring
    }
}

/// Records an allocation, or a refusal if `block` is null.
#[cold]
pub fn allocated(block: *mut u8, bytes: usize) {
    push(|thread| match block.is_null() {
        true => raw::refused(bytes as u64, thread),
        false => raw::allocated(block.addr() as u64, bytes as u64, thread),
    });
}

/// Records a free; call it before the block is freed. Nothing happens for null.
#[cold]
pub fn freed(block: *mut u8) {
    if !block.is_null() {
        push(|thread| raw::freed(block.addr() as u64, thread));
    }
}

/// Writes the ring to the file.
extern "C" fn run(_: *mut c_void) -> *mut c_void {
    WRITER.store(thread(), SeqCst);
    system::name_thread(c"bucketpool-trace");
    match write() {
        Ok(_) if IS_SILENT.load(Relaxed) => {}
        Ok(summary) => stderr::say_at_end(&[summary.as_bytes()]),
        Err(error) => {
            ON.store(false, SeqCst);
            stderr::say_at_end(&[format!("bucketpool: trace: {error}\n").as_bytes()]);
        }
    }
    DONE.store(true, Release);
    ptr::null_mut()
}

/// The least descriptor of the file, where the limit allows it.
const HIGH: c_int = 900;

fn write() -> io::Result<String> {
    let none = || io::Error::other("no ring");
    let (name, used) = NAME.get().ok_or_else(none)?;
    let (file, path) = created(Path::new(OsStr::from_bytes(&name[..*used])))?;
    confine(); // only the file may have needed privileges
    let source = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    let recorded = raw::write(RING.get().ok_or_else(none)?, file, &path, source.trim(), &ENDS)?;
    let (operations, lost) = (recorded.operations, recorded.lost);
    let path = path.display();
    Ok(format!("bucketpool: {operations} operations in {path}, {lost} lost\n"))
}

/// Creates the file under a high descriptor: shells and daemons use the low ones for their own.
fn created(path: &Path) -> io::Result<(File, PathBuf)> {
    let (file, path) = create(path)?;
    // SAFETY: the descriptor is open, since `file` owns it.
    let high = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, HIGH) };
    if high < 0 {
        return Ok((file, path)); // the limit on descriptors is lower
    }
    // SAFETY: the call succeeded, so `high` is an open descriptor that nothing else owns.
    Ok((unsafe { File::from_raw_fd(high) }, path))
}

/// Files of one process: a program that replaces itself (`exec`) keeps its number.
const FILES_MOST: u32 = 1000;

/// Creates the file; if it exists, one whose name has the number of the process too, and a further
/// number if that exists.
fn create(path: &Path) -> io::Result<(File, PathBuf)> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (stem, rest) = name.split_once('.').unwrap_or((&name, "ptrace.csv.zst"));
    let process = std::process::id();
    let others = (1..FILES_MOST).map(|number| match number {
        1 => path.with_file_name(format!("{stem}-{process}.{rest}")),
        number => path.with_file_name(format!("{stem}-{process}-{number}.{rest}")),
    });
    for path in std::iter::once(path.to_path_buf()).chain(others) {
        match File::create_new(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            file => return Ok((file?, path)),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Ends the file when the process exits.
extern "C" fn end() {
    if !ON.swap(false, SeqCst) || THREAD.is_requested() {
        return;
    }
    ENDS.store(true, SeqCst);
    for _ in 0..LOOKS {
        if DONE.load(Acquire) {
            return;
        }
        // SAFETY: it has no preconditions.
        unsafe { libc::usleep(100) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_image_of_a_process_writes_over_the_file_of_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.ptrace.csv.zst");
        let files = [(); 4].map(|()| create(&path).unwrap().1);
        let process = std::process::id();
        let names = files.map(|file| file.file_name().unwrap().to_string_lossy().into_owned());
        let [second, third, fourth] =
            ["", "-2", "-3"].map(|further| format!("t-{process}{further}.ptrace.csv.zst"));
        assert_eq!(names, ["t.ptrace.csv.zst".to_owned(), second, third, fourth]);
    }
}
