//! Scopes: the streams of wgpu, and the clock that says which of them have reached the device.
//!
//! A device has one queue, and what is submitted runs in that order. So a block is ordered for
//! everybody as soon as the scope that used it is submitted, and for nobody else before.

use parking_lot::Mutex;
use pool_core::{DeviceError, Order, StreamClock, Why};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use wgpu::{CommandEncoder, CommandEncoderDescriptor, Device, PollType, Queue, SubmissionIndex};

/// The scope that is always there: the queue's own writes, ahead of the next submission.
const QUEUE: u64 = 0;

/// A stream of a wgpu device: a scope, or the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WgpuStream {
    clock: u64,
    scope: u64,
}

/// Commands that are submitted together. Dropped without [`Scope::submit`] they never run, and what
/// they used is idle again.
pub struct Scope {
    id: u64,
    encoder: Option<CommandEncoder>,
    shared: Arc<Shared>,
}

/// The clock of a wgpu device.
#[derive(Clone)]
pub struct Scopes(Arc<Shared>);

struct Shared {
    id: u64,
    queue_stream: WgpuStream,
    device: Device,
    queue: Queue,
    next: AtomicU64,
    open: Mutex<BTreeSet<u64>>,
}

impl Scope {
    /// The stream to allocate on, and to use buffers on, for the commands of this scope.
    #[must_use]
    pub fn stream(&self) -> WgpuStream {
        WgpuStream { clock: self.shared.id, scope: self.id }
    }

    /// The one encoder of this scope, made when it is first asked for. It is lent: whoever swaps it
    /// for another's takes the commands out of their scope's order.
    #[must_use]
    pub fn encoder(&mut self) -> &mut CommandEncoder {
        let device = &self.shared.device;
        let fresh = || device.create_command_encoder(&CommandEncoderDescriptor::default());
        self.encoder.get_or_insert_with(fresh)
    }

    /// Submits the commands.
    pub fn submit(mut self) -> SubmissionIndex {
        let commands = self.encoder.take().map(CommandEncoder::finish);
        // Submitted first and no longer open after that, in `drop`: whoever looks in between finds
        // the scope open, which is only cautious.
        self.shared.queue.submit(commands)
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        self.shared.open.lock().remove(&self.id);
    }
}

impl Scopes {
    pub(crate) fn new(device: Device, queue: Queue) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Relaxed);
        let queue_stream = WgpuStream { clock: id, scope: QUEUE };
        let (next, open) = (AtomicU64::new(QUEUE + 1), Mutex::default());
        Self(Arc::new(Shared { id, queue_stream, device, queue, next, open }))
    }

    pub(crate) fn open(&self) -> Scope {
        let id = self.0.next.fetch_add(1, Relaxed);
        self.0.open.lock().insert(id);
        Scope { id, encoder: None, shared: self.0.clone() }
    }

    pub(crate) fn device(&self) -> &Device {
        &self.0.device
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.0.queue
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
        let open = || self.0.open.lock().contains(&on.scope);
        on.clock == self.0.id && (on.scope == QUEUE || open())
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
        after == QUEUE || !self.0.open.lock().contains(&after)
    }
    /// wgpu tells of the whole queue only, so nothing is remembered.
    fn is_seen_done(&self, _after: u64) -> bool {
        false
    }
    fn is_done(&self, after: u64) -> Result<bool, DeviceError> {
        if !self.is_submitted(after) {
            return Ok(false);
        }
        let status = self.0.device.poll(PollType::Poll).map_err(|_| lost())?;
        Ok(status.is_queue_empty())
    }
    fn synchronize(&self, after: u64) -> Result<(), DeviceError> {
        if !self.is_submitted(after) {
            let code = i64::try_from(after).unwrap_or(-1);
            return Err(DeviceError::new(Why::NotSubmitted, "wait for an open scope", code));
        }
        self.0.device.poll(PollType::wait_indefinitely()).map(|_| ()).map_err(|_| lost())
    }
}

fn lost() -> DeviceError {
    DeviceError::new(Why::Lost, "Device::poll", 0)
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("id", &self.id).finish_non_exhaustive()
    }
}

impl fmt::Debug for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scopes").field("open", &self.0.open.lock().len()).finish_non_exhaustive()
    }
}
