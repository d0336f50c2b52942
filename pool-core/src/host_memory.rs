//! Host memory as a slice of bytes.
#![expect(unsafe_code, reason = "a slice over memory that an allocator vouches for")]

use crate::buffer::PooledBuffer;
use crate::clock::StreamClock;
use crate::device::DeviceAllocator;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;

/// Memory that the CPU reads and writes through a pointer. A buffer of it derefs to its bytes.
///
/// # Safety
///
/// Until a block is freed, all bytes of it are valid for reads and writes, initialised, and nobody
/// else's, at the address that [`HostMemory::pointer`] gives for a view of them. Initialised also
/// when the block is fresh: bytes that nobody wrote may not be read through a slice. In a forked
/// child too: a buffer that was live keeps its contents there, and is the child's alone.
///
/// The clock has no streams: work has happened when a call returns.
pub unsafe trait HostMemory:
    DeviceAllocator<Clock: StreamClock<Stream = (), Mark = ()>>
{
    /// Where the bytes of a view begin. Not null for a view of no bytes either.
    fn pointer(view: &Self::View<'_>) -> NonNull<u8>;
}

// Here and not in the host crate: the orphan rule wants it beside `PooledBuffer`.
impl<A: HostMemory> Deref for PooledBuffer<A> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let (at, bytes) = place(self);
        // SAFETY: `HostMemory` promises valid, initialised bytes that are nobody else's until the
        // block is freed, and the block is not freed while the buffer is borrowed.
        unsafe { slice::from_raw_parts(at.as_ptr(), bytes) }
    }
}

impl<A: HostMemory> DerefMut for PooledBuffer<A> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let (at, bytes) = place(self);
        // SAFETY: as above, and the buffer is borrowed alone.
        unsafe { slice::from_raw_parts_mut(at.as_ptr(), bytes) }
    }
}

#[inline]
fn place<A: HostMemory>(buffer: &PooledBuffer<A>) -> (NonNull<u8>, usize) {
    let bytes = buffer.size();
    let view = buffer.allocator().view(buffer.block(), 0, bytes, &());
    // A host allocator has put these bytes into an address space, so they fit a usize.
    (A::pointer(&view), usize::try_from(bytes).unwrap_or(0))
}
