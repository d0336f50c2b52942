//! Rules of captures: which calls they forbid, and how a broken capture ends.
//!
//! The rules are those of the CUDA Programming Guide, "Creating a Graph Using Stream Capture", and
//! of `cuThreadExchangeStreamCaptureMode`. A call that breaks one is refused, and the captures that
//! forbid it are invalid from then on: each use of their streams is refused too, until they end.

use crate::code::{self, Code};
use crate::state::State;
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_uint;
use std::thread::{self, ThreadId};

/// `CUstreamCaptureMode`.
pub(crate) const GLOBAL: c_uint = 0;
pub(crate) const RELAXED: c_uint = 2;

thread_local!(pub(crate) static MODE: Cell<c_uint> = const { Cell::new(GLOBAL) });

/// The captures that are not ended, by the number that the engine gives them.
#[derive(Default)]
pub(crate) struct Captures(HashMap<u64, Capture>);

pub(crate) struct Capture {
    pub(crate) device: usize,
    pub(crate) mode: c_uint,
    pub(crate) thread: ThreadId,
    pub(crate) invalid: bool,
    /// Blocks that its work allocates.
    pub(crate) memory: Vec<u64>,
}

impl Captures {
    pub(crate) fn begin(&mut self, number: u64, device: usize, mode: c_uint) {
        let (thread, memory) = (thread::current().id(), Vec::new());
        self.0.insert(number, Capture { device, mode, thread, invalid: false, memory });
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut Capture> {
        self.0.get_mut(&number)
    }

    pub(crate) fn end(&mut self, number: u64) -> Option<Capture> {
        self.0.remove(&number)
    }

    fn invalidate(&mut self, numbers: &[u64]) {
        for number in numbers {
            if let Some(capture) = self.0.get_mut(number) {
                capture.invalid = true;
            }
        }
    }

    fn that(&self, forbids: impl Fn(&Capture) -> bool) -> Vec<u64> {
        let captures = self.0.iter().filter(|(_, capture)| forbids(capture));
        captures.map(|(number, _)| *number).collect()
    }
}

impl State {
    /// Checks a call that the driver names unsafe beside a capture: it takes memory, gives it back,
    /// or asks after an event.
    pub(crate) fn unsafe_call(&mut self) -> Result<(), Code> {
        let (here, mode) = (thread::current().id(), MODE.get());
        self.forbidden(|capture| match mode {
            RELAXED => false,
            _ if capture.thread == here => capture.mode != RELAXED,
            GLOBAL => capture.mode == GLOBAL,
            _ => false,
        })
    }

    /// Checks a wait for all of a device.
    pub(crate) fn stops_device(&mut self, device: usize) -> Result<(), Code> {
        self.forbidden(|capture| capture.device == device)
    }

    /// Checks a wait for a stream, or a query.
    pub(crate) fn stops_stream(&mut self, number: usize) -> Result<(), Code> {
        match self.engine.capture_of(number) {
            None => Ok(()),
            Some(capture) => self.breaks(capture, code::STREAM_CAPTURE_UNSUPPORTED),
        }
    }

    /// Checks work for the legacy stream: it would order the blocking streams of its device.
    pub(crate) fn legacy_stream_is_used(&mut self, device: usize) -> Result<(), Code> {
        let forbid = self.captures_beside_legacy(device);
        self.broken(&forbid, code::STREAM_CAPTURE_IMPLICIT)
    }

    /// Returns the captures of blocking streams of a device.
    pub(crate) fn captures_beside_legacy(&self, device: usize) -> Vec<u64> {
        let of_device = self.captures.that(|capture| capture.device == device);
        let blocks = |capture: &u64| self.blocks_legacy(self.engine.streams_of(*capture));
        of_device.into_iter().filter(blocks).collect()
    }

    /// Checks that a stream is under no capture that is invalid.
    pub(crate) fn is_valid(&mut self, number: usize) -> Result<(), Code> {
        let capture = self.engine.capture_of(number);
        self.is_capture_valid(capture)
    }

    pub(crate) fn is_capture_valid(&mut self, capture: Option<u64>) -> Result<(), Code> {
        let capture = capture.and_then(|number| self.captures.get_mut(number));
        let invalid = capture.is_some_and(|capture| capture.invalid);
        if invalid { Err(code::STREAM_CAPTURE_INVALIDATED) } else { Ok(()) }
    }

    /// Refuses a call that breaks a capture.
    pub(crate) fn breaks(&mut self, capture: u64, code: Code) -> Result<(), Code> {
        self.broken(&[capture], code)
    }

    fn forbidden(&mut self, forbids: impl Fn(&Capture) -> bool) -> Result<(), Code> {
        let forbid = self.captures.that(forbids);
        self.broken(&forbid, code::STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Refuses a call that breaks these captures, if there are any.
    fn broken(&mut self, captures: &[u64], code: Code) -> Result<(), Code> {
        self.captures.invalidate(captures);
        if captures.is_empty() { Ok(()) } else { Err(code) }
    }
}
