//! No file takes more memory than its own size, or that of its text, times a constant.
//!
//! The allocator of this binary counts the bytes that each thread has, and the most so far.
#![expect(unsafe_code, reason = "an allocator")]
#![expect(clippy::unwrap_used, reason = "a test")]

use pool_trace::{Log, Malformed};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Bytes that this thread has allocated and not freed, and the most of that so far.
    static BYTES: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(more: usize, less: usize) {
    let _ = BYTES.try_with(|bytes| {
        let (now, peak) = bytes.get();
        let now = now + more.cast_signed() - less.cast_signed();
        bytes.set((now, peak.max(now)));
    });
}

// SAFETY: each call goes to `System` as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }

    // A block that grows may be in two places while it is copied.
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(bytes, 0);
        count(0, layout.size());
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(at, layout, bytes) }
    }
}

/// Returns what `work` returns, and the most bytes that it had at once.
fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = BYTES.with(|bytes| {
        let (now, _) = bytes.get();
        bytes.set((now, now));
        now
    });
    let done = work();
    let peak = BYTES.with(|bytes| bytes.get().1) - before;
    (done, usize::try_from(peak).unwrap())
}

/// The longest line, in bytes.
const MAX_LINE_BYTES: usize = 1 << 20;
/// Bytes of text for each byte of a compressed file, at most.
const MAX_TEXT_RATIO: usize = 100;
/// Bytes of text that a compressed file of any size may have.
const MIN_TEXT_BYTES: usize = 1 << 20;
/// Bytes for each byte of a plain file: an operation has 64 bytes and may be a line of 6; a value
/// of a pickle has 40 and may be one byte. Vectors that grow have up to three times that at once.
const FACTOR: usize = 200;
/// Bytes for buffers of readers, whatever the file.
const SLACK: usize = 1 << 20;

type Read = fn(&[u8]) -> Result<Log, Malformed>;
const ANY: Read = |bytes| pool_trace::read(bytes);

/// Reads a file whose text has `text` bytes. Asserts that the reader took little memory.
fn read(what: &str, file: &[u8], text: usize, read: Read) -> Result<Log, Malformed> {
    let readable = text.min(MIN_TEXT_BYTES + MAX_TEXT_RATIO * file.len());
    let (log, peak) = peak_of(|| read(file));
    let most = FACTOR * readable + SLACK;
    assert!(peak <= most, "{what}: {peak} bytes for {text} bytes in a file of {}", file.len());
    log
}

/// Reads a file plain and compressed.
fn read_both(what: &str, text: &[u8]) -> [Result<Log, Malformed>; 2] {
    let packed = zstd::stream::encode_all(text, 3).unwrap();
    [read(what, text, text.len(), ANY), read(what, &packed, text.len(), ANY)]
}

const RMM: &str = "Thread,Time,Action,Pointer,Size,Stream\n";
const PTRACE: &str = "#ptrace,1\nop,id,size,lane,dt_ns\na,0,64,0,0\n";

#[test]
fn a_line_without_end_is_refused_with_its_number() {
    for (head, line) in [(PTRACE, 4), (RMM, 2), ("", 1)] {
        for byte in ["#", "0", ","] {
            let text = [head, &byte.repeat(2 << 20)].concat();
            let what = format!("line {line} of `{byte}`");
            for log in read_both(&what, text.as_bytes()) {
                let error = log.unwrap_err();
                assert_eq!(error.line, Some(line), "{what}: {error}");
                let most = format!("at most {MAX_LINE_BYTES} bytes");
                assert!(error.to_string().contains(&most), "{what}: {error}");
            }
        }
    }
}

#[test]
fn the_longest_line_is_read() {
    let name = "f".repeat(MAX_LINE_BYTES - "#stack,1,".len());
    let text =
        format!("#ptrace,2\n#stack,1,{name}\nop,id,size,lane,dt_ns,tag,stack\na,0,8,0,0,,1\n");
    for log in read_both("the longest line", text.as_bytes()) {
        assert_eq!(log.unwrap().stacks[0], name);
    }
}

#[test]
fn text_that_zstd_has_packed_too_much_is_refused() {
    let files = [
        ("events", [PTRACE, &"e,,,,\n".repeat(1 << 19)].concat()),
        ("empty lines", [RMM, &"\n".repeat(2 << 20)].concat()),
        ("rows", [RMM, &",0,free,0,0,0\n".repeat(1 << 18)].concat()),
        ("comments", [PTRACE, &format!("#{}\n", "x".repeat(1023)).repeat(24 << 10)].concat()),
    ];
    let files = files.map(|(what, text)| (what, text.into_bytes()));
    let values = [b"\x80\x02".to_vec(), vec![b'N'; 2 << 20], b".".to_vec()].concat();
    for (what, text) in files.into_iter().chain([("values", values)]) {
        let packed = zstd::stream::encode_all(&text[..], 3).unwrap();
        let error = read(what, &packed, text.len(), ANY).unwrap_err().to_string();
        assert!(error.contains("zstd -d") && error.lines().count() == 1, "{what}: {error}");
    }
}

/// Backtraces of a recorder are long lines that repeat each other for the most part.
#[test]
fn backtraces_that_pack_well_are_read() {
    let calls: Vec<_> = (0..200).map(|at| format!(";program::module{at}::function")).collect();
    let calls = calls.concat();
    let stack = |at: usize| format!("#stack,{},program::leaf{at}{calls}\n", at + 1);
    let stacks: String = (0..1500).map(stack).collect();
    let text = format!("#ptrace,2\n{stacks}op,id,size,lane,dt_ns,tag,stack\na,0,8,0,0,,1\n");
    let packed = zstd::stream::encode_all(text.as_bytes(), 19).unwrap();
    assert!(text.len() > 150 * packed.len(), "{} in {}", text.len(), packed.len());
    let log = read("backtraces", &packed, text.len(), ANY).unwrap();
    assert_eq!((log.stacks.len(), log.operations.len()), (1500, 1));
}

#[test]
fn a_trace_that_packs_well_is_read_whole() {
    let lines = (0..100_000).map(|id| format!("a,{id},4096,0,0\nf,{id},,0,0\n"));
    let text = [PTRACE, &lines.collect::<String>().replace("a,0,4096", "a,100000,4096")].concat();
    let text = text.replace("f,0,,0,0\n", "f,100000,,0,0\n");
    let packed = zstd::stream::encode_all(text.as_bytes(), 9).unwrap();
    assert!(text.len() > MIN_TEXT_BYTES && packed.len() * 10 < text.len(), "packs well");
    assert_eq!(read("a loop", &packed, text.len(), ANY).unwrap().operations.len(), 200_001);
}

/// A dict that is an entry of a trace, under number 0; then lists of references to it.
fn nested_lists(counts: &[usize]) -> Vec<u8> {
    let text = |text: &str| {
        let length = u32::try_from(text.len()).unwrap().to_le_bytes();
        [b"X".as_slice(), &length, text.as_bytes()].concat()
    };
    let mut file = [b"\x80\x02}q\x00(".to_vec(), text("action"), text("alloc")].concat();
    file.extend([text("size"), b"K\x40".to_vec(), text("addr"), b"K\x40u0".to_vec()].concat());
    for (level, count) in (1..).zip(counts) {
        file.extend([b']', b'q', level, b'(']);
        file.extend([b'h', level - 1].repeat(*count));
        file.extend(b"e0");
    }
    let last = u8::try_from(counts.len()).unwrap();
    [file, b"}(".to_vec(), text("device_traces"), vec![b'h', last, b'u', b'.']].concat()
}

#[test]
fn a_snapshot_that_repeats_its_lists_is_refused() {
    let file = nested_lists(&[1500, 1500]);
    for log in read_both("lists", &file) {
        let error = log.unwrap_err().to_string();
        let most = format!("at most {}", file.len() / 2);
        assert!(error.contains("entries") && error.contains(&most), "{error}");
    }
    let file = nested_lists(&[1500, 1]);
    for log in read_both("one list", &file) {
        assert_eq!(log.unwrap().operations.len(), 2999, "each allocation ends the one before");
    }
}

/// What takes the most memory for each byte, in each format.
#[test]
fn the_densest_files_take_their_size_times_a_constant() {
    let of = |head: &[u8], body: &str, times: usize, end: &[u8]| {
        [head, body.repeat(times).as_bytes(), end].concat()
    };
    let (ptrace, rmm, pickle) = (PTRACE.as_bytes(), RMM.as_bytes(), b"\x80\x02".as_slice());
    let files = [
        ("events", of(ptrace, "e,,,,\n", 20_000, b"")),
        ("commas", of(ptrace, ",", 100_000, b"\n")),
        ("columns", of(b"", ",", 100_000, b"\n")),
        ("names", of(ptrace, "#x\n", 30_000, b"")),
        ("rows", of(rmm, ",0,free,0,0,0\n", 10_000, b"")),
        ("allocations", of(rmm, ",0,allocate,0,0,0\n", 10_000, b"")),
        ("values", of(pickle, "N", 100_000, b".")),
        ("lists", of(pickle, "]", 100_000, b".")),
        ("copies", of(b"\x80\x02](", "N2222222222", 10_000, b"e.")),
        ("marks", of(pickle, "(", 100_000, b".")),
        ("pairs", of(b"\x80\x02}(", "N2", 50_000, b"u.")),
        ("kept", of(b"\x80\x02N", "", 0, &[0x94].repeat(100_000))),
        ("entries", nested_lists(&[40_000, 1])),
    ];
    for (what, file) in files {
        for log in read_both(what, &file) {
            let lines = log.map_or_else(|error| error.to_string().lines().count(), |_| 1);
            assert_eq!(lines, 1, "{what}: an error is one line");
        }
    }
}
