//! A recorded program on one allocator.
//!
//! Measured: the resident bytes when all is written, and the time of an operation.
#![expect(unsafe_code, reason = "allocators are called directly")]

use super::{Job, Peer};
use crate::apart::Process;
use crate::input::BadInput;
use crate::machine::{cpu_ns, reset_resident_peak, resident, resident_peak};
use crate::rounds::Row;
use crate::trace::{self, Step, Trace};
use std::alloc::{GlobalAlloc, Layout};
use std::path::Path;
use std::ptr;

const ROUNDS: usize = 5;

struct Replayed<'t> {
    trace: &'t Trace,
    /// Whether each byte is written, or only the first.
    all: bool,
}

impl Job for Replayed<'_> {
    /// Nanoseconds of the whole program.
    type Result = f64;

    fn run<A: GlobalAlloc + Sync>(self, allocator: &'static A) -> f64 {
        let nothing = (ptr::null_mut::<u8>(), Layout::new::<()>());
        let mut slots = vec![nothing; self.trace.slots];
        let free = |(block, layout): (*mut u8, Layout)| {
            if !block.is_null() {
                // SAFETY: from `alloc` below, with this layout, and taken out of its slot.
                unsafe { allocator.dealloc(block, layout) };
            }
        };
        let start = cpu_ns();
        for step in &self.trace.steps {
            match *step {
                Step::Allocate { slot, bytes, .. } => {
                    let bytes = usize::try_from(bytes.max(1)).unwrap_or(usize::MAX);
                    let Ok(layout) = Layout::from_size_align(bytes, 8) else { return f64::NAN };
                    // SAFETY: the layout has at least one byte.
                    let block = unsafe { allocator.alloc(layout) };
                    if block.is_null() {
                        return f64::NAN;
                    }
                    // SAFETY: the block holds at least this many bytes.
                    unsafe { block.write_bytes(1, if self.all { bytes } else { 1 }) };
                    slots[slot as usize] = (block, layout);
                }
                Step::Free { slot, .. } => {
                    free(std::mem::replace(&mut slots[slot as usize], nothing));
                }
                Step::Use { .. } => {}
            }
        }
        let ns = cpu_ns() - start;
        slots.into_iter().for_each(free);
        ns as f64
    }
}

pub(super) fn run(file: &Path, peer: Peer, process: &Process) -> Result<Vec<Row>, BadInput> {
    let mut trace = trace::read(file)?;
    if process.smoke {
        trace.steps.truncate(10_000);
    }
    let before = resident();
    reset_resident_peak();
    peer.run(Replayed { trace: &trace, all: true });
    let resident_peak_bytes = Some(resident_peak().saturating_sub(before));
    let rounds = if process.smoke { 1 } else { process.share(ROUNDS) };
    let ops = trace.steps.len() as f64;
    let one = |_| Some(peer.run(Replayed { trace: &trace, all: false }) / ops);
    Ok(vec![Row {
        case: "gcc_cc1".into(),
        size: trace.ops,
        contender: peer.name().into(),
        resident_peak_bytes,
        live_peak_bytes: Some(trace.live_peak_bytes),
        samples: vec![(0..rounds).map(one).collect()],
        ..Row::default()
    }])
}
