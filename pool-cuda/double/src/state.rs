//! The one machine that this driver runs: its devices, and the blocks that they have handed out.

use crate::capture::Captures;
use crate::code::{self, Code};
use crate::graph::GraphMemory;
use crate::lost::Lost;
use crate::script::{Gate, Script};
use crate::store::Stores;
use parking_lot::{Mutex, MutexGuard};
use pool_core::DeviceError;
use pool_sim::engine::{Engine, Event};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::thread::{self, ThreadId};

/// Bytes of each device: 1 GiB, or as many as `CUDA_DOUBLE_GIB` says.
pub(crate) static CAPACITY: LazyLock<u64> = LazyLock::new(|| {
    let gib = std::env::var("CUDA_DOUBLE_GIB").ok().and_then(|gib| gib.parse().ok());
    gib.unwrap_or(1_u64) << 30
});
/// Number of devices.
pub(crate) const DEVICES: usize = 2;
/// Handles of primary contexts: this, and the device.
const CONTEXTS: usize = 0xC0_DE00;
/// Handles of streams, events, pools and graphs count from here; small ones have meanings.
const HANDLES: usize = 0x1000;
/// The driver's handles are addresses: PyTorch has other meanings for odd ones.
const HANDLE_STEP: usize = 16;
/// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

thread_local! {
    /// The current context; 0 if the thread has none.
    pub(crate) static CURRENT: Cell<usize> = const { Cell::new(0) };
    /// The contexts below the current one, the lowest first.
    pub(crate) static BELOW: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    /// Whether the thread runs a host function of a stream, which may call nothing of the driver.
    pub(crate) static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

pub(crate) struct State {
    pub(crate) engine: Engine,
    pub(crate) script: Script,
    pub(crate) lost: Lost,
    pub(crate) captures: Captures,
    handles: usize,
    /// Handles of what was destroyed. The newest serves again first, as any kind of thing.
    spare: Vec<usize>,
    pub(crate) streams: HashMap<usize, Stream>,
    per_thread: HashMap<(ThreadId, usize), usize>,
    pub(crate) events: HashMap<usize, Recorded>,
    /// Blocks that the devices have handed out, by address.
    pub(crate) memory: BTreeMap<u64, Owned>,
    /// Blocks of `cuMemAlloc` that `cuMemFreeAsync` has freed, and where in their streams.
    pub(crate) freed_late: Vec<(u64, Event)>,
    pub(crate) stores: Stores,
    pub(crate) pages: crate::pages::Pages,
    pub(crate) hosts: crate::host::Hosts,
    /// Graphs, and graphs that can be launched, by handle.
    pub(crate) graphs: HashMap<usize, Arc<GraphMemory>>,
    /// Contexts whose memory others may reach: who, and whose.
    pub(crate) peers: HashSet<(usize, usize)>,
    /// How often the program holds the context of each device. It lives until the last release.
    pub(crate) retained: [usize; DEVICES],
    /// Whether the context of each device was reset since it was last retained.
    pub(crate) is_reset: [bool; DEVICES],
    /// Whether the calls of which the documentation leaves it open wait for the device:
    /// `cuMemFree`, `cuMemFreeHost`, `cuMemHostUnregister`, `cuMemUnmap` and `cuMemSetAccess`.
    pub(crate) calls_wait: bool,
}

#[derive(Clone, Copy)]
pub(crate) struct Stream {
    pub(crate) number: usize,
    pub(crate) device: usize,
    /// Whether it takes part in the implicit order of the legacy stream.
    pub(crate) blocking: bool,
}

/// An event, and its last recording if there was one.
pub(crate) struct Recorded {
    pub(crate) device: usize,
    pub(crate) event: Option<Event>,
}

/// A block, and the device that it is memory of.
pub(crate) struct Owned {
    pub(crate) bytes: u64,
    pub(crate) device: usize,
    pub(crate) origin: Origin,
}

/// Where a block comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// `cuMemAlloc`.
    Device,
    /// A memory pool, by its handle.
    Pool(usize),
    /// A node of a graph.
    Graph,
}

pub(crate) fn state() -> MutexGuard<'static, State> {
    static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| Mutex::new(State::new()));
    STATE.lock()
}

/// Calls that work in a context that is lost, or gone.
const NEED_NO_CONTEXT: [&str; 18] = [
    "cuInit",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetUuid_v2",
    "cuDeviceGetPCIBusId",
    "cuDeviceTotalMem_v2",
    "cuDeviceGetAttribute",
    "cuDeviceCanAccessPeer",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxGetState",
    "cuDevicePrimaryCtxReset_v2",
    "cuThreadExchangeStreamCaptureMode",
];

/// Whether the program has called `cuInit`, as a process does once.
pub(crate) static INITIALIZED: AtomicBool = AtomicBool::new(false);

/// Runs one call of the driver: counted, refused where the script or a lost context says so.
pub(crate) fn call(name: &'static str, work: impl FnOnce(&mut State) -> Result<(), Code>) -> Code {
    if IN_HOST_FUNCTION.get() {
        return code::NOT_PERMITTED; // the thread that runs the streams holds the machine
    }
    let state = &mut *state();
    let alive = match current() {
        _ if name != "cuInit" && !INITIALIZED.load(Relaxed) => Err(code::NOT_INITIALIZED),
        Ok(device) if !NEED_NO_CONTEXT.contains(&name) => state.is_alive(device),
        _ => Ok(()),
    };
    let done = match (state.script.gate(name), alive) {
        (_, Err(code)) | (Err(code), _) => Err(code),
        (Ok(Gate::Open), Ok(())) => work(state),
        (Ok(Gate::Pretend), Ok(())) => Ok(()),
    };
    done.err().unwrap_or(code::SUCCESS)
}

/// Turns the answer of the simulated device into the driver's.
pub(crate) fn said<T>(result: Result<T, DeviceError>) -> Result<T, Code> {
    result.map_err(code::of)
}

/// Returns the device whose context is current.
pub(crate) fn current() -> Result<usize, Code> {
    device_of(CURRENT.get())
}

pub(crate) fn context_of(device: usize) -> usize {
    CONTEXTS + device
}

pub(crate) fn device_of(context: usize) -> Result<usize, Code> {
    let device = context.checked_sub(CONTEXTS).filter(|device| *device < DEVICES);
    device.ok_or(code::INVALID_CONTEXT)
}

impl State {
    pub(crate) fn new() -> Self {
        let mut engine = Engine::new(u64::MAX);
        for _ in 1..DEVICES {
            engine.new_stream(); // the legacy streams of the others
        }
        Self {
            engine,
            script: Script::default(),
            lost: Lost::default(),
            captures: Captures::default(),
            handles: HANDLES,
            spare: Vec::new(),
            streams: HashMap::new(),
            per_thread: HashMap::new(),
            events: HashMap::new(),
            memory: BTreeMap::new(),
            freed_late: Vec::new(),
            stores: Stores::default(),
            pages: crate::pages::Pages::default(),
            hosts: crate::host::Hosts::default(),
            graphs: HashMap::new(),
            peers: HashSet::new(),
            retained: [0; DEVICES],
            is_reset: [false; DEVICES],
            calls_wait: std::env::var_os("CUDA_DOUBLE").is_none_or(|how| how != "at-once"),
        }
    }

    pub(crate) fn new_handle(&mut self) -> usize {
        self.spare.pop().unwrap_or_else(|| {
            self.handles += HANDLE_STEP;
            self.handles
        })
    }

    /// Whether a context takes calls.
    fn is_alive(&self, device: usize) -> Result<(), Code> {
        self.lost.check(device)?;
        if self.is_active(device) { Ok(()) } else { Err(code::CONTEXT_IS_DESTROYED) }
    }

    /// Whether the context of a device exists: a holder has not released it, and none has reset it.
    pub(crate) fn is_active(&self, device: usize) -> bool {
        self.retained[device] > 0 && !self.is_reset[device]
    }

    /// A context goes with its last release, and its memory, streams and events with it.
    pub(crate) fn destroy_context(&mut self, device: usize) {
        self.engine.synchronize_all();
        let gone: Vec<u64> = self
            .memory
            .iter()
            .filter(|(_, owned)| owned.device == device && owned.origin == Origin::Device)
            .map(|(at, _)| *at)
            .collect();
        for at in gone {
            self.memory.remove(&at);
            let _ = self.engine.free(at);
        }
        self.streams.retain(|_, stream| stream.device != device);
        self.events.retain(|_, event| event.device != device);
        self.peers.retain(|(who, whose)| *who != device && *whose != device);
    }

    /// Lets a handle serve again, for anything.
    pub(crate) fn destroyed(&mut self, handle: usize) {
        self.spare.push(handle);
    }

    /// Returns a stream that work may be given to: neither its context nor its capture is lost.
    pub(crate) fn stream(&mut self, handle: usize) -> Result<Stream, Code> {
        let stream = self.any_stream(handle)?;
        self.lost.check(stream.device)?;
        if stream.number < DEVICES {
            self.legacy_stream_is_used(stream.device)?;
        }
        self.is_valid(stream.number)?;
        Ok(stream)
    }

    /// Returns a stream in whatever state. What a small handle means depends on the caller.
    pub(crate) fn any_stream(&mut self, handle: usize) -> Result<Stream, Code> {
        if let Some(stream) = self.streams.get(&handle) {
            return Ok(*stream);
        }
        let device = current()?;
        let number = match handle {
            0 | LEGACY => device,
            PER_THREAD => {
                let of_thread = self.per_thread.entry((thread::current().id(), device));
                *of_thread.or_insert_with(|| self.engine.new_stream())
            }
            _ => return Err(code::INVALID_HANDLE),
        };
        Ok(Stream { number, device, blocking: true })
    }

    /// Returns whether any of these streams takes part in the legacy stream's implicit order.
    pub(crate) fn blocks_legacy(&self, mut numbers: impl Iterator<Item = usize>) -> bool {
        let non_blocking = self.streams.values().filter(|stream| !stream.blocking);
        let non_blocking: HashSet<usize> = non_blocking.map(|stream| stream.number).collect();
        numbers.any(|number| !non_blocking.contains(&number))
    }

    /// Returns the range of a copy or a fill. Addresses that the device may not use are refused.
    pub(crate) fn copied(&self, at: u64, bytes: usize, device: usize) -> Result<Range<u64>, Code> {
        let range = at..at.saturating_add(bytes as u64);
        if self.may_use(&range, device) { Ok(range) } else { Err(code::INVALID_VALUE) }
    }

    /// Returns whether all of a range is memory that a device may use.
    pub(crate) fn may_use(&self, range: &Range<u64>, device: usize) -> bool {
        self.hosts.holds(range) || (self.engine.holds(range) && self.is_memory_of(range, device))
    }

    fn is_memory_of(&self, range: &Range<u64>, device: usize) -> bool {
        match self.memory.range(..=range.start).next_back() {
            Some((at, owned)) if range.start < at + owned.bytes => {
                let reached = || match owned.origin {
                    Origin::Pool(pool) => self.stores.may_use(pool, device),
                    Origin::Device | Origin::Graph => self.peers.contains(&(device, owned.device)),
                };
                range.end <= at + owned.bytes && (owned.device == device || reached())
            }
            _ => self.pages.may_use(range, device),
        }
    }

    /// Returns the bytes of a device that are handed out.
    pub(crate) fn held(&self, device: usize) -> u64 {
        let blocks = self.memory.values().filter(|owned| owned.device == device);
        blocks.map(|owned| owned.bytes).sum::<u64>() + self.pages.held(device)
    }

    /// Returns the bytes of a device that are taken: handed out, or kept by a memory pool.
    pub(crate) fn taken(&self, device: usize) -> u64 {
        let whole =
            |owned: &&Owned| owned.device == device && !matches!(owned.origin, Origin::Pool(_));
        let blocks: u64 = self.memory.values().filter(whole).map(|owned| owned.bytes).sum();
        blocks + self.pages.held(device) + self.stores.reserved(device)
    }

    /// Takes a block of a device.
    pub(crate) fn allocate(
        &mut self,
        bytes: usize,
        device: usize,
        origin: Origin,
    ) -> Result<u64, Code> {
        if bytes == 0 {
            return Err(code::INVALID_VALUE);
        }
        let bytes = bytes as u64;
        if self.taken(device).saturating_add(bytes) > *CAPACITY {
            return Err(code::OUT_OF_MEMORY);
        }
        let at = said(self.engine.allocate(bytes))?;
        self.memory.insert(at, Owned { bytes, device, origin });
        Ok(at)
    }

    /// Runs a step that takes memory away. A step that takes memory from under work that uses it
    /// is the end of the context, as after a kernel that strays.
    pub(crate) fn taking(
        &mut self,
        device: usize,
        take: impl FnOnce(&mut Self) -> Result<(), Code>,
    ) -> Result<(), Code> {
        let before = self.engine.hazards().len();
        take(self)?;
        if self.engine.hazards().len() > before {
            self.lost.lose(device, code::ILLEGAL_ADDRESS);
            return Err(code::ILLEGAL_ADDRESS);
        }
        Ok(())
    }
}
