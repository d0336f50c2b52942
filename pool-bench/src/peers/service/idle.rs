//! Resident memory after a load has ended, while some small blocks between the freed ones stay
//! live.
#![expect(unsafe_code, reason = "allocators are called directly")]

use super::super::{Job, MIB, Peer};
use super::random_layout;
use crate::apart::Process;
use crate::machine::resident;
use crate::rounds::Row;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use std::alloc::{GlobalAlloc, Layout};
use std::ptr;
use std::thread;
use std::time::Duration;

/// Bytes that the load allocates in blocks of random sizes.
const LOAD: u64 = 1 << 30;
const SEED: u64 = 1;
/// Base-2 logarithm of the largest block in bytes.
const BITS: u32 = 24;
/// Largest size in bytes of a block that stays live.
const SMALL: usize = 4 << 10;
/// One block in this many stays live, if it is small. (If each page had a live block, no page could
/// be given back.)
const LIVES: usize = 1000;
/// Seconds between the end of the load and the measurement.
const SECONDS: u32 = 12;
/// Requests of the program in each of these seconds.
const CALLS: u32 = 10;

/// Figures in bytes. `peak` and `end` are the resident bytes above those before the load, at its
/// peak and at the end. `live` is the sum of the live blocks.
struct Left {
    peak: u64,
    live: u64,
    end: u64,
}

struct Idle {
    load: u64,
    seconds: u32,
    /// Whether the program makes no request after the load.
    asleep: bool,
}

impl Job for Idle {
    type Result = Left;

    fn run<A: GlobalAlloc + Sync>(self, allocator: &'static A) -> Left {
        let mut random = SmallRng::seed_from_u64(SEED);
        let mut bytes = 0;
        let layouts = std::iter::repeat_with(|| random_layout(&mut random, BITS));
        let mut layouts: Vec<Layout> = layouts
            .take_while(|layout| {
                bytes += layout.size() as u64;
                bytes <= self.load
            })
            .collect();
        // Small blocks are added, because the random sizes contain only few of them.
        let small = Layout::new::<[u8; 256]>();
        layouts.extend((0..self.load / 16 / 256).map(|_| small));
        // Writing the list makes it resident before the first measurement.
        let mut blocks = vec![(ptr::null_mut::<u8>(), small, true); layouts.len()];
        blocks.clear();
        let before = resident();
        for (number, layout) in layouts.iter().enumerate() {
            // SAFETY: the layout's size is at least 64 bytes, not 0.
            let block = unsafe { allocator.alloc(*layout) };
            // SAFETY: the block has `layout.size()` bytes. The bench assumes that `alloc` did not
            // fail.
            unsafe { block.write_bytes(1, layout.size()) };
            blocks.push((block, *layout, layout.size() <= SMALL && number % LIVES == 0));
        }
        let peak = resident().saturating_sub(before);
        for (block, layout, _) in blocks.extract_if(.., |(.., lives)| !*lives) {
            // SAFETY: `alloc` above returned it for this layout, and `extract_if` removed it.
            unsafe { allocator.dealloc(block, layout) };
        }
        let live = blocks.iter().map(|(_, layout, _)| layout.size() as u64).sum();
        for _ in 0..self.seconds * CALLS {
            thread::sleep(Duration::from_secs(1) / CALLS);
            if !self.asleep {
                // SAFETY: the layout's size is 256 bytes, not 0.
                let block = unsafe { allocator.alloc(small) };
                // SAFETY: `alloc` above returned it for this layout.
                unsafe { allocator.dealloc(block, small) };
            }
        }
        Left { peak, live, end: resident().saturating_sub(before) }
    }
}

pub(super) fn run(peer: Peer, asleep: bool, process: &Process) -> Vec<Row> {
    let (load, seconds) = if process.smoke { (16 * MIB, 1) } else { (LOAD, SECONDS) };
    let left = peer.run(Idle { load, seconds, asleep });
    let how = if asleep { "asleep" } else { "with 10 calls a second" };
    let row = |case: String, resident: u64| Row {
        case,
        contender: peer.name().into(),
        resident_peak_bytes: Some(resident),
        live_peak_bytes: Some(left.live),
        ..Row::default()
    };
    vec![
        row(format!("resident at the end of a load of 1 GiB, {how}"), left.peak),
        row(format!("resident 12 s later, {how}"), left.end),
        row(format!("of which live, {how}"), left.live),
    ]
}
