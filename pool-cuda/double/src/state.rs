//! The one device that this driver has.

use crate::code::{self, Code};
use parking_lot::{Mutex, MutexGuard};
use pool_core::sim::engine::{Engine, Event};
use std::collections::HashMap;
use std::sync::LazyLock;

/// Bytes of the device unless a test says otherwise.
pub(crate) const CAPACITY: u64 = 1 << 30;

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

    /// The handle of a stream is its number, so the null stream is the default one.
    pub(crate) fn known(&self, stream: usize) -> Result<usize, Code> {
        if stream < self.streams { Ok(stream) } else { Err(code::INVALID_HANDLE) }
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
