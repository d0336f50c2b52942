//! The clock of a wgpu device: which scopes are open, and so what is ordered for whom.
//!
//! A device has one queue, and what is submitted runs in that order. So a block is ordered for
//! everybody as soon as the scope that used it is submitted, and for nobody else before.

use crate::shared::{Owed, Shared, lost};
use parking_lot::Mutex;
use pool_core::{DeviceError, Order, StreamClock, Why};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use wgpu::PollType;

/// The scope that is always there: the queue's own writes, ahead of the next submission.
const QUEUE: u64 = 0;

/// A stream of a wgpu device: a scope, or the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WgpuStream {
    clock: u64,
    scope: u64,
}

/// The clock of a wgpu device.
#[derive(Clone)]
pub struct Scopes(Arc<Open>);

/// Which scopes are open.
struct Open {
    queue_stream: WgpuStream,
    shared: Arc<Shared>,
    next: AtomicU64,
    /// And what each owes ahead of its commands. Nobody takes another scope's: between taking and
    /// submitting, a block of it could come to somebody whose write is then cleared away.
    numbers: Mutex<BTreeMap<u64, Vec<Owed>>>,
}

impl Scopes {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let queue_stream = WgpuStream { clock: shared.id, scope: QUEUE };
        let (next, numbers) = (AtomicU64::new(QUEUE + 1), Mutex::default());
        Self(Arc::new(Open { queue_stream, shared, next, numbers }))
    }

    /// Opens a scope: its number.
    pub(crate) fn open(&self) -> u64 {
        let scope = self.0.next.fetch_add(1, Relaxed);
        self.0.numbers.lock().insert(scope, Vec::new());
        scope
    }

    /// Closes a scope. What it still owes is owed by commands that never ran, and must not be left
    /// out: its blocks may be used by others now. So it is open while anything is owed.
    pub(crate) fn close(&self, scope: u64) {
        loop {
            let owed = {
                let mut numbers = self.0.numbers.lock();
                match numbers.get_mut(&scope).map(std::mem::take) {
                    Some(owed) if !owed.is_empty() => owed,
                    _ => {
                        numbers.remove(&scope);
                        return;
                    }
                }
            };
            self.0.shared.clear_now(&owed);
        }
    }

    /// What an open scope owes, which the caller submits.
    pub(crate) fn take_owed(&self, scope: u64) -> Vec<Owed> {
        self.0.numbers.lock().get_mut(&scope).map(std::mem::take).unwrap_or_default()
    }

    pub(crate) fn stream(&self, scope: u64) -> WgpuStream {
        WgpuStream { clock: self.0.shared.id, scope }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    /// Clears a range ahead of what `on` does with it: with the scope's submission; for the queue
    /// now, since its own writes run ahead of every submission. Returns whether wgpu accepted it,
    /// as far as that is known.
    pub(crate) fn clear(&self, on: &WgpuStream, owed: Owed) -> bool {
        if let Some(of_scope) = self.0.numbers.lock().get_mut(&on.scope) {
            of_scope.push(owed);
            return true;
        }
        self.0.shared.clear_now(&[owed])
    }
}

impl StreamClock for Scopes {
    type Stream = WgpuStream;
    type Mark = u64;

    fn default_stream(&self) -> &WgpuStream {
        &self.0.queue_stream
    }
    /// A scope that was submitted or dropped is no stream any more: work for it would be recorded
    /// elsewhere.
    fn owns(&self, on: &WgpuStream) -> bool {
        let open = || self.0.numbers.lock().contains_key(&on.scope);
        on.clock == self.0.shared.id && (on.scope == QUEUE || open())
    }
    fn fault(&self) -> Option<DeviceError> {
        self.0.shared.is_lost().then(lost)
    }
    fn mark(&self, on: &WgpuStream) -> u64 {
        on.scope
    }
    /// A scope has one point: where it is submitted.
    fn latest(&self, mark: u64) -> u64 {
        mark
    }
    fn same_stream(&self, a: u64, b: u64) -> bool {
        a == b
    }
    fn later(&self, a: u64, _b: u64) -> u64 {
        a
    }
    fn is_later(&self, a: u64, b: u64) -> bool {
        a == b
    }
    /// One queue, so one lane.
    fn lane(&self, _mark: u64) -> u64 {
        0
    }
    fn is_ordered(&self, on: &WgpuStream, after: u64) -> bool {
        after == on.scope || self.is_submitted(after)
    }
    fn order(&self, on: &WgpuStream, after: &[u64]) -> Result<Order, DeviceError> {
        let ordered = after.iter().all(|mark| self.is_ordered(on, *mark));
        Ok(if ordered { Order::Ordered } else { Order::NotYet })
    }
    fn is_submitted(&self, after: u64) -> bool {
        after == QUEUE || !self.0.numbers.lock().contains_key(&after)
    }
    /// wgpu tells of the whole queue only, so nothing is remembered.
    fn is_seen_done(&self, _after: u64) -> bool {
        false
    }
    fn is_done(&self, after: u64) -> Result<bool, DeviceError> {
        if !self.is_submitted(after) {
            return Ok(false);
        }
        if self.0.shared.is_lost() {
            return Err(lost());
        }
        let status = self.0.shared.device.poll(PollType::Poll).map_err(|_| lost())?;
        Ok(status.is_queue_empty())
    }
    fn synchronize(&self, after: u64) -> Result<(), DeviceError> {
        if !self.is_submitted(after) {
            let code = i64::try_from(after).unwrap_or(-1);
            return Err(DeviceError::new(Why::NotSubmitted, "wait for an open scope", code));
        }
        if self.0.shared.is_lost() {
            return Err(lost());
        }
        self.0.shared.device.poll(PollType::wait_indefinitely()).map(|_| ()).map_err(|_| lost())
    }
}

impl fmt::Debug for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scopes").field("open", &self.0.numbers.lock().len()).finish_non_exhaustive()
    }
}
