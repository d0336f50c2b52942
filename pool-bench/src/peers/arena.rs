//! Allocators that split one region, on recorded traces: nanoseconds per operation, and what they
//! reserve over the live peak. Each round begins with an allocator that has nothing.

mod torch;

use crate::apart::Process;
use crate::input::BadInput;
use crate::machine::cpu_ns;
use crate::rounds::{Rounds, Row};
use crate::spec;
use crate::trace::{self, Step, Trace};
use crate::tree::{Tree, UNIT};
use bucketpool::sim::SimDevice;
use bucketpool::{Arena, BucketPool, PooledBuffer, ZeroPolicy};
use offset_allocator::{Allocation, Allocator};
use parking_lot::Mutex;
use std::hint::black_box;
use std::path::Path;
use torch::Torch;

/// The contender that the others are compared with.
pub(crate) const REFERENCE: &str = "offset-allocator";
/// Rounds of all processes together.
const ROUNDS: usize = 15;
/// A region that cannot grow is this many times the live peak, so that all find room.
const REGION: u64 = 6;

/// The contenders, and what each does not do that ours does.
pub(crate) const CONTENDERS: [(&str, &str); 8] = [
    (REFERENCE, "threads, streams, growth, statistics"),
    ("offset-allocator, mutex", "streams, growth, statistics"),
    ("rlsf, mutex", "streams, statistics; writes its headers into the memory"),
    ("best-fit tree, mutex", "streams, statistics; grows at its end, gives nothing back"),
    ("PyTorch's rules, mutex", "streams, statistics; gives nothing back"),
    ("arena", ""),
    ("arena:pages=64K:slack=5%", ""),
    ("preset:caching", ""),
];

/// An allocator that splits a region into blocks.
pub(super) trait Region {
    type Block;
    fn allocate(&mut self, bytes: u64) -> Option<Self::Block>;
    fn free(&mut self, block: Self::Block);
    /// The most bytes taken from the memory below.
    fn reserved_peak(&self) -> u64;
}

/// The result of a contender in one round.
struct Came {
    ns_per_op: f64,
    reserved_peak: u64,
}

pub(crate) fn run(file: &Path, process: &Process) -> Result<Vec<Row>, BadInput> {
    let mut trace = trace::read(file)?;
    if process.smoke {
        trace.steps.truncate(10_000);
    }
    let rounds = if process.smoke { 2 } else { process.share(ROUNDS) };
    let mut reserved = [0; CONTENDERS.len()];
    let names = CONTENDERS.map(|(name, _)| name);
    let (took, failures) = Rounds::run(&names, (1, rounds), process.seed, |at| {
        let came = contend(at, &trace).ok_or("no memory")?;
        reserved[at] = came.reserved_peak;
        Ok::<_, &str>(came.ns_per_op)
    });
    let mut rows = took.rows(&trace.name, 0);
    let absent = CONTENDERS.map(|(_, absent)| absent.to_owned());
    for (((row, absent), reserved), failure) in
        rows.iter_mut().zip(absent).zip(reserved).zip(failures)
    {
        row.absent = absent;
        row.reserved_peak_bytes = Some(reserved);
        row.live_peak_bytes = Some(trace.live_peak_bytes);
        row.page_faults = None;
        row.refused = failure.map(str::to_owned);
    }
    Ok(rows)
}

fn contend(at: usize, trace: &Trace) -> Option<Came> {
    let region = (trace.live_peak_bytes * REGION).next_multiple_of(UNIT) + (1 << 20);
    match at {
        0 => replay(trace, Offset::new(region, trace.slots)),
        1 => replay(trace, Locked(Mutex::new(Offset::new(region, trace.slots)))),
        2 => replay(trace, Locked(Mutex::new(Tlsf::new(region)))),
        3 => replay(trace, Locked(Mutex::new(Tree::default()))),
        4 => replay(trace, Locked(Mutex::new(Torch::default()))),
        _ => {
            // A pool over an arena of simulated pages, as `cargo xtask replay` has it.
            let spec = spec::list(CONTENDERS[at].0).ok()?.pop()?;
            let arena = Arena::over_pages(SimDevice::new(), spec.arena.clone()?);
            replay(trace, Ours(spec.builder(arena).zero(ZeroPolicy::Never).build()))
        }
    }
}

/// Runs all steps; blocks that are live at the end are freed after that.
fn replay<R: Region>(trace: &Trace, mut region: R) -> Option<Came> {
    let mut slots: Vec<Option<R::Block>> = (0..trace.slots).map(|_| None).collect();
    let start = cpu_ns();
    for step in &trace.steps {
        match *step {
            Step::Allocate { slot, bytes, .. } => {
                slots[slot as usize] = Some(region.allocate(black_box(bytes))?);
            }
            Step::Free { slot, .. } => {
                if let Some(block) = slots[slot as usize].take() {
                    region.free(block);
                }
            }
            Step::Use { .. } => {}
        }
    }
    let ns_per_op = (cpu_ns() - start) as f64 / trace.steps.len() as f64;
    slots.into_iter().flatten().for_each(|block| region.free(block));
    Some(Came { ns_per_op, reserved_peak: region.reserved_peak() })
}

impl Region for Tree {
    type Block = usize;

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Option<usize> {
        Some(Tree::allocate(self, bytes))
    }
    #[inline]
    fn free(&mut self, block: usize) {
        Tree::free(self, block);
    }
    fn reserved_peak(&self) -> u64 {
        Tree::reserved_peak(self)
    }
}

/// Shared by threads, as ours are.
struct Locked<R>(Mutex<R>);

impl<R: Region> Region for Locked<R> {
    type Block = R::Block;

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Option<R::Block> {
        self.0.lock().allocate(bytes)
    }
    #[inline]
    fn free(&mut self, block: R::Block) {
        self.0.lock().free(block);
    }
    fn reserved_peak(&self) -> u64 {
        self.0.lock().reserved_peak()
    }
}

/// A pool, whose buffers free themselves.
struct Ours(BucketPool<Arena<SimDevice>>);

impl Region for Ours {
    type Block = PooledBuffer<Arena<SimDevice>>;

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Option<Self::Block> {
        self.0.allocate(bytes).ok()
    }
    #[inline]
    fn free(&mut self, block: Self::Block) {
        drop(block);
    }
    fn reserved_peak(&self) -> u64 {
        self.0.stats().reserved_peak_bytes
    }
}

/// `offset-allocator` over one region of units.
struct Offset {
    allocator: Allocator<u32>,
    end: u32,
}

impl Offset {
    fn new(bytes: u64, slots: usize) -> Self {
        let units = u32::try_from(bytes / UNIT).unwrap_or(u32::MAX);
        // A free range needs a node as well as a block.
        let nodes = u32::try_from(4 * slots + 1024).unwrap_or(u32::MAX);
        Self { allocator: Allocator::with_max_allocs(units, nodes), end: 0 }
    }
}

impl Region for Offset {
    type Block = Allocation<u32>;

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Option<Self::Block> {
        let units = u32::try_from(bytes.max(1).div_ceil(UNIT)).ok()?;
        let block = self.allocator.allocate(units)?;
        self.end = self.end.max(block.offset + units);
        Some(block)
    }
    #[inline]
    fn free(&mut self, block: Self::Block) {
        self.allocator.free(block);
    }
    fn reserved_peak(&self) -> u64 {
        u64::from(self.end) * UNIT
    }
}

/// `rlsf`'s two-level segregated fit, over real addresses: its headers stand in the memory. Rounds
/// share the memory, so the cold round has its page faults.
struct Tlsf {
    book: Box<rlsf::Tlsf<'static, u32, u32, 32, 32>>,
    memory: std::ptr::NonNull<u8>,
    bytes: usize,
    end: usize,
}

#[expect(unsafe_code, reason = "rlsf is given memory, and blocks back, through pointers")]
mod unsafe_tlsf {
    use super::{Region, Tlsf, UNIT};
    use std::alloc::{Layout, alloc};
    use std::cell::Cell;
    use std::ptr::NonNull;

    thread_local! {
        /// The memory of the round before, and its size.
        static KEPT: Cell<Option<(NonNull<u8>, usize)>> = const { Cell::new(None) };
    }

    impl Tlsf {
        pub(super) fn new(bytes: u64) -> Self {
            let bytes = usize::try_from(bytes).unwrap_or(0);
            let layout = layout(bytes);
            let kept = KEPT.take().filter(|(_, kept)| *kept == bytes);
            let memory = kept.map_or_else(
                || {
                    // SAFETY: the size is not 0. Untouched pages cost nothing.
                    let memory = unsafe { alloc(layout) };
                    NonNull::new(memory).unwrap_or_else(|| std::alloc::handle_alloc_error(layout))
                },
                |(memory, _)| memory,
            );
            let mut book = Box::new(rlsf::Tlsf::new());
            let block = NonNull::slice_from_raw_parts(memory, bytes);
            // SAFETY: no other code uses the memory, which lives as long as the process.
            unsafe { book.insert_free_block_ptr(block) };
            Self { book, memory, bytes, end: 0 }
        }
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, 4096).unwrap_or(Layout::new::<u8>())
    }

    impl Region for Tlsf {
        type Block = NonNull<u8>;

        #[inline]
        fn allocate(&mut self, bytes: u64) -> Option<NonNull<u8>> {
            let bytes = usize::try_from(bytes.max(1).next_multiple_of(UNIT)).ok()?;
            let layout = Layout::from_size_align(bytes, 16).ok()?;
            let block = self.book.allocate(layout)?;
            let end = block.addr().get() - self.memory.addr().get() + bytes;
            self.end = self.end.max(end);
            Some(block)
        }
        #[inline]
        fn free(&mut self, block: NonNull<u8>) {
            // SAFETY: from `allocate` above, with this alignment, and moved in here.
            unsafe { self.book.deallocate(block, 16) };
        }
        fn reserved_peak(&self) -> u64 {
            self.end as u64
        }
    }

    impl Drop for Tlsf {
        fn drop(&mut self) {
            // For the next round, or until the process ends.
            KEPT.set(Some((self.memory, self.bytes)));
        }
    }
}
