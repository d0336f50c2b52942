//! Real programs under one global allocator:
//! `bench-clients candle|arrow|gray-scott ALLOCATOR [--smoke]`.
//!
//! Prints the CPU time of the process and its peak of resident memory, as JSON.

mod candle;
mod columns;
mod gray_scott;

use pool_host::Tcache;
use std::alloc::{GlobalAlloc, Layout, System};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

const ALLOCATORS: [&str; 4] = ["glibc", "tcache", "mimalloc", "jemalloc"];

static TCACHE: Tcache = Tcache::new();

/// Global allocator that forwards to one allocator for the whole process.
///
/// The variable `BENCH_ALLOCATOR` names the allocator. The first allocation reads the variable, so
/// that every block is freed by the allocator that it came from.
struct Chosen(AtomicU8);

#[global_allocator]
static CHOSEN: Chosen = Chosen(AtomicU8::new(u8::MAX));

impl Chosen {
    /// Reads the choice from the environment and stores it. This function must not allocate.
    #[cold]
    fn choose(&self) -> u8 {
        // SAFETY: the name ends with a zero byte. The first allocation of the process comes here,
        // before any code of this program could change the environment.
        let name = unsafe { getenv(c"BENCH_ALLOCATOR".as_ptr()) };
        let is = |allocator: &std::ffi::CStr| {
            // SAFETY: `name` is not null, so `getenv` returned a string that ends with a zero byte,
            // and so does a `CStr`.
            !name.is_null() && unsafe { strcmp(name, allocator.as_ptr()) } == 0
        };
        let chosen = if is(c"tcache") {
            1
        } else if is(c"mimalloc") {
            2
        } else if is(c"jemalloc") {
            3
        } else {
            0
        };
        self.0.store(chosen, Relaxed);
        chosen
    }

    /// Returns the number of the chosen allocator.
    fn get(&self) -> u8 {
        match self.0.load(Relaxed) {
            u8::MAX => self.choose(),
            chosen => chosen,
        }
    }
}

unsafe extern "C" {
    fn getenv(name: *const std::ffi::c_char) -> *const std::ffi::c_char;
    fn strcmp(a: *const std::ffi::c_char, b: *const std::ffi::c_char) -> std::ffi::c_int;
}

macro_rules! chosen {
    ($self:ident . $call:ident($($argument:expr),*)) => {
        match $self.get() {
            // SAFETY: the caller keeps the contract of this `GlobalAlloc` method. The choice never
            // changes, so a block that is passed in came from the same allocator.
            1 => unsafe { TCACHE.$call($($argument),*) },
            // SAFETY: as for the first allocator.
            2 => unsafe { mimalloc::MiMalloc.$call($($argument),*) },
            // SAFETY: as for the first allocator.
            3 => unsafe { tikv_jemallocator::Jemalloc.$call($($argument),*) },
            // SAFETY: as for the first allocator.
            _ => unsafe { System.$call($($argument),*) },
        }
    };
}

// SAFETY: every call goes to the same allocator, whose `GlobalAlloc` keeps the contract.
unsafe impl GlobalAlloc for Chosen {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        chosen!(self.alloc(layout))
    }
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        chosen!(self.dealloc(block, layout));
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        chosen!(self.alloc_zeroed(layout))
    }
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        chosen!(self.realloc(block, layout, bytes))
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (case, allocator, smoke) = match words.as_slice() {
        [case, allocator] => (*case, *allocator, false),
        [case, allocator, "--smoke"] => (*case, *allocator, true),
        _ => return refuse("expected: candle|arrow|gray-scott ALLOCATOR [--smoke]"),
    };
    if !ALLOCATORS.contains(&allocator) {
        return refuse(&format!("allocator `{allocator}`; expected one of {ALLOCATORS:?}"));
    }
    if std::env::var("BENCH_ALLOCATOR").as_deref() != Ok(allocator) {
        return refuse(&format!("expected BENCH_ALLOCATOR={allocator} in the environment"));
    }
    let done = match case {
        "candle" => candle::train(if smoke { 2 } else { 24 }).map_err(|error| error.to_string()),
        "arrow" => columns::build(if smoke { 2 } else { 60 }).map_err(|error| error.to_string()),
        "gray-scott" => {
            gray_scott::run(if smoke { 2 } else { 400 });
            Ok(())
        }
        other => Err(format!("case `{other}`; expected candle, arrow or gray-scott")),
    };
    if let Err(why) = done {
        return refuse(&why);
    }
    println!("{{\"cpu_ns\": {}, \"resident_peak_bytes\": {}}}", cpu_ns(), resident_peak());
    ExitCode::SUCCESS
}

fn refuse(why: &str) -> ExitCode {
    eprintln!("error: {why}");
    ExitCode::from(2)
}

/// Returns the CPU time in nanoseconds of all live threads of this process.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let mut sum = 0;
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        sum += first_number(&text);
    }
    sum.max(first_number(&text))
}

fn first_number(text: &str) -> u64 {
    text.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Returns the peak of resident bytes of this process (`VmHWM`).
fn resident_peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.map_or(0, |line| first_number(line) << 10)
}
