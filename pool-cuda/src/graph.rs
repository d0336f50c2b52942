//! Captures and graphs, with the memory that they allocate.
#![expect(unsafe_code, reason = "the driver is called through C")]

use crate::array::Vram;
use crate::capturing::Counted;
use crate::device::CudaDevice;
use crate::events::PoolStream;
use crate::forks::forked;
use cudarc::driver::{result, sys};
use pool_core::stream::EventDriver;
use pool_core::{BucketPool, DeviceError, PooledBuffer, PrivatePool, StreamClock, Why};
use std::fmt;
use std::marker::PhantomData;

/// A capture that is going on. Allocations for its streams come from a [`PrivatePool`]; freed
/// memory is reused in the capture where its edges order the reuse. The pool makes no call on a
/// capturing stream but those of [`CudaCapture::fork`] and [`CudaCapture::join`].
///
/// Buffers from outside that captured work uses must live as long as the graph. A launch waits for
/// their uses before the capture. Uses between launches, of them and of buffers of the capture that
/// are still held, are ordered for the buffers that the launch names. Page-locked buffers are
/// refused in a capture, since the CPU could not know when a launch touches them; so are the memory
/// of every other pool on the capture's streams, and launches of graphs there.
///
/// Give the view of a buffer ([`CudaView`](crate::CudaView)) to cudarc's calls on the stream of its
/// use only, where that stream or the call's is under capture. On another stream, the call is
/// ordered behind nothing, and cudarc's next call says `CUDA_ERROR_STREAM_CAPTURE_ISOLATION`; the
/// capture goes on.
///
/// It stays on its thread, as the driver demands. Dropping it ends the capture and discards its
/// work.
///
/// ```
/// # mod double { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double/stand_in.rs")); }
/// # double::stand_in(); // in the place of the driver
/// # mod bucketpool { pub use pool_core::*; pub mod cuda { pub use pool_cuda::*; } }
/// use bucketpool::{BucketPool, MIB};
/// use bucketpool::cuda::{CudaAllocator, CudaCapture};
///
/// let pool = BucketPool::new(CudaAllocator::new(0)?);
/// let device = pool.allocator().device().clone();
/// let stream = device.context().new_stream()?;
/// let on = device.stream(&stream)?;
///
/// // SAFETY: the captured work uses memory of the capture only.
/// let capture = unsafe { CudaCapture::begin(&pool, &on) }?;
/// let scratch = pool.allocate_on(&on, MIB)?;
/// stream.memset_zeros(&mut &*scratch.on(&on)?)?;
/// drop(scratch);
/// let mut graph = capture.end()?;
/// graph.launch(&on, &[])?;
/// graph.launch(&on, &[])?; // with the same memory
/// assert_eq!(graph.cached_bytes(), MIB);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CudaCapture<A: Vram> {
    device: CudaDevice,
    origin: PoolStream,
    forked: Vec<PoolStream>,
    /// Taken by its end.
    private: Option<PrivatePool<A>>,
    /// Dropped after the driver was told to end it.
    _counted: Counted,
    /// The driver ends a capture only on the thread that began it.
    not_send: PhantomData<*const ()>,
}

/// Captured work that can be launched many times, with the memory that it uses.
pub struct CudaGraph<A: Vram> {
    /// Declared before the memory, so that it is dropped first.
    instance: Instance,
    private: PrivatePool<A>,
}

/// A graph of the driver, and its instance.
struct Instance {
    device: CudaDevice,
    graph: sys::CUgraph,
    /// Null until `instantiate` sets it.
    ready: sys::CUgraphExec,
}

// SAFETY: the driver lets any thread use a graph, one thread at a time; `launch` borrows it
// exclusively.
unsafe impl Send for Instance {}

impl<A: Vram> CudaCapture<A> {
    /// Begins a capture of what `on` is given from now on.
    ///
    /// See [`CudaCapture`] for an example.
    ///
    /// # Errors
    ///
    /// [`Why::NotSubmitted`](pool_core::Why::NotSubmitted) for a stream under capture, or the
    /// driver's refusal; nothing is captured then.
    ///
    /// # Safety
    ///
    /// Captured work records addresses, and each launch reads or writes there (CUDA Programming
    /// Guide, "Creating a Graph Using Stream Capture"); cudarc's borrows end with the call that is
    /// captured, so the compiler does not check them. The caller keeps all memory that captured
    /// work uses, and that the capture has not allocated from `pool`, alive, in place and not
    /// otherwise borrowed until the last launch of the graph has run: host memory, pageable and
    /// page-locked, and device memory. So a `Vec` that `memcpy_htod` has copied in a capture must
    /// live as long as the graph. The caller gives views of buffers to calls on the stream of their
    /// use only, while that stream or the call's is under capture.
    ///
    /// ```compile_fail,E0133
    /// # use pool_core::BucketPool;
    /// # use pool_cuda::{CudaAllocator, CudaCapture, PoolStream};
    /// # fn capture(pool: &BucketPool<CudaAllocator>, on: &PoolStream) {
    /// let capture = CudaCapture::begin(pool, on); // unsafe
    /// # }
    /// ```
    pub unsafe fn begin(pool: &BucketPool<A>, on: &PoolStream) -> Result<Self, DeviceError> {
        let device = pool.allocator().cuda_device().clone();
        let private = PrivatePool::new(pool);
        device.clock().begin_capture(on)?;
        let counted = device.driver().begin_capture();
        let begun = private.bind(on).and_then(|()| on.raw().handle()).and_then(|stream| {
            // In this mode calls of other threads do not break the capture.
            let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
            device.driver().call("cuStreamBeginCapture", || {
                // SAFETY: the stream is kept alive by its `Arc`.
                unsafe { result::stream::begin_capture(stream, mode) }
            })
        });
        if let Err(error) = begun {
            device.clock().end_capture(on);
            return Err(error);
        }
        let (origin, not_send) = (on.clone(), PhantomData);
        let (forked, private) = (Vec::new(), Some(private));
        Ok(Self { device, origin, forked, private, _counted: counted, not_send })
    }

    /// Takes another stream into the capture, behind the work of `after` so far.
    ///
    /// # Errors
    ///
    /// [`Why::NotSubmitted`](pool_core::Why::NotSubmitted) if `after` is not in this capture or the
    /// other stream is in another one, [`Why::Foreign`](pool_core::Why::Foreign) for a stream of
    /// another device, or the driver's refusal.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod double { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double/stand_in.rs")); }
    /// # double::stand_in(); // in the place of the driver
    /// # mod bucketpool { pub use pool_core::*; pub mod cuda { pub use pool_cuda::*; } }
    /// use bucketpool::{BucketPool, KIB, Why};
    /// use bucketpool::cuda::{CudaAllocator, CudaCapture};
    ///
    /// # let pool = BucketPool::new(CudaAllocator::new(0)?);
    /// # let device = pool.allocator().device().clone();
    /// # let main = device.stream(&device.context().new_stream()?)?;
    /// # let side = device.stream(&device.context().new_stream()?)?;
    /// // SAFETY: the captured work uses memory of the capture only.
    /// let mut capture = unsafe { CudaCapture::begin(&pool, &main) }?;
    /// assert_eq!(capture.fork(&main, &side).unwrap_err().why, Why::NotSubmitted);
    /// capture.fork(&side, &main)?; // behind `main`, which is in the capture
    /// drop(pool.allocate_on(&side, KIB)?);
    /// capture.join(&main, &side)?;
    /// drop(pool.allocate_on(&main, KIB)?); // the block that `side` has freed
    /// assert_eq!(capture.end()?.cached_bytes(), KIB);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fork(&mut self, on: &PoolStream, after: &PoolStream) -> Result<(), DeviceError> {
        let (clock, private) = (self.device.clock(), self.private.as_ref());
        if !self.has(after) {
            return Err(DeviceError::new(Why::NotSubmitted, "fork behind no captured stream"));
        }
        clock.begin_capture(on)?;
        let bound = private.map_or(Ok(()), |private| private.bind(on));
        if let Err(error) = bound.and_then(|()| clock.join_captured(on, after)) {
            if let Some(private) = private {
                private.unbind_one(on);
            }
            clock.end_capture(on);
            return Err(error);
        }
        self.forked.push(on.clone());
        Ok(())
    }

    /// Orders `on` inside the capture behind the work of `after` so far. Blocks that `after` has
    /// freed serve `on` from then on.
    ///
    /// See [`CudaCapture::fork`] for an example.
    ///
    /// # Errors
    ///
    /// [`Why::NotSubmitted`](pool_core::Why::NotSubmitted) if a stream is not in the capture,
    /// [`Why::Foreign`](pool_core::Why::Foreign) for a stream of another device, or the driver's
    /// refusal.
    pub fn join(&self, on: &PoolStream, after: &PoolStream) -> Result<(), DeviceError> {
        let clock = self.device.clock();
        // What is another device's, the clock says.
        let others = [on, after].into_iter().filter(|stream| clock.owns(stream));
        if others.into_iter().any(|stream| !self.has(stream)) {
            let call = "join streams that are not both in this capture";
            return Err(DeviceError::new(Why::NotSubmitted, call));
        }
        clock.join_captured(on, after)
    }

    /// Whether a stream is in this capture.
    fn has(&self, stream: &PoolStream) -> bool {
        let mut own = self.forked.iter().chain([&self.origin]);
        own.any(|own| std::ptr::eq(own.raw(), stream.raw()))
    }

    /// Ends the capture. Each forked stream is joined to the first.
    ///
    /// See [`CudaCapture`] for an example.
    ///
    /// # Errors
    ///
    /// The driver's refusal; the work is discarded then.
    pub fn end(mut self) -> Result<CudaGraph<A>, DeviceError> {
        let joined = self.forked.iter().try_for_each(|forked| self.join(&self.origin, forked));
        let ended = self.stop();
        let missing = DeviceError::new(Why::Other, "a capture that has ended");
        let private = self.private.take().ok_or(missing)?; // the drop ends nothing a second time
        joined?;
        let mut instance = ended?;
        or_with_room(private.pool(), || instance.instantiate())?;
        Ok(CudaGraph { instance, private })
    }

    fn stop(&mut self) -> Result<Instance, DeviceError> {
        let end = || {
            self.device.driver().call("cuStreamEndCapture", || {
                // SAFETY: the stream is kept alive by its `Arc`.
                unsafe { result::stream::end_capture(self.origin.raw().cu_stream()) }
            })
        };
        let ready = std::ptr::null_mut();
        let instance = |graph| Instance { device: self.device.clone(), graph, ready };
        let ended = end().map(instance);
        // A capture that the refusal has not ended would hold its stream for ever.
        if ended.is_err() && self.device.events().is_captured(self.origin.raw()) == Ok(true) {
            drop(end().map(instance));
        }
        let clock = self.device.clock();
        let mut after = clock.end_capture(&self.origin);
        for forked in self.forked.drain(..) {
            after.extend(clock.end_capture(&forked));
        }
        if let Some(private) = &self.private {
            private.end(&after);
        }
        ended
    }
}

impl<A: Vram> Drop for CudaCapture<A> {
    fn drop(&mut self) {
        if self.private.is_some() && forked().is_none() {
            drop(self.stop());
        }
    }
}

impl Instance {
    fn instantiate(&mut self) -> Result<(), DeviceError> {
        self.ready = self.device.driver().relaxed("cuGraphInstantiate", || {
            let flags = sys::CUgraphInstantiate_flags(0);
            // SAFETY: `stop` made the graph, and it has no other user.
            unsafe { result::graph::instantiate(self.graph, flags) }
        })?;
        Ok(())
    }
}

/// Makes a call of the driver that takes memory beside the pool. If the device has none left, the pool
/// gives its cached memory back, and the call is made once more.
fn or_with_room<A: Vram>(
    pool: &BucketPool<A>,
    mut call: impl FnMut() -> Result<(), DeviceError>,
) -> Result<(), DeviceError> {
    match call() {
        Err(full) if full.why == Why::OutOfMemory => match pool.clear() {
            Ok(bytes) if bytes > 0 => {
                pool.allocator().give_all_back()?;
                call()
            }
            _ => Err(full),
        },
        other => other,
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // Launches that run go on; the driver frees the instance after them.
        let driver = self.device.driver();
        if !self.ready.is_null() {
            // SAFETY: made by `instantiate`, and destroyed once.
            let destroy = || unsafe { result::graph::exec_destroy(self.ready) };
            let _ = driver.relaxed("cuGraphExecDestroy", destroy);
        }
        if !self.graph.is_null() {
            // SAFETY: made by `stop`, and destroyed once.
            let destroy = || unsafe { result::graph::destroy(self.graph) };
            let _ = driver.relaxed("cuGraphDestroy", destroy);
        }
    }
}

impl<A: Vram> CudaGraph<A> {
    /// Launches the graph on a stream, behind its earlier launches and behind the work that the
    /// captured work was ordered behind. `uses` are the buffers that the graph uses and that other
    /// code uses between launches, inputs and results: the launch is ordered behind those uses, and
    /// they behind it.
    ///
    /// See [`CudaCapture`] for an example.
    ///
    /// # Errors
    ///
    /// [`Why::NotSubmitted`] for a stream under capture, also under another library's, and for the
    /// legacy default stream beside a captured stream that waits for it: a graph that contains this
    /// one would use its memory in launches that are not ordered with it. Otherwise as for
    /// [`PooledBuffer::on`], or the driver's refusal. Nothing was launched then.
    pub fn launch(
        &mut self,
        on: &PoolStream,
        uses: &[&PooledBuffer<A>],
    ) -> Result<(), DeviceError> {
        self.launch_reading(on, &[], uses)
    }

    /// Launches the graph as [`CudaGraph::launch`] does. It reads the buffers of `reads` and does not
    /// write them, such as weights: launches of several graphs on several streams that read them do
    /// not wait for each other ([`PooledBuffer::read_on`]).
    ///
    /// # Errors
    ///
    /// As for [`CudaGraph::launch`].
    ///
    /// See [`CudaGraph::launch`] for an example.
    pub fn launch_reading(
        &mut self,
        on: &PoolStream,
        reads: &[&PooledBuffer<A>],
        uses: &[&PooledBuffer<A>],
    ) -> Result<(), DeviceError> {
        let Instance { device, ready, .. } = &self.instance;
        if !device.clock().owns(on) {
            return Err(DeviceError::new(Why::Foreign, "launch on a stream of another device"));
        }
        let stream = on.raw().handle()?;
        if device.clock().is_capturing(on) || device.events().is_in_capture(on.raw())? {
            let call = "cuGraphLaunch in or beside a capture";
            return Err(DeviceError::new(Why::NotSubmitted, call));
        }
        let reads = reads.iter().map(|buffer| buffer.read_on(on));
        let in_use = reads.chain(uses.iter().map(|buffer| buffer.on(on)));
        let _in_use: Vec<_> = in_use.collect::<Result<_, _>>()?;
        let launch = || {
            device.driver().call("cuGraphLaunch", || {
                // SAFETY: the instance lives as long as `self`, borrowed alone; the stream is kept
                // alive by its `Arc`.
                unsafe { result::graph::launch(*ready, stream) }
            })
        };
        // The first launch moves the graph to the device.
        or_with_room(self.private.pool(), || self.private.launch(on, launch))
    }

    /// Returns the bytes that are kept for the graph and that no buffer has.
    #[must_use]
    pub fn cached_bytes(&self) -> u64 {
        self.private.cached_bytes()
    }
}

impl<A: Vram> fmt::Debug for CudaCapture<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaCapture").field("private", &self.private).finish_non_exhaustive()
    }
}

impl<A: Vram> fmt::Debug for CudaGraph<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaGraph").field("private", &self.private).finish_non_exhaustive()
    }
}
