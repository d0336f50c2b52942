//! A buffer of host memory as a slice of its bytes.
#![expect(unsafe_code, reason = "a slice over memory that an allocator vouches for")]

use crate::buffer::pooled::PooledBuffer;
use crate::port::HostMemory;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

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

/// For code that asks for `AsRef<[u8]>`, such as `bytes::Bytes::from_owner`, by which tokio, hyper and
/// tonic pass memory on without a copy. The buffer goes back to its pool with the last clone. An
/// example is at `HostAllocator`.
impl<A: HostMemory> AsRef<[u8]> for PooledBuffer<A> {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self
    }
}

#[inline]
fn bytes<A: HostMemory>(buffer: &PooledBuffer<A>) -> NonNull<[u8]> {
    A::bytes(&buffer.view(&()))
}
