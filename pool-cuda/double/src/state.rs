//! The one device that this driver has.

use crate::code::{self, Code};
use parking_lot::{Mutex, MutexGuard};
use pool_core::sim::engine::{Engine, Event};
use std::collections::HashMap;
use std::sync::LazyLock;

/// Bytes of the device unless a test says otherwise.
pub(crate) const CAPACITY: u64 = 1 << 30;

/// Handles of streams are their numbers above this.
pub(crate) const HANDLES: usize = 0x1000;

pub(crate) struct State {
    pub(crate) engine: Engine,
    /// Events by handle; none before its first recording.
    pub(crate) events: HashMap<usize, Option<Event>>,
    pub(crate) events_created: u64,
    pub(crate) streams: usize,
}

pub(crate) fn state() -> MutexGuard<'static, State> {
    static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| Mutex::new(State::new()));
    STATE.lock()
}

impl State {
    pub(crate) fn new() -> Self {
        let (engine, events) = (Engine::new(CAPACITY), HashMap::new());
        Self { engine, events, events_created: 0, streams: 1 }
    }

    /// The number of a stream: 0 for the null stream. Small handles have meanings of their own.
    pub(crate) fn known(&self, handle: usize) -> Result<usize, Code> {
        let number = if handle == 0 { Some(0) } else { handle.checked_sub(HANDLES) };
        number.filter(|number| *number < self.streams).ok_or(code::INVALID_HANDLE)
    }

    /// Whether all of a range is memory of the device.
    pub(crate) fn check(&self, at: u64, bytes: usize) -> Result<std::ops::Range<u64>, Code> {
        let range = at..at.saturating_add(bytes as u64);
        if self.engine.holds(&range) { Ok(range) } else { Err(code::ILLEGAL_ADDRESS) }
    }
}

/// The code of a call that may end early with one.
pub(crate) fn call(work: impl FnOnce(&mut State) -> Result<(), Code>) -> Code {
    work(&mut state()).err().unwrap_or(code::SUCCESS)
}
