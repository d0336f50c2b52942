//! Memory that graphs of another library share.

use crate::adopted::TakenIn;
use crate::array::Vram;
use crate::events::PoolStream;
use crate::forks::forked;
use parking_lot::Mutex;
use pool_core::stream::EventDriver;
use pool_core::{BucketPool, DeviceError, PrivatePool, Why};
use std::mem::ManuallyDrop;

/// Memory for graphs of another library that share it: `torch.cuda.graph(.., pool=..)`.
///
/// Any number of captures take memory from it, one after the other: what the work of one has freed serves the next
/// one, at the same addresses. So the graphs must not run beside each other, and are launched in the order of their
/// captures or behind it, as the other library asks of its users. It serves nobody else until it is closed.
///
/// Nobody has to tell of launches: [`GraphPool::close`] waits for all work of the device. Where the program can, one
/// [`AdoptedCapture`](crate::AdoptedCapture) for each graph gives memory back without that wait.
///
/// ```
/// # mod double { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double/stand_in.rs")); }
/// # double::stand_in(); // in the place of the driver
/// # mod bucketpool { pub use pool_core::*; pub mod cuda { pub use pool_cuda::*; } }
/// use bucketpool::{BucketPool, MIB};
/// use bucketpool::cuda::{CudaAllocator, GraphPool};
/// use bucketpool::cuda::cudarc::driver::sys::{CUgraphInstantiate_flags as Flags, CUstreamCaptureMode};
///
/// let pool = BucketPool::new(CudaAllocator::new(0)?);
/// let device = pool.allocator().device().clone();
/// let stream = device.context().new_stream()?;
/// let on = device.stream(&stream)?;
/// let memory = GraphPool::new(&pool);
/// let mut graphs = Vec::new();
/// for _ in 0..2 {
///     memory.begin();
///     stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?; // cudarc's
///     // SAFETY: the captured work uses memory of the capture only, and the graphs go first.
///     assert!(unsafe { memory.take_in(&on) }?);
///     let scratch = pool.allocate_on(&on, MIB)?; // in both captures the same block
///     stream.memset_zeros(&mut &*scratch.on(&on)?)?;
///     drop(scratch);
///     graphs.push(stream.end_capture(Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)?);
///     memory.end()?;
/// }
/// for graph in graphs.iter().flatten() {
///     graph.launch()?; // the pool is not told
/// }
/// drop(graphs);
/// assert_eq!(memory.cached_bytes(), MIB);
/// memory.close().map_err(|(_memory, error)| error)?;
/// assert_eq!((pool.stats().misses, pool.stats().cached_bytes), (1, MIB));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct GraphPool<A: Vram> {
    /// Dropped by hand: it may have to stay for ever.
    private: ManuallyDrop<PrivatePool<A>>,
    /// The capture that goes on.
    taken: Mutex<Option<Box<TakenIn>>>,
    /// Whether no launch uses it any more.
    is_idle: bool,
}

impl<A: Vram> GraphPool<A> {
    /// Makes memory for graphs in a pool, without any block yet.
    ///
    /// See [`GraphPool`] for an example.
    #[must_use]
    pub fn new(pool: &BucketPool<A>) -> Self {
        let (private, taken) =
            (ManuallyDrop::new(PrivatePool::without_launches(pool)), Mutex::new(None));
        Self { private, taken, is_idle: false }
    }

    /// Returns the pool that it is a part of.
    #[must_use]
    pub fn pool(&self) -> &BucketPool<A> {
        self.private.pool()
    }

    /// Says that a capture is about to begin: until [`GraphPool::end`] no pool of the context waits on the host for all
    /// work, which would break it. Without this call the first [`GraphPool::take_in`] says so.
    ///
    /// See [`GraphPool`] for an example.
    pub fn begin(&self) {
        if forked().is_none() {
            let device = self.pool().allocator().cuda_device();
            self.taken.lock().get_or_insert_with(|| Box::new(TakenIn::new(device)));
        }
    }

    /// Takes the requests of a stream into this memory until [`GraphPool::end`], if another library has the stream
    /// under capture. Returns whether they come from it; false, and nothing changes, for a stream under no capture.
    /// Call it before each request while a capture may go on: a stream that was taken in costs a lock and a look.
    ///
    /// What a stream frees serves its own requests in the capture, and those of later captures.
    ///
    /// See [`GraphPool`] for an example.
    ///
    /// # Errors
    ///
    /// [`Why::NotSubmitted`] for a stream whose capture another private pool knows, [`Why::Foreign`] for a stream of
    /// another device or the default stream of another thread; or the driver's refusal.
    ///
    /// # Safety
    ///
    /// As for [`CudaCapture::adopt`](crate::CudaCapture::adopt); and the graphs that share the memory run one after
    /// the other.
    #[expect(
        unsafe_code,
        reason = "captured work keeps addresses, which the compiler does not know"
    )]
    pub unsafe fn take_in(&self, on: &PoolStream) -> Result<bool, DeviceError> {
        forked().map_or(Ok(()), Err)?;
        let device = self.pool().allocator().cuda_device();
        let mut taken = self.taken.lock();
        if taken.as_ref().is_some_and(|taken| taken.has(on)) {
            return Ok(true);
        }
        on.raw().handle()?;
        if !device.events().is_captured(on.raw())? {
            return Ok(false);
        }
        let mut new = None; // counted only if a stream is taken in
        let into = match &mut *taken {
            Some(begun) => begun,
            None => new.insert(Box::new(TakenIn::new(device))),
        };
        into.take_in(&self.private, on)?;
        *taken = taken.take().or(new);
        Ok(true)
    }

    /// Ends a capture, after the other library has ended its own: requests on its streams come from the pool again.
    /// Does nothing if no stream was taken in.
    ///
    /// See [`GraphPool`] for an example.
    ///
    /// # Errors
    ///
    /// [`Why::NotSubmitted`] while the capture goes on, [`Why::Foreign`] on another thread than that of a per-thread
    /// default stream, or the driver's refusal: call it again then.
    pub fn end(&self) -> Result<(), DeviceError> {
        forked().map_or(Ok(()), Err)?;
        let mut taken = self.taken.lock();
        if let Some(taken) = &mut *taken {
            taken.is_over()?;
            taken.leave(&self.private);
        }
        *taken = None;
        Ok(())
    }

    /// Gives the memory to the pool, after all graphs that use it were destroyed. Blocks the host until all work of
    /// the device has passed, since launches may still run on streams that the pool has never seen. Buffers that
    /// are still alive go to the pool when they are dropped.
    ///
    /// The drop of a `GraphPool` does the same. Where the driver refuses the wait, and while a capture goes on, the
    /// memory stays taken, and its pool with it: close it where that may be.
    ///
    /// See [`GraphPool`] for an example.
    ///
    /// # Errors
    ///
    /// The memory, and [`Why::NotSubmitted`] while a capture goes on in the context, or the driver's refusal: call it
    /// again then.
    pub fn close(mut self) -> Result<(), (Self, DeviceError)> {
        match self.wait() {
            Ok(()) => {
                self.is_idle = true;
                Ok(()) // its drop gives the memory back
            }
            Err(error) => Err((self, error)),
        }
    }

    /// Waits until no launch uses the memory.
    fn wait(&self) -> Result<(), DeviceError> {
        forked().map_or(Ok(()), Err)?;
        if self.taken.lock().is_some() {
            return Err(DeviceError::new(
                Why::NotSubmitted,
                "close the memory of a capture that goes on",
            ));
        }
        self.pool().allocator().cuda_device().synchronize()
    }

    /// Returns the bytes that are kept for the graphs and that no buffer has.
    #[must_use]
    pub fn cached_bytes(&self) -> u64 {
        self.private.cached_bytes()
    }
}

impl<A: Vram> Drop for GraphPool<A> {
    #[expect(unsafe_code, reason = "the memory may have to stay")]
    fn drop(&mut self) {
        // In a forked child nothing is done, and a thread that is not there may hold the lock.
        if forked().is_some() {
            return;
        }
        // Beside a capture that goes on, or may begin, there is no wait.
        let mut may_wait = true;
        if let Some(mut taken) = self.taken.get_mut().take() {
            may_wait = taken.is_any() && taken.is_over().is_ok();
            taken.leave(&self.private);
        }
        // A lost device runs no launches. What one may still use serves nobody.
        let is_over = |waited: Result<_, DeviceError>| match waited {
            Ok(()) => true,
            Err(refused) => refused.why == Why::Lost,
        };
        if self.is_idle || (may_wait && is_over(self.wait())) {
            // SAFETY: this is the only drop of it, and nothing uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.private) }
        }
    }
}
