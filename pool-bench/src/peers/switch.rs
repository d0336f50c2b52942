//! The binary's own global allocator: one of the peers at a time, by choice.
#![expect(unsafe_code, reason = "the trait of an allocator is unsafe")]

use super::{Peer, TCACHE};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

struct Switch(AtomicU8);

/// A load and a jump ahead of each call, about 1 ns, for all contenders alike.
#[global_allocator]
static SWITCH: Switch = Switch(AtomicU8::new(Peer::CLibrary as u8));

/// Runs `work` with `peer` as the global allocator of this thread, the only one. What it allocates
/// it also frees.
pub(super) fn with<R>(peer: Peer, work: impl FnOnce() -> R) -> R {
    SWITCH.0.store(peer as u8, Relaxed);
    let result = work();
    SWITCH.0.store(Peer::CLibrary as u8, Relaxed);
    result
}

macro_rules! switched {
    ($self:ident . $call:ident($($argument:expr),*)) => {{
        const TCACHE_: u8 = Peer::Tcache as u8;
        const MIMALLOC: u8 = Peer::Mimalloc as u8;
        #[cfg(not(target_env = "musl"))]
        const JEMALLOC: u8 = Peer::Jemalloc as u8;
        #[cfg(not(target_env = "musl"))]
        const SNMALLOC: u8 = Peer::Snmalloc as u8;
        match $self.0.load(Relaxed) {
            // SAFETY: as the caller of this call says, of the allocator that the block is from:
            // `with` frees what it allocates.
            TCACHE_ => unsafe { TCACHE.$call($($argument),*) },
            // SAFETY: as above.
            MIMALLOC => unsafe { mimalloc::MiMalloc.$call($($argument),*) },
            // SAFETY: as above.
            #[cfg(not(target_env = "musl"))]
            JEMALLOC => unsafe { tikv_jemallocator::Jemalloc.$call($($argument),*) },
            // SAFETY: as above.
            #[cfg(not(target_env = "musl"))]
            SNMALLOC => unsafe { snmalloc_rs::SnMalloc.$call($($argument),*) },
            // SAFETY: as above.
            _ => unsafe { System.$call($($argument),*) },
        }
    }};
}

// SAFETY: each call goes to an allocator that keeps the promise.
unsafe impl GlobalAlloc for Switch {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        switched!(self.alloc(layout))
    }
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        switched!(self.dealloc(block, layout));
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        switched!(self.alloc_zeroed(layout))
    }
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        switched!(self.realloc(block, layout, bytes))
    }
}
