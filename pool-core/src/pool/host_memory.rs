//! Host memory as a slice of bytes.
#![expect(unsafe_code, reason = "a slice over memory that an allocator vouches for")]

use crate::device::DeviceAllocator;
use crate::pool::buffer::PooledBuffer;
use crate::stream::clock::StreamClock;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Memory that the CPU reads and writes through a pointer. A buffer of it derefs to its bytes.
///
/// # Safety
///
/// [`HostMemory::bytes`] of a view returns at most as many bytes as [`DeviceAllocator::view`] was
/// called with, and always the same ones for the same block, offset and size. Those at offset `o`
/// begin `o` bytes after those at offset 0; only a view of no bytes may be anywhere. Until the
/// block is freed, they are valid for reads and writes, initialised, and used by no other block.
/// Initialised also when the block is fresh: bytes that were never written may not be read through
/// a slice. In a forked child too: a live buffer keeps its contents there, and is the child's
/// alone.
///
/// The clock has no streams: work has happened when a call returns.
///
/// Sizes and alignments are not part of this promise. They come from safe methods, so code that
/// needs them checks the slice that it gets.
pub unsafe trait HostMemory:
    DeviceAllocator<Clock: StreamClock<Stream = (), Mark = ()>>
{
    /// The bytes of a view.
    fn bytes(view: &Self::View<'_>) -> NonNull<[u8]>;
}

// Here and not in the host crate: the orphan rule wants it beside `PooledBuffer`.
impl<A: HostMemory> Deref for PooledBuffer<A> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `HostMemory` promises valid, initialised bytes that no other block has until the
        // block is freed, and the block is not freed while the buffer is borrowed.
        unsafe { bytes(self).as_ref() }
    }
}

impl<A: HostMemory> DerefMut for PooledBuffer<A> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the buffer is borrowed alone.
        unsafe { bytes(self).as_mut() }
    }
}

#[inline]
fn bytes<A: HostMemory>(buffer: &PooledBuffer<A>) -> NonNull<[u8]> {
    A::bytes(&buffer.view(&()))
}
