//! The one machine that this driver runs: its devices, and what was handed out of them.

use crate::code::{self, Code};
use crate::script::{Gate, Script};
use parking_lot::{Mutex, MutexGuard};
use pool_core::DeviceError;
use pool_core::sim::engine::{Engine, Event, Graph};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::LazyLock;
use std::thread::{self, ThreadId};

/// Bytes of each device unless a test says otherwise.
pub(crate) const CAPACITY: u64 = 1 << 30;
/// Devices that there are.
pub(crate) const DEVICES: usize = 2;
/// Handles of primary contexts: this, and the device.
const CONTEXTS: usize = 0xC0_DE00;
/// Handles of streams, events, pools and graphs count from here; small ones have meanings.
const HANDLES: usize = 0x1000;
/// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

thread_local!(pub(crate) static CURRENT: Cell<usize> = const { Cell::new(0) });

pub(crate) struct State {
    pub(crate) engine: Engine,
    pub(crate) script: Script,
    handles: usize,
    pub(crate) streams: HashMap<usize, Stream>,
    per_thread: HashMap<(ThreadId, usize), usize>,
    /// Events by handle; none before its first recording.
    pub(crate) events: HashMap<usize, Option<Event>>,
    /// What each device has handed out, by address.
    pub(crate) memory: BTreeMap<u64, Owned>,
    /// Memory pools, by handle: their device.
    pub(crate) pools: HashMap<usize, usize>,
    /// Which devices may use which pool's memory, besides its own.
    pub(crate) pool_access: HashSet<(usize, usize)>,
    pub(crate) pages: crate::pages::Pages,
    pub(crate) hosts: crate::host::Hosts,
    /// Graphs, and graphs that can be launched, by handle.
    pub(crate) graphs: HashMap<usize, std::sync::Arc<Graph>>,
    /// Contexts whose memory others may reach: who, and whose.
    pub(crate) peers: HashSet<(usize, usize)>,
    /// Whether `cuMemFree` frees without waiting for the device.
    pub(crate) frees_at_once: bool,
}

pub(crate) struct Stream {
    pub(crate) number: usize,
    pub(crate) device: usize,
}

/// A block, and the device that it is memory of.
pub(crate) struct Owned {
    pub(crate) bytes: u64,
    pub(crate) device: usize,
    /// The pool that it came from.
    pub(crate) pool: Option<usize>,
}

pub(crate) fn state() -> MutexGuard<'static, State> {
    static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| Mutex::new(State::new()));
    STATE.lock()
}

/// One call of the driver: counted, refused where the script says so, and otherwise done.
pub(crate) fn call(name: &'static str, work: impl FnOnce(&mut State) -> Result<(), Code>) -> Code {
    let state = &mut *state();
    let done = match state.script.gate(name) {
        Ok(Gate::Open) => work(state),
        Ok(Gate::Pretend) => Ok(()),
        Err(code) => Err(code),
    };
    done.err().unwrap_or(code::SUCCESS)
}

/// The answer of the simulated device as the driver's.
pub(crate) fn said<T>(result: Result<T, DeviceError>) -> Result<T, Code> {
    result.map_err(code::of)
}

/// The device whose context is current.
pub(crate) fn current() -> Result<usize, Code> {
    let device = CURRENT.get().checked_sub(CONTEXTS).filter(|device| *device < DEVICES);
    device.ok_or(code::INVALID_CONTEXT)
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
            handles: HANDLES,
            streams: HashMap::new(),
            per_thread: HashMap::new(),
            events: HashMap::new(),
            memory: BTreeMap::new(),
            pools: HashMap::new(),
            pool_access: HashSet::new(),
            pages: crate::pages::Pages::default(),
            hosts: crate::host::Hosts::default(),
            graphs: HashMap::new(),
            peers: HashSet::new(),
            frees_at_once: std::env::var_os("CUDA_DOUBLE_FREE").is_some_and(|how| how == "at-once"),
        }
    }

    pub(crate) fn new_handle(&mut self) -> usize {
        self.handles += 1;
        self.handles
    }

    /// The number of a stream, and its device. What a small handle means depends on who asks.
    pub(crate) fn stream(&mut self, handle: usize) -> Result<(usize, usize), Code> {
        if let Some(stream) = self.streams.get(&handle) {
            return Ok((stream.number, stream.device));
        }
        let device = current()?;
        match handle {
            0 | LEGACY => Ok((device, device)),
            PER_THREAD => {
                let of_thread = self.per_thread.entry((thread::current().id(), device));
                Ok((*of_thread.or_insert_with(|| self.engine.new_stream()), device))
            }
            _ => Err(code::INVALID_HANDLE),
        }
    }

    /// Whether all of a range is memory that `device` may use. If not, the context is done for, as
    /// after a kernel that strays.
    pub(crate) fn check(
        &mut self,
        at: u64,
        bytes: usize,
        device: usize,
    ) -> Result<Range<u64>, Code> {
        let range = at..at.saturating_add(bytes as u64);
        if self.hosts.holds(&range) || (self.engine.holds(&range) && self.may_use(&range, device)) {
            return Ok(range);
        }
        self.script.lose(code::ILLEGAL_ADDRESS);
        Err(code::ILLEGAL_ADDRESS)
    }

    fn may_use(&self, range: &Range<u64>, device: usize) -> bool {
        match self.memory.range(..=range.start).next_back() {
            Some((at, owned)) if range.start < at + owned.bytes => {
                owned.device == device
                    || owned.pool.map_or_else(
                        || self.peers.contains(&(device, owned.device)),
                        |pool| self.pool_access.contains(&(pool, device)),
                    )
            }
            _ => self.pages.may_use(range, device),
        }
    }

    /// Bytes of a device that are handed out.
    pub(crate) fn held(&self, device: usize) -> u64 {
        let blocks = self.memory.values().filter(|owned| owned.device == device);
        blocks.map(|owned| owned.bytes).sum::<u64>() + self.pages.held(device)
    }

    /// Takes a block of a device, or of a pool on it.
    pub(crate) fn allocate(
        &mut self,
        bytes: usize,
        device: usize,
        pool: Option<usize>,
    ) -> Result<u64, Code> {
        if bytes == 0 {
            return Err(code::INVALID_VALUE);
        }
        let bytes = bytes as u64;
        if self.held(device).saturating_add(bytes) > CAPACITY {
            return Err(code::OUT_OF_MEMORY);
        }
        let at = said(self.engine.allocate(bytes))?;
        self.memory.insert(at, Owned { bytes, device, pool });
        Ok(at)
    }

    /// Under a capture, a call that would stop the device is refused to a thread that has not said
    /// that it knows what it does.
    pub(crate) fn not_in_capture(&self) -> Result<(), Code> {
        if self.engine.is_any_capturing() && !crate::graph::is_relaxed() {
            return Err(code::STREAM_CAPTURE_UNSUPPORTED);
        }
        Ok(())
    }
}
