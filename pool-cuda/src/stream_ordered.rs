//! `cuMemAllocFromPoolAsync` and `cuMemFreeAsync`: memory in the order of streams, from a pool of
//! the driver that belongs to this allocator alone.
#![expect(unsafe_code, reason = "the driver is called through C")]

use crate::abi::{Access, DeviceLocation, PoolProperties};
use crate::block::CudaBlock;
use crate::device::CudaDevice;
use crate::driver::has;
use crate::events::PoolStream;
use crate::forks::forked;
use crate::memory::{CudaMemory, Source, Whole};
use crate::sizes::size;
use cudarc::driver::{result, sys};
use parking_lot::Mutex;
use pool_core::port::{Allocating, MarkOf, Memory, Order};
use pool_core::stream::Mark;
use pool_core::{DeviceError, StreamClock, Why};
use std::ptr;

/// Device memory of one GPU from a private `cuMemPool`. The driver hands blocks out and takes them
/// back in the order of streams, so neither call stops the device.
///
/// A block whose last use was on one stream is freed on that stream, so the stream's next request
/// reuses it at once (CUDA Programming Guide, "Reuse Policies"). A block that several streams used
/// is freed on a stream of the allocator, which waits for them on the device.
///
/// Before a request fails for want of memory, the allocator waits for its frees and trims the
/// driver's pool, because the driver counts freed memory as in use until it has seen the free pass.
/// `release_threshold` decides what the driver's pool keeps: a pool's `trim` and `clear` leave it,
/// because the host would have to wait for each free.
/// [`CudaAsyncAllocator::trim_to`] gives it back, and so do a pool's `make_room`, and a request of another
/// pool of its budget that would be refused.
pub type CudaAsyncAllocator = CudaMemory<StreamOrdered>;

/// Memory from a pool of the driver.
pub struct StreamOrdered {
    pool: PoolHandle,
    /// Frees blocks that several streams used.
    freeing: OwnStream,
    /// Allocates for captures. The host waits for it, so nothing else is on it.
    allocating: OwnStream,
    /// The last free on each stream that no trim has waited for.
    freed: Mutex<Vec<Mark>>,
    /// What was allocated for captures, could not be waited for, and was not taken back: addresses and bytes.
    unwanted: Mutex<Vec<(sys::CUdeviceptr, usize)>>,
    device: CudaDevice,
}

struct PoolHandle(sys::CUmemoryPool);
// SAFETY: the driver lets any thread use a pool.
unsafe impl Send for PoolHandle {}
// SAFETY: as above; the driver locks for itself.
unsafe impl Sync for PoolHandle {}

impl CudaAsyncAllocator {
    /// Creates a pool of the driver on `device` that keeps up to `release_threshold` bytes of freed
    /// memory: 0 gives all of it back at each synchronisation, as the driver's own default does;
    /// `u64::MAX` keeps all.
    ///
    /// See [`CudaAsyncAllocator::trim_to`] for an example.
    ///
    /// # Errors
    ///
    /// [`Why::Unsupported`] if the driver or the device has no memory pools, or the driver's
    /// refusal.
    pub fn new(device: CudaDevice, release_threshold: u64) -> Result<Self, DeviceError> {
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
        let supported = device.has_attribute(attribute)?
            && has(&[b"cuMemPoolCreate\0", b"cuMemAllocFromPoolAsync\0", b"cuMemFreeAsync\0"]);
        if !supported {
            return Err(DeviceError::new(Why::Unsupported, "memory pools of the driver"));
        }
        let (freeing, allocating) = (OwnStream::new(&device)?, OwnStream::new(&device)?);
        let properties = PoolProperties::on(DeviceLocation::of(device.ordinal()));
        let mut pool = ptr::null_mut();
        device.driver().relaxed("cuMemPoolCreate", || {
            // SAFETY: the properties have the driver's layout (abi.rs) and live through the call.
            unsafe { sys::cuMemPoolCreate(&raw mut pool, properties.as_ptr()) }.result()
        })?;
        let (pool, freed, unwanted) = (PoolHandle(pool), Mutex::default(), Mutex::default());
        let device_of = device.clone();
        let source =
            StreamOrdered { pool, freeing, allocating, freed, unwanted, device: device_of };
        let pool = source.pool.0;
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        let mut value = release_threshold;
        device.driver().relaxed("cuMemPoolSetAttribute", || {
            // SAFETY: the attribute is a 64-bit number, which the driver reads.
            unsafe { sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut value).cast()) }.result()
        })?;
        Ok(Self::from(device, source))
    }

    /// Returns the driver's pool, for calls that are not here. It lives as long as the allocator.
    #[must_use]
    pub fn as_raw(&self) -> sys::CUmemoryPool {
        self.source().pool.0
    }

    /// Lets another device's work use this pool's memory, blocks that are handed out already
    /// included (`cuMemPoolSetAccess`). Access between contexts
    /// ([`CudaDevice::enable_access_to`]) does not reach the driver's pools.
    ///
    /// # Errors
    ///
    /// [`Why::Unsupported`] if the device cannot reach this one, or the driver's refusal.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod double { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double/stand_in.rs")); }
    /// # double::stand_in(); // in the place of the driver
    /// # mod bucketpool { pub use pool_core::*; pub mod cuda { pub use pool_cuda::*; } }
    /// use bucketpool::Why;
    /// use bucketpool::cuda::{CudaAsyncAllocator, CudaDevice};
    ///
    /// let (first, second) = (CudaDevice::new(0)?, CudaDevice::new(1)?);
    /// let memory = CudaAsyncAllocator::new(first.clone(), 0)?;
    /// memory.let_use(&second)?; // work of `second` can use the memory
    /// assert_eq!(memory.let_use(&first).unwrap_err().why, Why::Unsupported);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn let_use(&self, peer: &CudaDevice) -> Result<(), DeviceError> {
        peer.can_reach(self.device())?;
        let access = Access::of(DeviceLocation::of(peer.ordinal()));
        let pool = self.source().pool.0;
        self.device().driver().relaxed("cuMemPoolSetAccess", || {
            // SAFETY: one description in the driver's layout (abi.rs), which lives through the
            // call; the pool lives as long as this allocator.
            unsafe { sys::cuMemPoolSetAccess(pool, access.as_ptr(), 1) }.result()
        })
    }

    /// Returns the bytes that the driver's pool has taken from the device, in use or kept.
    ///
    /// See [`CudaAsyncAllocator::trim_to`] for an example.
    ///
    /// # Errors
    ///
    /// The driver's refusal.
    pub fn reserved_bytes(&self) -> Result<u64, DeviceError> {
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
        let (pool, mut value) = (self.source().pool.0, 0_u64);
        self.device().driver().relaxed("cuMemPoolGetAttribute", || {
            // SAFETY: the attribute is a 64-bit number, which the driver writes.
            unsafe { sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast()) }.result()
        })?;
        Ok(value)
    }

    /// Returns the number of streams with frees that the allocator has not seen pass; for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn unseen_frees(&self) -> usize {
        if forked().is_some() { 0 } else { self.source().freed.lock().len() }
    }

    /// Waits on the host for this allocator's frees, and gives back what the driver's pool keeps,
    /// but for `keep` bytes. Frees on a stream under capture are not waited for.
    ///
    /// # Errors
    ///
    /// The driver's refusal.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod double { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double/stand_in.rs")); }
    /// # double::stand_in(); // in the place of the driver
    /// # mod bucketpool { pub use pool_core::*; pub mod cuda { pub use pool_cuda::*; } }
    /// use bucketpool::{BucketPool, MIB};
    /// use bucketpool::cuda::{CudaAsyncAllocator, CudaDevice};
    ///
    /// let memory = CudaAsyncAllocator::new(CudaDevice::new(0)?, u64::MAX)?; // keeps all
    /// let pool = BucketPool::new(memory);
    /// drop(pool.allocate(MIB)?);
    /// pool.clear()?; // gives the block back to the driver's pool, which keeps its memory
    /// assert_eq!(pool.stats().reserved_bytes, 0);
    /// assert!(pool.allocator().reserved_bytes()? >= MIB);
    /// pool.allocator().trim_to(0)?;
    /// assert_eq!(pool.allocator().reserved_bytes()?, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn trim_to(&self, keep: u64) -> Result<(), DeviceError> {
        self.source().trim(size(keep)?)
    }
}

impl StreamOrdered {
    fn allocate(&self, bytes: usize, on: &PoolStream) -> Result<sys::CUdeviceptr, DeviceError> {
        // In a capture the call would become a node of the graph, and the memory the graph's own.
        // A capture of another library is not the clock's, so the driver is asked too.
        let captured = self.device.clock().is_capturing(on)
            || (on.raw().is_reachable() && self.device.events().is_in_capture(on.raw())?);
        let (mut at, on) = (0, if captured { &self.allocating.stream } else { on });
        let stream = on.raw().handle()?;
        self.device.driver().relaxed("cuMemAllocFromPoolAsync", || {
            // SAFETY: the pool lives as long as `self`, the stream as long as it is borrowed.
            unsafe { sys::cuMemAllocFromPoolAsync(&raw mut at, bytes, self.pool.0, stream) }
                .result()
        })?;
        if captured {
            // The graph can run at any time from now on, so the allocation must have happened.
            // SAFETY: the stream lives as long as it is borrowed.
            let wait = || unsafe { result::stream::synchronize(stream) };
            self.device.driver().relaxed("cuStreamSynchronize", wait).inspect_err(|_| {
                self.unwanted.lock().push((at, bytes));
                self.free_unwanted();
            })?;
        }
        Ok(at)
    }

    /// Offers the driver again what it has not taken back.
    fn free_unwanted(&self) {
        let mut unwanted = self.unwanted.lock();
        let Ok(stream) = self.allocating.stream.raw().handle() else { return };
        unwanted.retain(|(at, _)| {
            // SAFETY: allocated on this stream, not handed out, and in the list until it is freed.
            let free = || unsafe { result::free_async(*at, stream) };
            self.device.driver().relaxed("cuMemFreeAsync", free).is_err()
        });
    }

    /// Lets the driver see that all frees have passed, and gives back what it keeps beyond `keep`
    /// bytes. Frees on a stream under capture are not waited for.
    fn trim(&self, keep: usize) -> Result<(), DeviceError> {
        forked().map_or(Ok(()), Err)?;
        self.free_unwanted();
        let clock = self.device.clock();
        // The lock is not held during the waits, and each mark stays until it was waited for, so
        // that another thread's trim waits for it too.
        let freed = self.freed.lock().clone();
        let mut refusal = Ok(());
        for mark in freed {
            match clock.synchronize(mark) {
                Ok(()) => self.freed.lock().retain(|known| {
                    !clock.same_stream(*known, mark) || !clock.is_later(mark, *known)
                }),
                Err(error) if error.why == Why::NotSubmitted => {}
                Err(error) => refusal = refusal.and(Err(error)),
            }
        }
        refusal?;
        self.device.driver().relaxed("cuMemPoolTrimTo", || {
            // SAFETY: the pool lives as long as `self`.
            unsafe { sys::cuMemPoolTrimTo(self.pool.0, keep) }.result()
        })
    }

    fn free_on(&self, block: &CudaBlock, on: &PoolStream) -> Result<(), DeviceError> {
        let stream = on.raw().handle()?;
        self.device.driver().relaxed("cuMemFreeAsync", || {
            // SAFETY: a block is made in `allocate` only and moved into `free`, so it is freed
            // once; the stream is behind the work that used the block, as the callers guarantee.
            unsafe { result::free_async(block.at, stream) }
        })?;
        self.note_free(self.device.clock().mark(on));
        Ok(())
    }

    /// Remembers the last free on each stream.
    fn note_free(&self, mark: Mark) {
        let clock = self.device.clock();
        let mut freed = self.freed.lock();
        if let Some(known) = freed.iter_mut().find(|known| clock.same_stream(**known, mark)) {
            *known = clock.later(*known, mark);
            return;
        }
        // Streams come and go; what has passed is not waited for.
        freed.retain(|known| !clock.is_seen_done(*known));
        freed.push(mark);
    }
}

impl Source for StreamOrdered {
    fn give_all_back(&self) -> Result<(), DeviceError> {
        self.trim(0)
    }

    fn release_kept(&self) -> Result<(), DeviceError> {
        self.free_unwanted();
        Ok(())
    }

    fn kept_bytes(&self) -> u64 {
        self.unwanted.lock().iter().map(|(_, bytes)| *bytes as u64).sum()
    }

    const MEMORY: Memory = Memory { allocating: Allocating::InOrder, ..Memory::DEVICE };

    fn take(
        &self,
        _device: &CudaDevice,
        bytes: usize,
        on: &PoolStream,
    ) -> Result<sys::CUdeviceptr, DeviceError> {
        match self.allocate(bytes, on) {
            Err(full) if full.why == Why::OutOfMemory && self.trim(0).is_ok() => {
                self.allocate(bytes, on)
            }
            other => other,
        }
    }

    /// Waits for nothing on the host: the free follows `after` on the device.
    fn give(
        &self,
        device: &CudaDevice,
        block: &CudaBlock,
        after: &[MarkOf<CudaAsyncAllocator>],
    ) -> Result<(), DeviceError> {
        let clock = device.clock();
        if let [mark] = after {
            let own = |stream: &PoolStream| {
                let free = stream.raw().is_reachable()
                    && !device.events().is_gone(stream.raw())
                    && device.events().is_in_capture(stream.raw()) == Ok(false);
                free.then(|| self.free_on(block, stream))
            };
            match clock.on_stream_of(*mark, own).flatten() {
                Some(Err(error)) if error.why == Why::Lost => return Err(error),
                // If another library began a capture after the question, the driver has refused
                // the free, and the block goes the other way.
                Some(Err(_)) | None => {}
                Some(Ok(())) => return Ok(()),
            }
        }
        let freeing = &self.freeing.stream;
        if clock.order(freeing, after)? == Order::NotYet {
            return Err(DeviceError::new(Why::NotSubmitted, "cuMemFreeAsync"));
        }
        self.free_on(block, freeing)
    }
}

impl Whole for StreamOrdered {}

impl Drop for StreamOrdered {
    fn drop(&mut self) {
        let pool = self.pool.0;
        // The driver finishes frees that are queued. If the device is lost, or the process is a
        // fork, nothing is left to do.
        let _ = self.device.driver().relaxed("cuMemPoolDestroy", || {
            // SAFETY: made in `new` and destroyed once.
            unsafe { sys::cuMemPoolDestroy(pool) }.result()
        });
    }
}

impl std::fmt::Debug for StreamOrdered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamOrdered").field("device", &self.device).finish_non_exhaustive()
    }
}

/// A stream that the allocator has created for itself.
///
/// cudarc's own `new_stream` would switch the user's context to its multi-stream mode, in which
/// each use of a `CudaSlice` records events.
struct OwnStream {
    device: CudaDevice,
    stream: PoolStream,
}

impl OwnStream {
    fn new(device: &CudaDevice) -> Result<Self, DeviceError> {
        let handle = device.driver().call("cuStreamCreate", || {
            result::stream::create(result::stream::StreamKind::NonBlocking)
        })?;
        // SAFETY: the stream was just created in this context; it is destroyed after its
        // retirement.
        let wrapped = unsafe { device.wrap_stream(handle) };
        let stream = wrapped.inspect_err(|_| destroy(device, handle))?.keep();
        Ok(Self { device: device.clone(), stream })
    }
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        // In a forked child a thread that is not there may hold a lock. A stream that could not be
        // retired stays, with its queued work.
        if forked().is_some() {
            return;
        }
        if self.device.retire(&self.stream).is_ok() {
            destroy(&self.device, self.stream.raw().cu_stream());
        }
    }
}

fn destroy(device: &CudaDevice, stream: sys::CUstream) {
    // SAFETY: created by `OwnStream::new`, retired or never registered, and destroyed once.
    let destroy = || unsafe { result::stream::destroy(stream) };
    let _ = device.driver().call("cuStreamDestroy", destroy);
}
