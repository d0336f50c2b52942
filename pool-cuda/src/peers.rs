//! Several devices: one handle for their pools, and use of one device's memory by another.
#![expect(unsafe_code, reason = "the driver is called through C")]

use crate::array::{OfCuda, Vram};
use crate::device::CudaDevice;
use crate::driver::refusal;
use crate::events::{CudaEvent, PoolStream};
use crate::memory::{CudaMemory, Source};
use crate::outlast::outlast;
use crate::sizes::size;
use cudarc::driver::{CudaContext, result, sys};
use pool_core::stream::EventDriver;
use pool_core::{
    AllocError, BucketPool, DeviceAllocator, DeviceError, PoolStats, PooledBuffer, StreamClock, Why,
};

/// A pool for each of several devices. A buffer knows its device ([`PooledBuffer::allocator`]). A
/// stream of another device is refused, except in [`use_on_peer`].
///
/// ```
/// # mod double { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double/stand_in.rs")); }
/// # double::stand_in(); // in the place of the driver
/// # mod bucketpool { pub use pool_core::*; pub mod cuda { pub use pool_cuda::*; } }
/// use bucketpool::{BucketPool, MIB};
/// use bucketpool::cuda::{CudaAllocator, CudaPools};
///
/// let on_device = |ordinal| CudaAllocator::new(ordinal).map(BucketPool::new);
/// let pools = CudaPools::new(on_device(0)?, [on_device(1)?]);
/// let second = pools.device(1).ok_or("two devices")?.allocator().device().clone();
/// let on = second.stream(&second.context().new_stream()?)?;
/// let buffer = pools.allocate_on(&on, MIB)?;
/// assert_eq!(buffer.allocator().device().ordinal(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct CudaPools<S: Source> {
    first: BucketPool<CudaMemory<S>>,
    others: Vec<BucketPool<CudaMemory<S>>>,
}

impl<S: Source> CudaPools<S> {
    /// Creates one handle for pools of different devices.
    pub fn new(
        first: BucketPool<CudaMemory<S>>,
        others: impl IntoIterator<Item = BucketPool<CudaMemory<S>>>,
    ) -> Self {
        Self { first, others: others.into_iter().collect() }
    }

    /// Opens every device of the machine, and makes a pool on each.
    ///
    /// # Errors
    ///
    /// As for [`CudaDevice::new`], or what `pool_on` returns.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod double { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double/stand_in.rs")); }
    /// # double::stand_in(); // in the place of the driver
    /// # mod bucketpool { pub use pool_core::*; pub mod cuda { pub use pool_cuda::*; } }
    /// use bucketpool::BucketPool;
    /// use bucketpool::cuda::{CudaAllocator, CudaPools};
    ///
    /// let pools = CudaPools::on_all(|device| Ok(BucketPool::new(CudaAllocator::on(device))))?;
    /// assert_eq!(pools.stats().len(), 2); // here are two devices
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_all(
        mut pool_on: impl FnMut(CudaDevice) -> Result<BucketPool<CudaMemory<S>>, DeviceError>,
    ) -> Result<Self, DeviceError> {
        let mut open = |ordinal| CudaDevice::new(ordinal).and_then(&mut pool_on);
        let first = open(0)?;
        let count = CudaContext::device_count().map_err(|e| refusal("cuDeviceGetCount", e))?;
        let others = (1..usize::try_from(count).unwrap_or(1)).map(open);
        Ok(Self { first, others: others.collect::<Result<_, _>>()? })
    }

    fn all(&self) -> impl Iterator<Item = &BucketPool<CudaMemory<S>>> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Returns the pool of the device with this ordinal.
    #[must_use]
    pub fn device(&self, ordinal: usize) -> Option<&BucketPool<CudaMemory<S>>> {
        self.all().find(|pool| pool.allocator().device().ordinal() == ordinal)
    }

    /// Allocates a buffer on the device of `stream`, for work on that stream.
    ///
    /// See [`CudaPools`] for an example.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::allocate_on`]; [`Why::Foreign`] for a stream of no device that has a
    /// pool here.
    pub fn allocate_on(
        &self,
        stream: &PoolStream,
        bytes: u64,
    ) -> Result<PooledBuffer<CudaMemory<S>>, AllocError> {
        let owner = self.all().find(|pool| pool.allocator().clock().owns(stream));
        // If no pool does, the first one returns the error.
        owner.unwrap_or(&self.first).allocate_on(stream, bytes)
    }

    /// Returns the statistics of each pool, with its device's ordinal.
    #[must_use]
    pub fn stats(&self) -> Vec<(usize, PoolStats)> {
        let of =
            |pool: &BucketPool<CudaMemory<S>>| (pool.allocator().device().ordinal(), pool.stats());
        self.all().map(of).collect()
    }
}

impl CudaDevice {
    /// Returns an error unless this device can reach memory of `peer`.
    pub(crate) fn can_reach(&self, peer: &Self) -> Result<(), DeviceError> {
        let (mut can, from, to) = (0, self.context().cu_device(), peer.context().cu_device());
        self.driver().call("cuDeviceCanAccessPeer", || {
            // SAFETY: both devices exist; the result is a live local variable.
            unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, from, to) }.result()
        })?;
        if can == 0 {
            return Err(DeviceError::new(Why::Unsupported, "access from one device to another"));
        }
        Ok(())
    }

    /// Lets this device's work use memory of `peer` that `cuMemAlloc` has handed out there. Virtual
    /// memory has its own list ([`VmmConfig::peers`](crate::VmmConfig)), and a pool of the driver
    /// has [`CudaAsyncAllocator::let_use`](crate::CudaAsyncAllocator::let_use).
    ///
    /// # Errors
    ///
    /// [`Why::Unsupported`] if the devices cannot reach each other, or the driver's refusal.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod double { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double/stand_in.rs")); }
    /// # double::stand_in(); // in the place of the driver
    /// # mod bucketpool { pub use pool_core::*; pub mod cuda { pub use pool_cuda::*; } }
    /// use bucketpool::Why;
    /// use bucketpool::cuda::CudaDevice;
    ///
    /// let (first, second) = (CudaDevice::new(0)?, CudaDevice::new(1)?);
    /// second.enable_access_to(&first)?; // work of `second` can use memory of `first`
    /// let itself = first.enable_access_to(&first).unwrap_err();
    /// assert_eq!(itself.why, Why::Unsupported);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn enable_access_to(&self, peer: &Self) -> Result<(), DeviceError> {
        self.can_reach(peer)?;
        self.driver().call_naming_peer("cuCtxEnablePeerAccess", || {
            // SAFETY: its `Arc` keeps the peer's context alive.
            match unsafe { sys::cuCtxEnablePeerAccess(peer.context().cu_ctx(), 0) } {
                sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
                other => other.result(),
            }
        })
    }
}

/// Runs `work`, which submits work to a stream of another device that has access to the buffer's
/// device ([`CudaDevice::enable_access_to`],
/// [`CudaAsyncAllocator::let_use`](crate::CudaAsyncAllocator::let_use)).
///
/// The stream is ordered behind the buffer's earlier uses, and `own` behind the stream's work: an
/// event each way, since two devices have two clocks. `own` is any stream of the buffer's own
/// device; choose one that has little to do. cudarc's own copies and fills of memory of another
/// device block the host.
///
/// # Errors
///
/// [`Why::Foreign`] if `stream` is not one of `device`, or the default stream of another thread, [`Why::NotSubmitted`] if a stream is under
/// capture, or the driver's refusal; `work` was not called then.
///
/// # Examples
///
/// ```
/// # mod double { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double/stand_in.rs")); }
/// # double::stand_in(); // in the place of the driver
/// # mod bucketpool { pub use pool_core::*; pub mod cuda { pub use pool_cuda::*; } }
/// use bucketpool::{BucketPool, KIB, Why};
/// use bucketpool::cuda::{CudaAllocator, CudaDevice, use_on_peer};
///
/// # let (first, second) = (CudaDevice::new(0)?, CudaDevice::new(1)?);
/// # let (own, stream) = (first.context().new_stream()?, second.context().new_stream()?);
/// # let (own, there) = (first.stream(&own)?, second.stream(&stream)?);
/// second.enable_access_to(&first)?;
/// let pool = BucketPool::new(CudaAllocator::on(first));
/// let buffer = pool.allocate_on(&own, KIB)?;
/// use_on_peer(&buffer, &own, (&second, &there), |view| {
///     stream.memset_zeros(&mut &*view) // blocks the host; a kernel with `view.as_ptr()` does not
/// })??;
/// let wrong = use_on_peer(&buffer, &own, (&second, &own), |_| ()).unwrap_err();
/// assert_eq!(wrong.why, Why::Foreign); // `own` is no stream of `second`
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn use_on_peer<A: OfCuda, R>(
    buffer: &PooledBuffer<A>,
    own: &PoolStream,
    (device, stream): (&CudaDevice, &PoolStream),
    work: impl FnOnce(&A::View<'_>) -> R,
) -> Result<R, DeviceError> {
    let here = buffer.allocator().cuda_device();
    check_peers((here, own), (device, stream))?;
    let used = buffer.on(own)?;
    let _behind = Behind::new((here, own), (device, stream))?;
    Ok(work(&used))
    // `_behind` goes first, and then `used` ends, on a stream that is behind the other's.
}

/// Copies all of a buffer into a buffer of another device, by the devices: over their link where they
/// can reach each other, and through the host's memory where they cannot. The host does not wait.
///
/// The copy runs on `to_stream`, behind the earlier uses of both buffers; `from_stream` is ordered
/// behind it, so that the source serves again after it.
///
/// # Errors
///
/// [`Why::OutOfRange`] if the target is smaller than the source, [`Why::Foreign`] if a stream is not
/// one of its buffer's device, [`Why::NotSubmitted`] if a stream is under capture, or the driver's
/// refusal; nothing was copied then.
///
/// # Examples
///
/// ```
/// # mod double { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double/stand_in.rs")); }
/// # double::stand_in(); // in the place of the driver
/// # mod bucketpool { pub use pool_core::*; pub mod cuda { pub use pool_cuda::*; } }
/// use bucketpool::{BucketPool, KIB};
/// use bucketpool::cuda::{CudaAllocator, CudaPools, copy_to_peer};
///
/// let pools = CudaPools::on_all(|device| Ok(BucketPool::new(CudaAllocator::on(device))))?;
/// let on = |ordinal: usize| {
///     let device = pools.device(ordinal).ok_or("a device")?.allocator().device().clone();
///     let stream = device.context().new_stream()?;
///     Ok::<_, Box<dyn std::error::Error>>(device.stream(&stream)?)
/// };
/// let (first, second) = (on(0)?, on(1)?);
/// let mut source = pools.allocate_on(&first, KIB)?;
/// let mut target = pools.allocate_on(&second, KIB)?;
/// source.write_at_on(&first, 0, &[7; 1024])?;
/// copy_to_peer((&source, &first), (&mut target, &second))?;
/// let mut bytes = [0; 1024];
/// target.read_at_on(&second, 0, &mut bytes)?;
/// assert_eq!(bytes, [7; 1024]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn copy_to_peer<A: Vram, B: Vram>(
    (from, from_stream): (&PooledBuffer<A>, &PoolStream),
    (to, to_stream): (&mut PooledBuffer<B>, &PoolStream),
) -> Result<(), DeviceError> {
    let (here, there) = (from.allocator().cuda_device(), to.allocator().cuda_device());
    if to.size() < from.size() {
        return Err(DeviceError::new(Why::OutOfRange, "copy a buffer into a smaller one"));
    }
    check_peers((here, from_stream), (there, to_stream))?;
    let (source, target) = (from.read_on(from_stream)?, to.on(to_stream)?);
    let _behind = Behind::new((here, from_stream), (there, to_stream))?;
    let (bytes, stream) = (size(from.size())?, to_stream.raw().handle()?);
    let contexts = (there.context().cu_ctx(), here.context().cu_ctx());
    there.driver().call_naming_peer("cuMemcpyPeerAsync", || {
        let (to, from) = (target.as_ptr(), source.as_ptr());
        // SAFETY: both ranges lie inside of buffers that are in use until after the copy: the target
        // on its stream, and the source on a stream that is ordered behind it.
        unsafe { result::memcpy_peer_async(contexts.0, to, contexts.1, from, bytes, stream) }
    })
}

/// A device, and one of its streams.
type OnDevice<'a> = (&'a CudaDevice, &'a PoolStream);

fn check_peers(
    (here, own): OnDevice<'_>,
    (device, stream): OnDevice<'_>,
) -> Result<(), DeviceError> {
    if !device.clock().owns(stream) {
        return Err(DeviceError::new(Why::Foreign, "use on a stream of another device"));
    }
    stream.raw().handle()?; // this thread gives it work
    if here.clock().is_capturing(own) || device.clock().is_capturing(stream) {
        return Err(DeviceError::new(Why::NotSubmitted, "use on a peer in a capture"));
    }
    Ok(())
}

/// Its drop orders `own` behind the work of `stream`, also if the work has panicked.
struct Behind<'a> {
    here: &'a CudaDevice,
    own: &'a PoolStream,
    device: &'a CudaDevice,
    stream: &'a PoolStream,
    /// Made before the work is given, since a full device has no memory for it afterwards.
    after: Option<CudaEvent>,
}

impl<'a> Behind<'a> {
    /// Orders `stream` behind what `own` was given so far.
    fn new((here, own): OnDevice<'a>, (device, stream): OnDevice<'a>) -> Result<Self, DeviceError> {
        let after = Some(device.events().event()?);
        let before = here.events().record(own.raw())?;
        device.events().wait(stream.raw(), &before)?;
        Ok(Self { here, own, device, stream, after })
    }
}

impl Drop for Behind<'_> {
    fn drop(&mut self) {
        let (events, stream) = (self.device.events(), self.stream.raw());
        let after = self.after.take().map(|after| events.record_as(after, stream));
        let wait = |after| self.here.events().wait(self.own.raw(), &after);
        if after.is_none_or(|after| after.and_then(wait).is_err()) {
            // The host waits instead, until the work is done. A lost device does none.
            let _ = outlast(self.device, self.stream);
        }
    }
}
