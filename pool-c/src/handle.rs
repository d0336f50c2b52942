//! The pools that C has, and the one of each device that a process shares.
#![expect(unsafe_code, reason = "C has pools by pointers")]

use crate::memory::{Family, Kind};
use crate::pool::{AnyPool, Pool};
use crate::status::{Failure, watch_forks};
use parking_lot::Mutex;
use pool_config::PoolConfig;
use pool_core::{BucketPool, port::Sliceable};
use pool_host::HostAllocator;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// What a pool has without settings: memory that is split, in pages where the memory has addresses of its own.
const DEFAULT: &str = "policy = \"arena\"";

/// A pool, as C has it. `bp_pool_clone` and `bp_pool_drop` count its owners.
pub struct Handle {
    pool: Box<dyn AnyPool>,
    kind: Kind,
    hooks: Arc<Hooks>,
    owners: AtomicUsize,
}

/// What the program wants to be asked and told.
#[derive(Default)]
pub(crate) struct Hooks {
    pub(crate) shortage: Mutex<Hook<ShortageCall>>,
    pub(crate) oom: Mutex<Hook<OomCall>>,
}

/// A function of the program, if any, and its context.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hook<F> {
    pub(crate) call: F,
    pub(crate) context: *mut c_void,
}

impl<F: Default> Default for Hook<F> {
    fn default() -> Self {
        Self { call: F::default(), context: ptr::null_mut() }
    }
}

// SAFETY: who sets a hook promises that it may be called from any thread.
unsafe impl<F: Send> Send for Hook<F> {}

/// Asked for memory before a request is refused: a context and the missing bytes. Returns whether it freed any.
pub type ShortageCall = Option<unsafe extern "C" fn(*mut c_void, usize) -> c_int>;
/// Told of a refusal: a context and the text. It may throw.
pub type OomCall = Option<unsafe extern "C-unwind" fn(*mut c_void, *const c_char)>;

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl Handle {
    fn new(settings: &str, kind: Kind, device: c_int) -> Result<Self, Failure> {
        watch_forks();
        let settings = if settings.trim().is_empty() { DEFAULT } else { settings };
        let read = toml::from_str::<PoolConfig>(settings);
        let config = read.map_err(|error| Failure::invalid(format!("settings: {error}")))?;
        let hooks = Arc::<Hooks>::default();
        let pool = open(&config, kind, device, &hooks)?;
        Ok(Self { pool, kind, hooks, owners: AtomicUsize::new(1) })
    }

    /// Makes a pool of its own.
    pub(crate) fn open(settings: &str, kind: Kind, device: c_int) -> Result<*const Self, Failure> {
        Ok(Box::into_raw(Box::new(Self::new(settings, kind, device)?)))
    }

    /// The calls of its pool.
    #[inline]
    pub(crate) fn pool(&self) -> &dyn AnyPool {
        &*self.pool
    }

    pub(crate) fn hooks(&self) -> &Hooks {
        &self.hooks
    }

    pub(crate) fn memory(&self) -> &'static str {
        self.kind.name()
    }

    pub(crate) fn add_owner(&self) {
        self.owners.fetch_add(1, SeqCst);
    }

    /// Ends one owner's part. Where blocks are alive after the last one, the few bytes of the handle stay for their
    /// frees.
    ///
    /// # Safety
    ///
    /// `handle` is an owner's, and no call with it is under way or comes later but the frees of live blocks.
    pub(crate) unsafe fn drop_owner(handle: *const Self) {
        // SAFETY: an owner's handle is alive.
        let this = unsafe { &*handle };
        if this.owners.fetch_sub(1, SeqCst) > 1 {
            return;
        }
        if this.pool.live() > 0 {
            this.pool.close();
            return;
        }
        // SAFETY: `open` made the box, this was its last owner, and no block is left to free.
        drop(unsafe { Box::from_raw(handle.cast_mut()) });
    }
}

/// Makes the pool of a memory.
fn open(
    config: &PoolConfig,
    kind: Kind,
    device: c_int,
    hooks: &Arc<Hooks>,
) -> Result<Box<dyn AnyPool>, Failure> {
    if kind == Kind::Host {
        return Ok(Box::new(Pool::new(built(config, HostAllocator::new(), hooks)?)));
    }
    open_cuda(config, kind, device, hooks)
}

#[cfg(not(feature = "cuda"))]
fn open_cuda(
    _config: &PoolConfig,
    kind: Kind,
    _device: c_int,
    _hooks: &Arc<Hooks>,
) -> Result<Box<dyn AnyPool>, Failure> {
    let text = format!("memory \"{}\": this library was built without CUDA", kind.name());
    Err(Failure::new(crate::status::Status::BpUnsupported, text))
}

#[cfg(feature = "cuda")]
fn open_cuda(
    config: &PoolConfig,
    kind: Kind,
    device: c_int,
    hooks: &Arc<Hooks>,
) -> Result<Box<dyn AnyPool>, Failure> {
    use pool_cuda::{
        CudaAllocator, CudaAsyncAllocator, CudaDevice, CudaPinnedAllocator, CudaVmmAllocator,
    };
    let ordinal = usize::try_from(device).map_err(|_| {
        Failure::invalid(format!("device {device}; expected its ordinal, from 0 on"))
    })?;
    let device = CudaDevice::new(ordinal)?;
    Ok(match kind {
        Kind::CudaVmm => {
            Box::new(Pool::new(built(config, CudaVmmAllocator::new(device, &[])?, hooks)?))
        }
        Kind::CudaAsync => {
            let memory = CudaAsyncAllocator::new(device, u64::MAX)?;
            Box::new(Pool::new(built(config, memory, hooks)?))
        }
        Kind::Pinned => Box::new(Pool::new(built(config, CudaPinnedAllocator::on(device), hooks)?)),
        Kind::Cuda | Kind::Host => {
            Box::new(Pool::new(built(config, CudaAllocator::on(device), hooks)?))
        }
    })
}

/// Makes a pool that asks the hooks before it refuses a request.
fn built<A: Sliceable>(
    config: &PoolConfig,
    memory: A,
    hooks: &Arc<Hooks>,
) -> Result<BucketPool<A>, Failure> {
    let hooks = hooks.clone();
    let ask = move |missing: u64| {
        let hook = *hooks.shortage.lock();
        let missing = usize::try_from(missing).unwrap_or(usize::MAX);
        // SAFETY: who set the hook promises that it may be called with its context.
        hook.call.is_some_and(|call| unsafe { call(hook.context, missing) != 0 })
    };
    Ok(config.set(BucketPool::builder(memory))?.on_shortage(ask).try_build()?)
}

/// What pools of devices that are not made yet are made with.
#[derive(Clone)]
struct Wanted {
    settings: String,
    kind: Kind,
}

/// The one pool of each device, and what the others will be.
#[derive(Default)]
struct Devices {
    open: HashMap<(Family, c_int), Shared>,
    wanted: HashMap<Family, Wanted>,
}

/// A pool that lives as long as the process: Python frees its arrays after all handlers of its end.
#[derive(Clone, Copy)]
struct Shared(&'static Handle);

static DEVICES: Mutex<Option<Devices>> = Mutex::new(None);

/// Says with what the pools of devices are made from here on.
pub(crate) fn set_devices(settings: &str, kind: Kind) -> Result<(), Failure> {
    let mut devices = DEVICES.lock();
    let devices = devices.get_or_insert_default();
    let family = kind.family();
    if let Some(((_, device), _)) = devices.open.iter().find(|((open, _), _)| *open == family) {
        let text = format!(
            "the pool of device {device} is in use; expected the settings before its first use"
        );
        return Err(Failure::invalid(text));
    }
    toml::from_str::<PoolConfig>(settings)
        .map_err(|error| Failure::invalid(format!("settings: {error}")))?;
    devices.wanted.insert(family, Wanted { settings: settings.to_owned(), kind });
    Ok(())
}

impl Kind {
    /// Refuses a request for a pool of another memory.
    fn is_asked_by(self, asked: Option<Self>, device: c_int) -> Result<(), Failure> {
        if asked.is_none_or(|asked| asked == self) {
            return Ok(());
        }
        let name = self.name();
        let text = format!(
            "the pool of device {device} has memory \"{name}\"; expected that name, or none"
        );
        Err(Failure::invalid(text))
    }
}

/// The one pool of a device, if it has been made.
pub(crate) fn if_made(
    kind: Option<Kind>,
    device: c_int,
) -> Result<Option<&'static Handle>, Failure> {
    let devices = DEVICES.lock();
    let family = kind.map_or(Family::Device, Kind::family);
    let device = if family == Family::Host { 0 } else { device };
    let made = devices.as_ref().and_then(|devices| devices.open.get(&(family, device)));
    let Some(Shared(made)) = made else { return Ok(None) };
    made.kind.is_asked_by(kind, device)?;
    Ok(Some(*made))
}

/// The one pool of a device, which the first call makes. `kind`: `None` for that which it has or will have.
pub(crate) fn of_device(kind: Option<Kind>, device: c_int) -> Result<&'static Handle, Failure> {
    let mut devices = DEVICES.lock();
    let devices = devices.get_or_insert_default();
    let family = kind.map_or(Family::Device, Kind::family);
    let device = if family == Family::Host { 0 } else { device };
    if let Some(Shared(known)) = devices.open.get(&(family, device)) {
        return known.kind.is_asked_by(kind, device).map(|()| *known);
    }
    let wanted = devices.wanted.get(&family).cloned();
    let by_itself = Wanted { settings: String::new(), kind: kind.unwrap_or(Kind::Cuda) };
    let wanted = wanted.unwrap_or(by_itself);
    wanted.kind.is_asked_by(kind, device)?;
    let new: &'static Handle =
        Box::leak(Box::new(Handle::new(&wanted.settings, wanted.kind, device)?));
    devices.open.insert((family, device), Shared(new));
    Ok(new)
}

/// The pool behind a pointer of C.
///
/// # Safety
///
/// Null, or a pool that is alive.
#[inline]
pub(crate) unsafe fn known<'p>(pool: *const Handle) -> Result<&'p dyn AnyPool, Failure> {
    // SAFETY: as the caller promises.
    unsafe { handle_of(pool) }.map(Handle::pool)
}

/// The handle behind a pointer of C.
///
/// # Safety
///
/// As for [`known`].
#[inline]
pub(crate) unsafe fn handle_of<'p>(pool: *const Handle) -> Result<&'p Handle, Failure> {
    let none = || Failure::invalid("a null pool; expected one of bp_pool_new");
    // SAFETY: as the caller promises.
    unsafe { pool.as_ref() }.ok_or_else(none)
}

/// A text of C.
///
/// # Safety
///
/// Null, or a text that ends with a zero byte and lives through the call.
pub(crate) unsafe fn text<'t>(text: *const c_char) -> Result<&'t str, Failure> {
    if text.is_null() {
        return Ok("");
    }
    // SAFETY: as the caller promises.
    let text = unsafe { std::ffi::CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::invalid("a text that is no UTF-8"))
}

/// Writes a result to where C wants it.
///
/// # Safety
///
/// Null, or a place for it.
pub(crate) unsafe fn give<T>(value: T, to: *mut T) -> Result<(), Failure> {
    if to.is_null() {
        return Err(Failure::invalid("a null pointer for the result; expected a place for it"));
    }
    // SAFETY: as the caller promises.
    unsafe { ptr::write(to, value) };
    Ok(())
}
