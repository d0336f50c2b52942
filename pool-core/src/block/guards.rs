//! Guards of host memory: bytes behind each buffer that a program must not write, and freed memory
//! that it must not write either.
#![expect(unsafe_code, reason = "bytes of blocks that no buffer has are read and written")]

use crate::block::record::Record;
use crate::observe::{Damage, Misuse};
use crate::port::{DeviceAllocator, HostMemory, StreamClock};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes behind each buffer, at least.
pub(crate) const GUARD_BYTES: u64 = 16;
/// The byte of a guard.
const GUARD: u8 = 0xFB;
/// The byte of freed memory.
const FREED: u8 = 0xDD;

type Report = dyn Fn(&Damage) + Send + Sync;

/// The guards of a pool.
pub(crate) struct Guards<A: DeviceAllocator> {
    bytes: for<'b> fn(&A::View<'b>) -> NonNull<[u8]>,
    report: Arc<Report>,
}

impl<A: DeviceAllocator> Clone for Guards<A> {
    fn clone(&self) -> Self {
        Self { bytes: self.bytes, report: self.report.clone() }
    }
}

impl<A: DeviceAllocator> Guards<A> {
    pub(crate) fn new(report: Arc<Report>) -> Self
    where
        A: HostMemory,
    {
        Self { bytes: A::bytes, report }
    }

    /// All bytes of a block.
    fn block(&self, allocator: &A, record: &Record<A>) -> NonNull<[u8]> {
        let on = allocator.clock().default_stream();
        (self.bytes)(&record.view(allocator, record.bytes, on))
    }

    /// Checks a freed block that is about to serve again: its bytes must be as [`Guards::free`]
    /// left them, or zero if the pool has zeroed it since. Returns whether they are.
    ///
    /// # Safety
    ///
    /// No other code uses the bytes of the block meanwhile.
    pub(crate) unsafe fn check_freed(
        &self,
        allocator: &A,
        record: &Record<A>,
        zeroed: bool,
    ) -> bool {
        let left = if zeroed { 0 } else { FREED };
        // SAFETY: `HostMemory` promises valid, initialised bytes that no other block has, and the
        // caller that no other code uses them.
        let block = unsafe { self.block(allocator, record).as_ref() };
        let Some(at) = block.iter().position(|byte| *byte != left) else { return true };
        self.notify(Misuse::WrittenAfterFree, record.tag.name(), record.requested, at);
        false
    }

    /// Sets the guard of a block that a buffer gets.
    ///
    /// # Safety
    ///
    /// As for [`Guards::check_freed`].
    pub(crate) unsafe fn set(&self, allocator: &A, record: &Record<A>) {
        let end = usize::try_from(record.requested).unwrap_or(usize::MAX);
        // SAFETY: as in `check_freed`.
        let block = unsafe { self.block(allocator, record).as_mut() };
        if let Some(guard) = block.get_mut(end..) {
            guard.fill(GUARD);
        }
    }

    /// Checks the guard of a buffer that is freed, and marks its memory as freed.
    ///
    /// # Safety
    ///
    /// As for [`Guards::check_freed`].
    pub(crate) unsafe fn free(&self, allocator: &A, record: &Record<A>) {
        let end = usize::try_from(record.requested).unwrap_or(usize::MAX);
        let (tag, requested_bytes) = (record.tag.name(), record.requested);
        // SAFETY: as in `check_freed`.
        let block = unsafe { self.block(allocator, record).as_mut() };
        let guard = block.get(end..).unwrap_or_default();
        let written = guard.iter().position(|byte| *byte != GUARD);
        block.fill(FREED);
        if let Some(at) = written {
            self.notify(Misuse::WrittenBehindEnd, tag, requested_bytes, end + at);
        }
    }

    fn notify(&self, misuse: Misuse, tag: &'static str, requested_bytes: u64, at: usize) {
        let damage = Damage { misuse, tag, requested_bytes, at: at as u64 };
        // The panic hook has reported it; a drop may not panic.
        let _ = catch_unwind(AssertUnwindSafe(|| (self.report)(&damage)));
    }
}
