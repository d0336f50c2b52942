//! A device: its context, its clock, its streams. All allocators of a GPU share one.
#![expect(unsafe_code, reason = "streams of other libraries come as handles")]

use crate::driver::{CallersContext, Driver, Kept, is_present, refusal};
use crate::events::{CudaDriver, PoolStream, RawStream};
use crate::forks::forked;
use crate::handles::Handles;
use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, CudaStream, DriverError, result, sys};
use parking_lot::{Mutex, MutexGuard};
use pool_core::stream::Timeline;
use pool_core::{DeviceError, StreamClock, Why};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, LazyLock, Weak};
use std::thread::{self, ThreadId};

/// `CU_STREAM_LEGACY`: another handle of the null stream.
const LEGACY: usize = 1;
/// `CU_STREAM_PER_THREAD`: a handle that means a different stream on each thread.
pub(crate) const PER_THREAD: usize = 2;

/// A GPU, with the clock of its streams. Clones are the same device, and so are all that are opened
/// while one of them lives: allocators of different libraries in one process know each other's
/// streams.
///
/// A pool makes the device's context current during its calls, and the caller's context again
/// before it returns.
#[derive(Clone)]
pub struct CudaDevice {
    shared: Arc<Inner>,
    /// The program's own handle of the context: cudarc counts streams by it.
    context: Kept<Arc<CudaContext>>,
}

struct Inner {
    driver: Arc<Driver>,
    events: CudaDriver,
    clock: Timeline<CudaDriver>,
    /// Registered streams. The clock keeps each alive, so the driver does not reuse its handle.
    streams: Mutex<Streams>,
    /// Those of them that other libraries name by their handles.
    handles: Handles,
    total_bytes: u64,
}

type StreamKey = (usize, Option<ThreadId>);
type Streams = HashMap<StreamKey, Registered>;

/// A registered stream. It ends with the retirement of its last borrower, unless it stays.
pub(crate) struct Registered {
    pub(crate) on: PoolStream,
    /// How many have wrapped it and not retired it.
    pub(crate) borrowers: usize,
    /// For one that stays until [`CudaDevice::retire`]: the stream, kept alive also where another
    /// library had wrapped its handle before.
    pub(crate) stays: Option<Kept<Arc<CudaStream>>>,
}

/// Returns the registration of a stream.
fn registered<'s>(streams: &'s mut Streams, on: &PoolStream) -> Option<&'s mut Registered> {
    streams.values_mut().find(|known| std::ptr::eq(known.on.raw(), on.raw()))
}

/// The devices that are open, by the addresses of their contexts.
static OPEN: LazyLock<Mutex<HashMap<usize, Weak<Inner>>>> = LazyLock::new(Mutex::default);

/// The key of the legacy default stream.
pub(crate) const DEFAULT: StreamKey = (0, None);

/// Returns the key of a stream: its handle, and the thread of a per-thread default stream.
fn key(stream: &CudaStream) -> StreamKey {
    match stream.cu_stream().addr() {
        LEGACY => DEFAULT,
        PER_THREAD => (PER_THREAD, Some(thread::current().id())),
        handle => (handle, None),
    }
}

thread_local!(static AT_END: AtEnd = AtEnd(thread::current().id()));

/// The end of a thread: its default streams end with it, and their memory serves others behind their last events.
struct AtEnd(ThreadId);

impl Drop for AtEnd {
    fn drop(&mut self) {
        if forked().is_some() {
            return; // a thread that is not there may hold a lock
        }
        let open: Vec<_> = OPEN.lock().values().filter_map(Weak::upgrade).collect();
        for device in open {
            let known = |known: &Registered| known.on.clone();
            let own = device.streams.lock().get(&(PER_THREAD, Some(self.0))).map(known);
            // What the driver refuses stays registered, and its memory waits for the whole context.
            if own.is_some_and(|own| device.clock.retire(&own).is_ok()) {
                device.streams.lock().remove(&(PER_THREAD, Some(self.0)));
            }
        }
    }
}

/// Lets the default stream of the calling thread end with the thread.
fn end_with_thread((handle, _): StreamKey) {
    if handle == PER_THREAD {
        let _ = AT_END.try_with(|_| ()); // a thread that ends already has its streams registered for ever
    }
}

impl CudaDevice {
    /// Opens the device with this ordinal, in its primary context.
    ///
    /// # Errors
    ///
    /// [`Why::Unsupported`] if no driver library can be loaded or there is no such device, or the
    /// driver's refusal.
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
    /// let device = CudaDevice::new(0)?;
    /// assert_eq!(device.ordinal(), 0);
    /// let missing = CudaDevice::new(99).unwrap_err();
    /// assert_eq!(missing.why, Why::Unsupported); // there is no such device
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(ordinal: usize) -> Result<Self, DeviceError> {
        if !is_present() {
            return Err(DeviceError::new(Why::Unsupported, "no driver library (libcuda)"));
        }
        if let Some(forked) = forked() {
            return Err(forked);
        }
        let failed = |e| refusal("cuDevicePrimaryCtxRetain", e);
        let before = result::init().and_then(|()| result::ctx::get_current());
        let before = before.map_err(|e| refusal("cuInit", e))?;
        // cudarc makes the new context current. It stays so only on a thread that had none.
        let _callers = before.map(|before| CallersContext::from(Some(before)));
        let context = CudaContext::new(ordinal).map_err(failed)?;
        Self::in_context(context)
    }

    /// Opens the device of a context that the program has already.
    ///
    /// # Errors
    ///
    /// The driver's refusal to tell how much memory the device has.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod double { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double/stand_in.rs")); }
    /// # double::stand_in(); // in the place of the driver
    /// # mod bucketpool { pub use pool_core::*; pub mod cuda { pub use pool_cuda::*; } }
    /// use bucketpool::cuda::CudaDevice;
    /// use bucketpool::cuda::cudarc::driver::CudaContext;
    ///
    /// let context = CudaContext::new(0)?; // the program's own
    /// let device = CudaDevice::in_context(context.clone())?;
    /// assert_eq!(device.context().cu_ctx(), context.cu_ctx());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn in_context(context: Arc<CudaContext>) -> Result<Self, DeviceError> {
        if let Some(forked) = forked() {
            return Err(forked);
        }
        let mut open = OPEN.lock();
        open.retain(|_, device| device.strong_count() > 0);
        let known = open.get(&context.cu_ctx().addr()).and_then(Weak::upgrade);
        let own = Kept::new(context.clone());
        // A lost device serves nobody.
        if let Some(shared) = known.filter(|known| known.driver.fault().is_none()) {
            return Ok(Self { shared, context: own });
        }
        let default = context.default_stream();
        // Not by the context's own call, which would tell an error that an earlier drop has left.
        // SAFETY: the device of a context exists.
        let total = unsafe { result::device::total_mem(context.cu_device()) };
        let total = total.map_err(|e| refusal("cuDeviceTotalMem", e))?;
        let address = context.cu_ctx().addr();
        let driver = Arc::new(Driver::new(context));
        let (raw, events) =
            (RawStream::new(default.clone(), None), CudaDriver::new(driver.clone()));
        let clock = Timeline::new(events.clone(), raw);
        let on = clock.default_stream().clone();
        let registered = Registered { on, borrowers: 0, stays: Some(Kept::new(default.clone())) };
        let streams = HashMap::from([(key(&default), registered)]);
        let (streams, handles, total_bytes) =
            (Mutex::new(streams), Handles::default(), total as u64);
        let shared = Arc::new(Inner { driver, events, clock, streams, handles, total_bytes });
        open.insert(address, Arc::downgrade(&shared));
        Ok(Self { shared, context: own })
    }

    /// Registers one of the program's streams, and keeps it alive until it is retired. A second
    /// call returns the same registration, which one [`CudaDevice::retire`] ends for all. The legacy
    /// default stream is registered from the start, and gets events like any other: its implicit order
    /// does not cover non-blocking streams, which cudarc's are.
    ///
    /// The per-thread default stream is the calling thread's, and ends with it. Other threads can wait for it
    /// only on the host: prefer streams that have a handle.
    ///
    /// # Errors
    ///
    /// [`Why::Foreign`] for a stream of another context, [`Why::Lost`] and [`Why::Forked`] as for
    /// every call.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod double { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double/stand_in.rs")); }
    /// # double::stand_in(); // in the place of the driver
    /// # mod bucketpool { pub use pool_core::*; pub mod cuda { pub use pool_cuda::*; } }
    /// use bucketpool::{BucketPool, KIB, Why};
    /// use bucketpool::cuda::{CudaAllocator, CudaDevice};
    ///
    /// let (device, other) = (CudaDevice::new(0)?, CudaDevice::new(1)?);
    /// let stream = device.context().new_stream()?;
    /// let on = device.stream(&stream)?;
    /// let pool = BucketPool::new(CudaAllocator::on(device));
    /// let buffer = pool.allocate_on(&on, KIB)?;
    /// assert_eq!(other.stream(&stream).unwrap_err().why, Why::Foreign);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stream(&self, stream: &Arc<CudaStream>) -> Result<PoolStream, DeviceError> {
        if let Some(fault) = self.driver().fault() {
            return Err(fault);
        }
        if stream.context().cu_ctx() != self.context().cu_ctx() {
            return Err(DeviceError::new(Why::Foreign, "a stream of another context"));
        }
        let key = key(stream);
        end_with_thread(key);
        self.end_if_gone(key)?;
        let mut streams = self.shared.streams.lock();
        let known = streams.entry(key).or_insert_with(|| {
            let on = self.clock().register(RawStream::new(stream.clone(), key.1));
            Registered { on, borrowers: 0, stays: None }
        });
        known.stays.get_or_insert_with(|| Kept::new(stream.clone()));
        Ok(known.on.clone())
    }

    /// Registers a stream that another library owns, by its handle.
    ///
    /// The driver's own handles have no owner. The null handle and `CU_STREAM_LEGACY` are the
    /// legacy default stream, whose registration each call returns; to retire it does nothing.
    /// `CU_STREAM_PER_THREAD` is the calling thread's default stream. A library that was compiled
    /// for per-thread default streams (`CUDA_API_PER_THREAD_DEFAULT_STREAM`) says null and means
    /// `CU_STREAM_PER_THREAD`: pass that handle for it.
    ///
    /// Several may wrap one handle, and have one registration, which ends with the last of them. A
    /// stream that [`CudaDevice::stream`] has registered stays registered.
    ///
    /// # Errors
    ///
    /// [`Why::Lost`] and [`Why::Forked`] as for every call.
    ///
    /// # Safety
    ///
    /// The handle is a stream of this device's context. Its owner keeps it until
    /// [`BorrowedStream::retire`] of all that have wrapped it, or [`CudaDevice::retire`], has returned
    /// `Ok`. The drop of the
    /// `BorrowedStream` retires it too if the driver takes the event that the drop records: the
    /// stream is under no capture, and the device has memory for an event.
    ///
    /// No thread allocates, uses a buffer or launches a graph on the stream during its retirement
    /// or after it. Buffers that it uses until their drop
    /// ([`record_stream`](pool_core::PooledBuffer::record_stream),
    /// [`use_until_drop`](pool_core::PooledBuffer::use_until_drop)) are dropped before: nothing
    /// waits for work that it is given later. [`BorrowedStream::keep`] leaves it registered.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod double { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double/stand_in.rs")); }
    /// # double::stand_in(); // in the place of the driver
    /// # mod bucketpool { pub use pool_core::*; pub mod cuda { pub use pool_cuda::*; } }
    /// use bucketpool::{BucketPool, MIB};
    /// use bucketpool::cuda::{CudaAllocator, CudaDevice};
    ///
    /// # let device = CudaDevice::new(0)?;
    /// # let owner = device.context().new_stream()?; // of another library
    /// # let handle = owner.cu_stream();
    /// // SAFETY: the stream is of this context, and its owner keeps it until it is retired.
    /// let on = unsafe { device.wrap_stream(handle) }?;
    /// // SAFETY: as above.
    /// drop(unsafe { device.wrap_stream(handle) }?); // another part of the program has it too
    /// # let pool = BucketPool::new(CudaAllocator::on(device));
    /// drop(pool.allocate_on(&on, MIB)?);
    /// on.retire().map_err(|(_on, error)| error)?;
    /// # drop(owner);
    /// pool.allocate(MIB)?; // the same block, behind the last event of the stream
    /// # assert_eq!(pool.stats().misses, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub unsafe fn wrap_stream(&self, handle: sys::CUstream) -> Result<BorrowedStream, DeviceError> {
        if let Some(fault) = self.driver().fault() {
            return Err(fault);
        }
        // SAFETY: as the caller guarantees; after its retirement no call uses the handle.
        let stream = unsafe { self.context().wrap_borrowed_stream(handle) };
        let key = key(&stream);
        if key == DEFAULT {
            let on = self.clock().default_stream().clone();
            return Ok(BorrowedStream { on, device: self.clone(), retires: false });
        }
        end_with_thread(key);
        self.end_if_gone(key)?;
        let on = match self.shared.streams.lock().entry(key) {
            Entry::Occupied(known) => {
                let known = known.into_mut();
                known.borrowers += 1;
                known.on.clone()
            }
            Entry::Vacant(unknown) => {
                let on = self.clock().register(RawStream::new(stream, key.1));
                let new = Registered { on, borrowers: 1, stays: None };
                unknown.insert(new).on.clone()
            }
        };
        Ok(BorrowedStream { on, device: self.clone(), retires: true })
    }

    /// Ends the stream that is registered under a key, if its owner has destroyed it: another one has its handle.
    fn end_if_gone(&self, key: StreamKey) -> Result<(), DeviceError> {
        let known = self.shared.streams.lock().get(&key).map(|known| known.on.clone());
        known
            .filter(|on| self.events().is_gone(on.raw()))
            .map_or(Ok(()), |gone| self.end_gone(&gone))
    }

    /// Ends a stream whose owner has destroyed it. `Foreign` says that another thread ends it.
    pub(crate) fn end_gone(&self, gone: &PoolStream) -> Result<(), DeviceError> {
        self.retire(gone)
            .or_else(|error| if error.why == Why::Foreign { Ok(()) } else { Err(error) })
    }

    /// Ends one borrower's part in a stream, and the stream with the last one. `ends` says whether the
    /// stream may end; if not, or if the driver refuses, it stays registered without a borrower, and one
    /// that wraps it anew can end it.
    fn give_up(&self, stream: &PoolStream, ends: bool) -> Result<(), DeviceError> {
        forked().map_or(Ok(()), Err)?;
        // Under the lock, so that nobody wraps a stream that ends.
        let mut streams = self.shared.streams.lock();
        let ended = DeviceError::new(Why::Foreign, "retire a stream");
        let known = registered(&mut streams, stream).ok_or(ended)?;
        known.borrowers = known.borrowers.saturating_sub(1);
        if known.borrowers == 0 && known.stays.is_none() && ends {
            self.end(streams, stream)?;
        }
        Ok(())
    }

    /// Ends a stream and its registration. The lock is held, so that nobody wraps a stream that ends; but not while
    /// the host waits for all work, as it does for the default stream of another thread, which that thread alone
    /// can register anew, and for a stream that is gone.
    fn end(
        &self,
        mut streams: MutexGuard<'_, Streams>,
        stream: &PoolStream,
    ) -> Result<(), DeviceError> {
        match stream.raw().is_reachable() && !self.events().is_gone(stream.raw()) {
            true => self.clock().retire(stream),
            false => MutexGuard::unlocked(&mut streams, || self.clock().retire(stream)),
        }?;
        self.shared.handles.remove(stream);
        streams.retain(|_, known| !std::ptr::eq(known.on.raw(), stream.raw()));
        Ok(())
    }

    /// Ends the registration of a stream. Its queued work still runs, and memory that it used
    /// serves other streams behind its last event. For a per-thread default stream, its own thread
    /// makes this call.
    ///
    /// # Errors
    ///
    /// [`Why::Foreign`] for a stream that is not registered, [`Why::Unsupported`] for the legacy
    /// default stream, or the driver's refusal; the stream stays registered then.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod double { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double/stand_in.rs")); }
    /// # double::stand_in(); // in the place of the driver
    /// # mod bucketpool { pub use pool_core::*; pub mod cuda { pub use pool_cuda::*; } }
    /// use bucketpool::{BucketPool, MIB, Why};
    /// use bucketpool::cuda::CudaAllocator;
    ///
    /// let pool = BucketPool::new(CudaAllocator::new(0)?);
    /// let device = pool.allocator().device();
    /// let on = device.stream(&device.context().new_stream()?)?;
    /// drop(pool.allocate_on(&on, MIB)?);
    /// device.retire(&on)?;
    /// assert_eq!(device.retire(&on).unwrap_err().why, Why::Foreign); // it has ended
    /// pool.allocate(MIB)?; // the same block, behind the last event of the stream
    /// assert_eq!(pool.stats().misses, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn retire(&self, stream: &PoolStream) -> Result<(), DeviceError> {
        forked().map_or(Ok(()), Err)?; // a thread that is not there may hold the lock
        self.end(self.shared.streams.lock(), stream)
    }

    /// Returns the registration of one of cudarc's streams.
    pub(crate) fn known(&self, stream: &CudaStream) -> Option<PoolStream> {
        let ours = forked().is_none() && stream.context().cu_ctx() == self.context().cu_ctx();
        ours.then(|| self.shared.streams.lock().get(&key(stream)).map(|known| known.on.clone()))
            .flatten()
    }

    /// Returns whether the device has a feature. A driver that does not know the feature refuses
    /// the question, and so does not have it.
    pub(crate) fn has_attribute(
        &self,
        attribute: sys::CUdevice_attribute,
    ) -> Result<bool, DeviceError> {
        let device = self.context().cu_device();
        self.driver().call("cuDeviceGetAttribute", || {
            // SAFETY: the device of a context exists.
            match unsafe { result::device::get_attribute(device, attribute) } {
                Err(DriverError(CUresult::CUDA_ERROR_INVALID_VALUE)) => Ok(false),
                answer => Ok(answer? > 0),
            }
        })
    }

    pub(crate) fn driver(&self) -> &Driver {
        &self.shared.driver
    }

    pub(crate) fn streams(&self) -> &Mutex<Streams> {
        &self.shared.streams
    }

    pub(crate) fn handles(&self) -> &Handles {
        &self.shared.handles
    }

    pub(crate) fn events(&self) -> &CudaDriver {
        &self.shared.events
    }

    /// Returns the clock that all allocators of the device share.
    #[must_use]
    pub fn clock(&self) -> &Timeline<CudaDriver> {
        &self.shared.clock
    }

    /// Returns the context in which all calls are made.
    #[must_use]
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Returns the ordinal of the device.
    #[must_use]
    pub fn ordinal(&self) -> usize {
        self.context().ordinal()
    }

    /// Blocks the host until all work of the context has passed, on streams that the pool has never seen too.
    ///
    /// # Errors
    ///
    /// [`Why::NotSubmitted`] while a capture goes on in the context that a pool knows, which the wait would break; or
    /// the driver's refusal.
    ///
    /// ```
    /// # mod double { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double/stand_in.rs")); }
    /// # double::stand_in(); // in the place of the driver
    /// # mod bucketpool { pub use pool_core::*; pub mod cuda { pub use pool_cuda::*; } }
    /// use bucketpool::cuda::CudaDevice;
    ///
    /// CudaDevice::new(0)?.synchronize()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        self.driver().synchronize()
    }

    /// Lets a thread that waits for this device sleep, and not spin: it then uses no core, and wakes
    /// some 50 us later. For a program with more waiting threads than cores.
    ///
    /// It holds for events that are made afterwards, so call it first.
    ///
    /// ```
    /// # mod double { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double/stand_in.rs")); }
    /// # double::stand_in(); // in the place of the driver
    /// # mod bucketpool { pub use pool_core::*; pub mod cuda { pub use pool_cuda::*; } }
    /// use bucketpool::cuda::CudaDevice;
    ///
    /// let device = CudaDevice::new(0)?;
    /// device.sleep_in_waits(true);
    /// # device.sleep_in_waits(false);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sleep_in_waits(&self, sleeps: bool) {
        self.events().sleep_in_waits(sleeps);
    }

    /// Returns the bytes of memory that no program has, as the driver knows them now.
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
    /// use bucketpool::cuda::CudaDevice;
    ///
    /// let device = CudaDevice::new(0)?;
    /// assert!(device.free_bytes()? <= device.total_bytes());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn free_bytes(&self) -> Result<u64, DeviceError> {
        let info = self.driver().relaxed("cuMemGetInfo", result::mem_get_info)?;
        Ok(info.0 as u64)
    }

    /// Returns the bytes of memory that the device has.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.shared.total_bytes
    }
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaDevice").field("ordinal", &self.ordinal()).finish_non_exhaustive()
    }
}

/// A registered stream of another library. Retire it before its owner destroys it.
///
/// A drop retires it too, but cannot say that the driver has refused, as it does for a stream under
/// capture. The stream stays registered then, and so it does if another thread drops a per-thread
/// default stream, or if [`BorrowedStream::keep`] was called.
#[derive(Debug)]
#[must_use = "its drop retires the stream"]
pub struct BorrowedStream {
    on: PoolStream,
    device: CudaDevice,
    /// Whether the drop retires the stream.
    retires: bool,
}

impl BorrowedStream {
    /// Records the stream's last event, if nobody else has wrapped it. The owner may destroy the stream
    /// once this has returned `Ok` to all that have. Does nothing for the legacy default stream, which
    /// does not end.
    ///
    /// See [`CudaDevice::wrap_stream`] for an example.
    ///
    /// # Errors
    ///
    /// As for [`CudaDevice::retire`], with the stream, which stays registered unless
    /// [`Why::Foreign`] says that it had been retired.
    pub fn retire(mut self) -> Result<(), (Self, DeviceError)> {
        if !self.retires {
            return Ok(());
        }
        let retired = self.device.give_up(&self.on, true);
        self.retires = false; // its part is given up, whatever the driver has said
        match retired {
            Ok(()) => Ok(()),
            Err(error) => Err((self.again(), error)),
        }
    }

    /// Returns the registration, which stays until [`CudaDevice::retire`] ends it: for a stream
    /// that lives as long as the program, or whose owner tells when it ends.
    ///
    /// The promise of [`CudaDevice::wrap_stream`] holds on: the owner keeps the stream until
    /// `retire` has returned `Ok`.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod double { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double/stand_in.rs")); }
    /// # double::stand_in(); // in the place of the driver
    /// # mod bucketpool { pub use pool_core::*; pub mod cuda { pub use pool_cuda::*; } }
    /// use bucketpool::{BucketPool, MIB};
    /// use bucketpool::cuda::{CudaAllocator, CudaDevice, PoolStream};
    ///
    /// # let device = CudaDevice::new(0)?;
    /// # let owner = device.context().new_stream()?; // of another library
    /// # let handle = owner.cu_stream();
    /// // SAFETY: the stream is of this context, and its owner keeps it until it is retired below.
    /// let on: PoolStream = unsafe { device.wrap_stream(handle) }?.keep();
    /// let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    /// assert!(pool.allocate_on(&on, MIB).is_ok());
    /// device.retire(&on)?;
    /// # drop(owner);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn keep(mut self) -> PoolStream {
        self.retires = false;
        if forked().is_some() {
            return self.on.clone();
        }
        let mut streams = self.device.shared.streams.lock();
        if let Some(known) = registered(&mut streams, &self.on) {
            known.borrowers = known.borrowers.saturating_sub(1);
            known.stays.get_or_insert_with(|| Kept::new(Arc::clone(self.on.raw())));
        }
        self.on.clone()
    }

    /// The same stream, borrowed once more.
    fn again(mut self) -> Self {
        if forked().is_some() {
            return self;
        }
        let mut streams = self.device.shared.streams.lock();
        let known = registered(&mut streams, &self.on);
        let is_known = known.map(|known| known.borrowers += 1).is_some();
        drop(streams);
        self.retires = is_known;
        self
    }
}

impl Drop for BorrowedStream {
    fn drop(&mut self) {
        // In a forked child a thread that is not there may hold a lock. For the default stream of
        // another thread the host would wait for the whole context.
        if self.retires && forked().is_none() {
            // A refusal cannot be told.
            let _ = self.device.give_up(&self.on, self.on.raw().is_reachable());
        }
    }
}

/// The registered stream, which pools take.
impl Deref for BorrowedStream {
    type Target = PoolStream;
    fn deref(&self) -> &PoolStream {
        &self.on
    }
}
