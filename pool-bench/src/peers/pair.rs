//! One allocation and its free, repeated: CPU time of one thread.
#![expect(unsafe_code, reason = "allocators are called directly")]

use super::{Job, Peer};
use crate::apart::Process;
use crate::machine::cpu_ns;
use crate::rounds::{Rounds, Row};
use bucketpool::BucketPool;
use bucketpool::host::HostAllocator;
use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::hint::black_box;
use std::ptr;

const ROUNDS: usize = 25;

#[derive(Clone, Copy)]
struct Pairs {
    bytes: usize,
    align: usize,
    count: u32,
}

impl Job for Pairs {
    type Result = f64;

    #[inline(never)]
    fn run<A: GlobalAlloc + Sync>(self, allocator: &'static A) -> f64 {
        let Ok(layout) = Layout::from_size_align(self.bytes, self.align) else { return f64::NAN };
        let start = cpu_ns();
        for _ in 0..self.count {
            let layout = black_box(layout);
            // SAFETY: no measured size is 0.
            let block = unsafe { allocator.alloc(layout) };
            // SAFETY: from `alloc`, with this layout.
            unsafe { allocator.dealloc(black_box(block), layout) };
        }
        (cpu_ns() - start) as f64 / f64::from(self.count)
    }
}

/// The least work that a cache can do: an array of the thread with a block in it.
struct Floor;

thread_local! {
    static LEN: Cell<usize> = const { Cell::new(1) };
    static BLOCKS: [Cell<*mut u8>; 8] =
        const { [const { Cell::new(ptr::without_provenance_mut(64)) }; 8] };
}

// SAFETY: hands out addresses that are never accessed.
unsafe impl GlobalAlloc for Floor {
    #[inline]
    unsafe fn alloc(&self, _: Layout) -> *mut u8 {
        let len = LEN.get();
        if len == 0 {
            return ptr::null_mut();
        }
        LEN.set(len - 1);
        BLOCKS.with(|blocks| blocks[(len - 1) % 8].get())
    }
    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        let len = LEN.get();
        if len < 8 {
            BLOCKS.with(|blocks| blocks[len % 8].set(block));
            LEN.set(len + 1);
        }
    }
}

/// Measures a pool as a program uses it.
#[inline(never)]
fn pooled(pool: &BucketPool<HostAllocator>, pairs: Pairs) -> f64 {
    let start = cpu_ns();
    for _ in 0..pairs.count {
        let bytes = black_box(pairs.bytes as u64);
        drop(black_box(pool.allocate_aligned(bytes, pairs.align as u64)));
    }
    (cpu_ns() - start) as f64 / f64::from(pairs.count)
}

/// Measures blocks of `bytes` bytes that are aligned to `align`.
pub(super) fn run(case: &str, bytes: usize, align: usize, process: &Process) -> Vec<Row> {
    let count = match bytes {
        _ if process.smoke => 10,
        0..=262_144 => 100_000,
        262_145..=33_554_432 => 20_000,
        _ => 200,
    };
    let pairs = Pairs { bytes, align, count };
    let mut names = vec!["floor", "pool"];
    names.extend(Peer::names());
    let pool = BucketPool::new(HostAllocator::new());
    let rounds = if process.smoke { 2 } else { process.share(ROUNDS) };
    let rounds = Rounds::of(&names, rounds, process.seed, |at| match at {
        0 => pairs.run(&Floor),
        1 => pooled(&pool, pairs),
        _ => Peer::ALL[at - 2].run(pairs),
    });
    rounds.rows(case, bytes as u64)
}
