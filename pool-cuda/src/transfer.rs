//! Bytes into device memory and page-locked memory and out of them, by the port's copies.
#![expect(unsafe_code, reason = "the driver is called through C")]

use crate::block::CudaView;
use crate::device::CudaDevice;
use crate::events::PoolStream;
use crate::memory::{CudaMemory, Source};
use crate::outlast::outlast;
use crate::pinned::{CudaPinnedAllocator, PinnedBytes, PinnedRange};
use crate::sizes::size;
use cudarc::driver::result;
use pool_core::port::{Arrival, TransferLater};
use pool_core::stream::Mark;
use pool_core::{
    BucketPool, DeviceAllocator, DeviceError, PooledBuffer, StreamClock, Transfer, Why,
};
use std::fmt;
use std::slice;

/// Bytes of page-locked memory that one copy takes at most. A larger copy goes in several.
const CHUNK: usize = 8 << 20;

/// Bytes on their way to the program, in page-locked memory: what [`TransferLater::read_later`]
/// gives.
pub struct CudaArrival {
    chunks: Vec<PooledBuffer<CudaPinnedAllocator>>,
    /// Behind the last copy.
    mark: Mark,
    device: CudaDevice,
}

impl<S: Source> CudaMemory<S> {
    /// Refuses a stream under capture, also under another library's, where a copy of the host's
    /// bytes would run when they are gone; and the legacy stream beside a capture that the copy
    /// would break.
    fn takes_copies(&self, on: &PoolStream) -> Result<(), DeviceError> {
        on.raw().handle()?; // this thread gives it work
        if self.clock().takes_work(on) && !self.device().events().is_in_capture(on.raw())? {
            return Ok(());
        }
        Err(DeviceError::new(Why::NotSubmitted, "copy bytes of the host in or beside a capture"))
    }

    /// Gives a copy into device memory to a stream.
    ///
    /// # Safety
    ///
    /// The bytes lie inside of the view. `from` stays as it is until the copy is done.
    unsafe fn copy_in(
        &self,
        to: &CudaView<'_>,
        offset: u64,
        from: &[u8],
        on: &PoolStream,
    ) -> Result<(), DeviceError> {
        let stream = on.raw().handle()?;
        self.device().driver().call("cuMemcpyHtoDAsync", || {
            // SAFETY: as the caller promises.
            unsafe { result::memcpy_htod_async(to.as_ptr() + offset, from, stream) }
        })
    }

    /// Gives a copy out of device memory to a stream.
    ///
    /// # Safety
    ///
    /// The bytes lie inside of the view. No other code uses `to` until the copy is done.
    unsafe fn copy_out(
        &self,
        from: &CudaView<'_>,
        offset: u64,
        to: &mut [u8],
        on: &PoolStream,
    ) -> Result<(), DeviceError> {
        let stream = on.raw().handle()?;
        self.device().driver().call("cuMemcpyDtoHAsync", || {
            // SAFETY: as the caller promises.
            unsafe { result::memcpy_dtoh_async(to, from.as_ptr() + offset, stream) }
        })
    }
}

/// Returns page-locked memory for a copy on a stream.
fn stage(
    staging: &BucketPool<CudaPinnedAllocator>,
    bytes: usize,
    on: &PoolStream,
) -> Result<PooledBuffer<CudaPinnedAllocator>, DeviceError> {
    staging.allocate_on(on, bytes as u64).map_err(|error| error.figures().cause)
}

impl<S: Source> Transfer for CudaMemory<S> {
    /// Blocks the host until the copy is done: the driver may read page-locked bytes later.
    unsafe fn write(
        &self,
        to: &CudaView<'_>,
        offset: u64,
        from: &[u8],
        on: &PoolStream,
    ) -> Result<(), DeviceError> {
        self.takes_copies(on)?;
        // SAFETY: inside of the view, as the caller promises; the wait below outlasts the copy.
        let given = unsafe { self.copy_in(to, offset, from, on) };
        let waited = outlast(self.device(), on);
        given.and(waited)
    }

    unsafe fn read(
        &self,
        from: &CudaView<'_>,
        offset: u64,
        to: &mut [u8],
        on: &PoolStream,
    ) -> Result<(), DeviceError> {
        self.takes_copies(on)?;
        // SAFETY: as above.
        let given = unsafe { self.copy_out(from, offset, to, on) };
        let waited = outlast(self.device(), on);
        given.and(waited)
    }
}

impl<S: Source> TransferLater for CudaMemory<S> {
    type Arrival = CudaArrival;

    /// Copies the bytes into page-locked memory, in chunks of 8 MiB, and from there by the device.
    /// Blocks the host only while 256 MiB of this allocator are on their way: for the oldest of them.
    ///
    /// # Errors
    ///
    /// The driver's refusal. The chunks before the refused one are written.
    unsafe fn write_later(
        &self,
        to: &CudaView<'_>,
        offset: u64,
        from: &[u8],
        on: &PoolStream,
    ) -> Result<(), DeviceError> {
        self.takes_copies(on)?;
        for (at, chunk) in (offset..).step_by(CHUNK).zip(from.chunks(CHUNK)) {
            let beginning = self.begin_write(chunk.len() as u64)?;
            let mut staged = stage(self.for_writes(), chunk.len(), on)?;
            staged.bytes_mut()?.copy_from_slice(chunk);
            let used = staged.read_on(on)?;
            // SAFETY: the buffer is borrowed by its use, and the CPU writes it no more.
            let bytes = unsafe { slice::from_raw_parts(used.as_ptr().as_ptr(), used.len()) };
            // SAFETY: inside of the view, as the caller promises. The staged buffer serves again
            // once the copy is done, since it is used on the copy's stream.
            unsafe { self.copy_in(to, at, bytes, on) }?;
            let mark = self.clock().mark(on);
            drop(used);
            drop(staged); // it serves the next chunk once this one counts no more
            beginning.given(mark);
        }
        Ok(())
    }

    unsafe fn read_later(
        &self,
        from: &CudaView<'_>,
        offset: u64,
        bytes: u64,
        on: &PoolStream,
    ) -> Result<CudaArrival, DeviceError> {
        self.takes_copies(on)?;
        let (mut chunks, mut left) = (Vec::new(), size(bytes)?);
        for at in (offset..).step_by(CHUNK) {
            if left == 0 {
                break;
            }
            let staged = stage(self.for_reads(), left.min(CHUNK), on)?;
            {
                let used = staged.on(on)?;
                // SAFETY: the buffer was just allocated, and no other code has it.
                let to = unsafe { slice::from_raw_parts_mut(used.as_ptr().as_ptr(), used.len()) };
                // SAFETY: as above; the CPU reads the staged buffer after the copy (`PinnedBytes`).
                unsafe { self.copy_out(from, at, to, on)? };
                left -= used.len();
            }
            chunks.push(staged);
        }
        let mark = self.clock().mark(on);
        if on.raw().is_of_thread() {
            // Another thread can ask after the bytes, and cannot record this event.
            self.clock().is_done(mark)?;
        }
        Ok(CudaArrival { chunks, mark, device: self.device().clone() })
    }
}

impl Transfer for CudaPinnedAllocator {
    /// Blocks the host until the work that `on` was given is done: the CPU copies the bytes.
    unsafe fn write(
        &self,
        to: &PinnedRange<'_>,
        offset: u64,
        from: &[u8],
        on: &PoolStream,
    ) -> Result<(), DeviceError> {
        self.clock().synchronize(self.clock().mark(on))?;
        // SAFETY: inside of the view, as the caller promises.
        let at = unsafe { to.as_ptr().add(size(offset)?) };
        // SAFETY: as above, and without other users; streams are done with the bytes, as just
        // waited for.
        unsafe { at.as_ptr().copy_from_nonoverlapping(from.as_ptr(), from.len()) };
        Ok(())
    }

    unsafe fn read(
        &self,
        from: &PinnedRange<'_>,
        offset: u64,
        to: &mut [u8],
        on: &PoolStream,
    ) -> Result<(), DeviceError> {
        self.clock().synchronize(self.clock().mark(on))?;
        // SAFETY: as above.
        let at = unsafe { from.as_ptr().add(size(offset)?) };
        // SAFETY: as above; all bytes are initialised (`PinnedBytes`).
        unsafe { at.as_ptr().copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
        Ok(())
    }
}

impl Arrival for CudaArrival {
    fn is_here(&self) -> Result<bool, DeviceError> {
        self.device.clock().is_done(self.mark)
    }

    fn wait(mut self) -> Result<Vec<u8>, DeviceError> {
        let bytes = self.chunks.iter().map(PooledBuffer::size).sum();
        let mut all = Vec::with_capacity(size(bytes)?);
        for chunk in &mut self.chunks {
            all.extend_from_slice(chunk.bytes()?);
        }
        Ok(all)
    }
}

impl fmt::Debug for CudaArrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaArrival").field("chunks", &self.chunks).finish_non_exhaustive()
    }
}
