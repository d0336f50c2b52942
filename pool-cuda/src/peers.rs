//! Several devices: a pool for each behind one handle, and the use of one's memory by another.
#![expect(unsafe_code, reason = "the driver is called through C")]

use crate::array::Vram;
use crate::device::CudaDevice;
use crate::events::CudaStreamOf;
use crate::memory::{CudaMemory, Source};
use cudarc::driver::sys;
use pool_core::{
    AllocError, BucketPool, DeviceAllocator, DeviceError, EventDriver, PoolStats, PooledBuffer,
    StreamClock, Use, Why,
};
use std::fmt;
use std::ops::Deref;

/// A pool for each of several devices. A buffer knows its device
/// ([`PooledBuffer::allocator`]); a stream of another is refused, unless it is asked for by
/// [`PeerUse`].
#[derive(Clone, Debug)]
pub struct CudaPools<S: Source> {
    first: BucketPool<CudaMemory<S>>,
    others: Vec<BucketPool<CudaMemory<S>>>,
}

impl<S: Source> CudaPools<S> {
    /// One handle for these pools, each of another device.
    pub fn new(
        first: BucketPool<CudaMemory<S>>,
        others: impl IntoIterator<Item = BucketPool<CudaMemory<S>>>,
    ) -> Self {
        Self { first, others: others.into_iter().collect() }
    }

    fn all(&self) -> impl Iterator<Item = &BucketPool<CudaMemory<S>>> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// The pool of the device with this ordinal.
    #[must_use]
    pub fn device(&self, ordinal: usize) -> Option<&BucketPool<CudaMemory<S>>> {
        self.all().find(|pool| pool.allocator().device().ordinal() == ordinal)
    }

    /// A buffer on the device of `stream`, for work on it.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::allocate_on`]; [`Why::Foreign`] for a stream of no device that has a
    /// pool here.
    pub fn allocate_on(
        &self,
        stream: &CudaStreamOf,
        bytes: u64,
    ) -> Result<PooledBuffer<CudaMemory<S>>, AllocError> {
        let owner = self.all().find(|pool| pool.allocator().clock().owns(stream));
        // Where none does, the first says so in its own words.
        owner.unwrap_or(&self.first).allocate_on(stream, bytes)
    }

    /// The figures of each pool, with its device's ordinal.
    #[must_use]
    pub fn stats(&self) -> Vec<(usize, PoolStats)> {
        let of =
            |pool: &BucketPool<CudaMemory<S>>| (pool.allocator().device().ordinal(), pool.stats());
        self.all().map(of).collect()
    }
}

impl CudaDevice {
    /// Lets this device's work use memory of `peer` that `cuMemAlloc` has handed out there.
    /// (Virtual memory says who may use it when it is made.)
    ///
    /// # Errors
    ///
    /// [`Why::Unsupported`] if the devices cannot reach each other, or what the driver said.
    pub fn enable_access_to(&self, peer: &Self) -> Result<(), DeviceError> {
        let (mut can, from, to) = (0, self.context().cu_device(), peer.context().cu_device());
        self.driver().call("cuDeviceCanAccessPeer", || {
            // SAFETY: asks about two devices that exist.
            unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, from, to) }.result()
        })?;
        if can == 0 {
            return Err(DeviceError::new(Why::Unsupported, "access from one device to another", 0));
        }
        self.driver().call("cuCtxEnablePeerAccess", || {
            // SAFETY: the peer's context is kept alive by its `Arc`.
            match unsafe { sys::cuCtxEnablePeerAccess(peer.context().cu_ctx(), 0) } {
                sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
                other => other.result(),
            }
        })
    }
}

/// A buffer of one device in use on a stream of another, which was given access to it
/// ([`CudaDevice::enable_access_to`]). Derefs to the view.
///
/// The stream is ordered behind what was done with the buffer, and when this ends the buffer waits
/// for what the stream was given meanwhile: an event each way, since two devices have two clocks.
pub struct PeerUse<'b, A: Vram> {
    /// On a stream of the buffer's own device that stands for the other's.
    used: Use<'b, A>,
    home: &'b CudaStreamOf,
    here: CudaDevice,
    there: (&'b CudaDevice, &'b CudaStreamOf),
}

impl<'b, A: Vram> PeerUse<'b, A> {
    /// `buffer` for work on `stream`, a stream of `device`. `home` is any stream of the buffer's
    /// own device: it is what is ordered, so choose one that has nothing better to do.
    ///
    /// # Errors
    ///
    /// [`Why::Foreign`] if a stream is not of the device that it is said to be of, or what the
    /// driver said.
    pub fn new(
        buffer: &'b PooledBuffer<A>,
        home: &'b CudaStreamOf,
        device: &'b CudaDevice,
        stream: &'b CudaStreamOf,
    ) -> Result<Self, DeviceError> {
        if !device.clock().owns(stream) {
            return Err(DeviceError::new(Why::Foreign, "use on a stream of another device", 0));
        }
        let used = buffer.on(home)?;
        let here = buffer.allocator().cuda_device().clone();
        let before = here.events().record(home.raw())?;
        device.events().wait(stream.raw(), &before)?;
        Ok(Self { used, home, here, there: (device, stream) })
    }
}

impl<'b, A: Vram> Deref for PeerUse<'b, A> {
    type Target = <A as DeviceAllocator>::View<'b>;
    fn deref(&self) -> &Self::Target {
        &self.used
    }
}

impl<A: Vram> Drop for PeerUse<'_, A> {
    fn drop(&mut self) {
        let (device, stream) = self.there;
        let after = device.events().record(stream.raw());
        let behind = after.and_then(|after| self.here.events().wait(self.home.raw(), &after));
        if behind.is_err() {
            // The host waits instead; if that fails too, the device is gone.
            let _ = device.clock().synchronize(device.clock().mark(stream));
        }
        // Now `used` ends, on a stream that is behind the other's.
    }
}

impl<A: Vram> fmt::Debug for PeerUse<'_, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerUse").field("used", &self.used).finish_non_exhaustive()
    }
}
