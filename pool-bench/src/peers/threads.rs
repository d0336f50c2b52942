//! Blocks that one thread allocates and another frees: the wall clock.
#![expect(unsafe_code, reason = "allocators are called directly")]

use super::{Job, Peer};
use crate::apart::Process;
use crate::machine::timed_wall;
use crate::rounds::{Rounds, Row};
use std::alloc::{GlobalAlloc, Layout};
use std::hint;
use std::sync::atomic::{
    AtomicPtr, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;

const ROUNDS: usize = 11;
/// Blocks on their way from one thread to the other at most.
const PLACES: usize = 256;
/// Bytes between two that are written.
const PAGE: usize = 4096;

#[repr(align(128))]
struct Line<T>(T);

/// A ring between one writer and one reader.
struct Ring {
    put: Line<AtomicUsize>,
    taken: Line<AtomicUsize>,
    places: Vec<AtomicPtr<u8>>,
}

fn wait_until(is: impl Fn() -> bool) {
    let mut looks = 0;
    while !is() {
        looks += 1;
        if looks < 200 { hint::spin_loop() } else { thread::yield_now() }
    }
}

impl Ring {
    fn new() -> Self {
        let places = (0..PLACES).map(|_| AtomicPtr::default()).collect();
        Self { put: Line(AtomicUsize::new(0)), taken: Line(AtomicUsize::new(0)), places }
    }

    fn put(&self, block: *mut u8) {
        let put = self.put.0.load(Relaxed);
        wait_until(|| put - self.taken.0.load(Acquire) < PLACES);
        self.places[put % PLACES].store(block, Relaxed);
        self.put.0.store(put + 1, Release);
    }

    fn take(&self) -> *mut u8 {
        let taken = self.taken.0.load(Relaxed);
        wait_until(|| self.put.0.load(Acquire) != taken);
        let block = self.places[taken % PLACES].load(Relaxed);
        self.taken.0.store(taken + 1, Release);
        block
    }
}

struct HandOver {
    bytes: usize,
    count: u32,
}

impl Job for HandOver {
    type Result = f64;

    fn run<A: GlobalAlloc + Sync>(self, allocator: &'static A) -> f64 {
        let Ok(layout) = Layout::from_size_align(self.bytes, 8) else { return f64::NAN };
        let ring = Ring::new();
        let ((), ns) = timed_wall(|| {
            thread::scope(|scope| {
                scope.spawn(|| (0..self.count).for_each(|_| free_next(allocator, &ring, layout)));
                (0..self.count).for_each(|_| ring.put(written(allocator, layout)));
            });
        });
        ns as f64 / f64::from(self.count)
    }
}

fn free_next<A: GlobalAlloc>(allocator: &A, ring: &Ring, layout: Layout) {
    let block = ring.take();
    // SAFETY: the other thread has allocated it, and written its first byte.
    hint::black_box(unsafe { block.read_volatile() });
    // SAFETY: it is from `written` with this layout, and comes out of the ring once.
    unsafe { allocator.dealloc(block, layout) };
}

/// A block of which each page was written.
fn written<A: GlobalAlloc>(allocator: &A, layout: Layout) -> *mut u8 {
    // SAFETY: no size that is measured is 0.
    let block = unsafe { allocator.alloc(layout) };
    for at in (0..layout.size()).step_by(PAGE) {
        // SAFETY: inside the block.
        let byte = unsafe { block.add(at) };
        // SAFETY: as above.
        unsafe { byte.write_volatile(1) };
    }
    block
}

pub(super) fn hand_over(bytes: usize, process: &Process) -> Vec<Row> {
    let count = match bytes {
        _ if process.smoke => 1000,
        0..=8192 => 200_000,
        8193..=262_144 => 30_000,
        _ => 4000,
    };
    let names = Peer::names();
    let rounds = if process.smoke { 2 } else { process.share(ROUNDS) };
    let work = |at: usize| Peer::ALL[at].run(HandOver { bytes, count });
    Rounds::of(&names, rounds, process.seed, work).rows("hand-over", bytes as u64)
}

/// Two threads, each of which replaces blocks at random among a thousand, and which exchange all
/// they have eight times: what a server does (Larson and Krishnan, ISMM 1998).
struct Larson {
    count: u32,
}

const LIVE: usize = 1000;
const EXCHANGES: u32 = 8;

/// A block with its size, as a number that may change threads.
type Held = Vec<(usize, Layout)>;

fn replace_at_random<A: GlobalAlloc>(allocator: &A, held: &mut Held, random: &mut u64, count: u32) {
    for _ in 0..count {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        let (at, bytes) = ((*random >> 20) as usize % LIVE, 16 + (*random >> 40) as usize % 1008);
        let Ok(layout) = Layout::from_size_align(bytes, 8) else { continue };
        // SAFETY: 16 bytes at least.
        let block = unsafe { allocator.alloc(layout) };
        // SAFETY: inside the block.
        unsafe { block.write_volatile(1) };
        let (old, old_layout) =
            std::mem::replace(&mut held[at], (block.expose_provenance(), layout));
        free(allocator, old, old_layout);
    }
}

fn free<A: GlobalAlloc>(allocator: &A, block: usize, layout: Layout) {
    if block != 0 {
        // SAFETY: from `alloc` in `replace_at_random`, with this layout, and taken out of its
        // place.
        unsafe { allocator.dealloc(std::ptr::with_exposed_provenance_mut(block), layout) };
    }
}

impl Job for Larson {
    type Result = f64;

    fn run<A: GlobalAlloc + Sync>(self, allocator: &'static A) -> f64 {
        let tables = [(); 2].map(|()| Mutex::new(vec![(0, Layout::new::<u8>()); LIVE]));
        let barrier = Barrier::new(2);
        let work = |number: usize| {
            let mut random = 0x1234_5678 + 7919 * number as u64;
            for exchange in 0..EXCHANGES as usize {
                let table = &tables[(number + exchange) % 2];
                let mut held = table.lock().unwrap_or_else(PoisonError::into_inner);
                replace_at_random(allocator, &mut held, &mut random, self.count / EXCHANGES);
                drop(held);
                barrier.wait();
            }
        };
        let ((), ns) = timed_wall(|| {
            thread::scope(|scope| {
                scope.spawn(|| work(1));
                work(0);
            });
        });
        for table in tables {
            let held = table.into_inner().unwrap_or_else(PoisonError::into_inner);
            for (block, layout) in held {
                free(allocator, block, layout);
            }
        }
        ns as f64 / f64::from(self.count)
    }
}

pub(super) fn larson(process: &Process) -> Vec<Row> {
    let count = if process.smoke { 800 } else { 400_000 };
    let names = Peer::names();
    let rounds = if process.smoke { 2 } else { process.share(ROUNDS) };
    let work = |at: usize| Peer::ALL[at].run(Larson { count });
    Rounds::of(&names, rounds, process.seed, work).rows("larson", 2)
}
