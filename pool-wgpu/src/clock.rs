//! The clock of a wgpu device: which scopes are open, and so what is ordered for whom.
//!
//! A device has one queue, and what is submitted runs in that order. So a block is ordered for
//! all scopes as soon as the scope that used it is submitted, and for no other scope before.

use crate::open::{NotOpen, OpenScopes, QUEUE, point_of};
use crate::receipts::Receipts;
use crate::shared::{Shared, lost};
use crate::signals::Signals;
use crate::zeroing::ToZero;
use pool_core::port::Order;
use pool_core::{DeviceError, StreamClock, Why};
use std::fmt;
use std::sync::{Arc, Weak};
use wgpu::{CommandEncoder, PollType};

/// A stream of a wgpu device: a scope, or the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WgpuStream {
    clock: u64,
    scope: u64,
    runs: Runs,
}

/// What runs in a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runs {
    /// Its commands.
    Commands,
    /// Zeroing ahead of the commands of its present step.
    Ahead,
    /// Commands with memory that the scope had before.
    Again,
}

/// The clock of a wgpu device.
#[derive(Clone)]
pub struct Scopes(Arc<Inner>);

struct Inner {
    queue_stream: WgpuStream,
    shared: Arc<Shared>,
    open: Arc<OpenScopes>,
    receipts: Receipts,
    signals: Arc<Signals>,
}

impl WgpuStream {
    /// Whether it is the queue's own stream.
    pub(crate) fn is_queue(self) -> bool {
        self.scope == QUEUE
    }

    /// The number of its scope.
    pub(crate) fn scope(self) -> u64 {
        self.scope
    }
}

impl Scopes {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let queue_stream = WgpuStream { clock: shared.id, scope: QUEUE, runs: Runs::Commands };
        let receipts = Receipts::new(shared.clone());
        let (open, signals) = (Arc::default(), Arc::default());
        Self(Arc::new(Inner { queue_stream, shared, open, receipts, signals }))
    }

    pub(crate) fn stream(&self, scope: u64) -> WgpuStream {
        WgpuStream { clock: self.0.shared.id, scope, runs: Runs::Commands }
    }

    /// Whether a stream is of this device.
    pub(crate) fn made(&self, on: &WgpuStream) -> bool {
        on.clock == self.0.shared.id
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    pub(crate) fn open_scopes(&self) -> &Arc<OpenScopes> {
        &self.0.open
    }

    pub(crate) fn receipts(&self) -> &Receipts {
        &self.0.receipts
    }

    /// Closes a scope once its prologue, if it has one, and these commands are submitted or dropped.
    pub(crate) fn close_after(
        &self,
        scope: u64,
        both: (Option<&CommandEncoder>, &CommandEncoder),
    ) -> Result<(), DeviceError> {
        self.0.signals.close_after(&self.0.shared, &self.0.open, scope, both)
    }

    /// Learns which prologues were submitted: wgpu tells it from inside a poll.
    pub(crate) fn learn_of_submissions(&self) {
        if self.0.open.any_yielded() {
            self.0.shared.poll();
        }
    }

    /// Closes a scope whose commands will never be submitted, or were.
    pub(crate) fn close(&self, scope: u64) {
        self.0.open.close(scope, &self.0.shared);
    }

    /// Zeroes a range ahead of what `on` does with it: with the scope's submission; for the queue
    /// now, since its own writes run ahead of every submission. Returns whether wgpu accepted it,
    /// as far as that is known.
    pub(crate) fn zero(&self, on: &WgpuStream, to_zero: ToZero) -> bool {
        match self.0.open.add_zeroing(on.scope, to_zero) {
            Ok(()) => true,
            Err((to_zero, NotOpen::Closed)) => {
                self.0.shared.zero_now(&[to_zero], false) && !self.0.shared.notice_loss()
            }
            // Its prologue would not zero this, and zeroing now could come too early.
            Err((_, NotOpen::Yielded)) => false,
        }
    }
}

impl StreamClock for Scopes {
    type Stream = WgpuStream;
    type Mark = u64;
    const UNTIL_DROP: bool = true;
    const HAS_STREAMS: bool = false;

    fn default_stream(&self) -> &WgpuStream {
        &self.0.queue_stream
    }
    /// A scope that has ended is no stream any more: work for it would be recorded elsewhere.
    fn owns(&self, on: &WgpuStream) -> bool {
        on.clock == self.0.shared.id && (on.is_queue() || self.0.open.takes_work(on.scope))
    }
    fn fault(&self) -> Option<DeviceError> {
        self.0.shared.is_lost().then(lost)
    }
    fn ahead_of(&self, on: &WgpuStream) -> WgpuStream {
        WgpuStream { runs: Runs::Ahead, ..*on }
    }
    /// A pass may be open that uses what was dropped. And the uploads of a prologue run ahead of all commands
    /// of the program's own encoder, so a block that these commands use may not be uploaded to for its next
    /// owner in the same prologue.
    fn reuse_of(&self, on: &WgpuStream) -> Option<WgpuStream> {
        (!on.is_queue()).then_some(WgpuStream { runs: Runs::Again, ..*on })
    }
    /// A mark is a scope, and a point of it. What asks for memory by another part has reached none.
    fn mark(&self, on: &WgpuStream) -> u64 {
        let scope = if on.runs == Runs::Commands { on.scope } else { QUEUE };
        self.0.open.mark(scope)
    }
    fn latest(&self, mark: u64) -> u64 {
        self.0.open.mark(point_of(mark).0)
    }
    fn same_stream(&self, a: u64, b: u64) -> bool {
        point_of(a).0 == point_of(b).0
    }
    fn is_on(&self, on: &WgpuStream, mark: u64) -> bool {
        let scope = if on.runs == Runs::Commands { on.scope } else { QUEUE };
        point_of(mark).0 == scope
    }
    fn later(&self, a: u64, b: u64) -> u64 {
        a.max(b)
    }
    fn is_later(&self, a: u64, b: u64) -> bool {
        self.same_stream(a, b) && a >= b
    }
    /// One queue, so one stream id.
    fn stream_id(&self, _mark: u64) -> u64 {
        0
    }
    fn is_ordered(&self, on: &WgpuStream, after: u64) -> bool {
        let (scope, point) = point_of(after);
        match on.runs {
            _ if on.scope != scope => self.is_submitted(after),
            _ if scope == QUEUE => true,
            Runs::Commands => true,
            Runs::Ahead => self.0.open.is_before_step(scope, point),
            Runs::Again => self.0.open.may_have_again(scope, point),
        }
    }
    fn order(&self, on: &WgpuStream, after: &[u64]) -> Result<Order, DeviceError> {
        let ordered = || after.iter().all(|mark| self.is_ordered(on, *mark));
        let ordered = ordered()
            || {
                self.learn_of_submissions();
                ordered()
            }
            || {
                // Another thread's poll may have taken the word of a submission, and not passed it on yet.
                for mark in after {
                    self.0.signals.look(&self.0.open, point_of(*mark).0);
                }
                ordered()
            };
        Ok(if ordered { Order::Ordered } else { Order::NotYet })
    }
    fn is_submitted(&self, after: u64) -> bool {
        let (scope, point) = point_of(after);
        scope == QUEUE || self.0.open.is_submitted(scope, point)
    }
    fn tell_of_submissions(&self, told: Weak<dyn Fn() + Send + Sync>) {
        self.0.open.tell_later(told);
    }
    /// wgpu tells of the whole queue only, so nothing is remembered.
    fn is_seen_done(&self, _after: u64) -> bool {
        false
    }
    /// A scope that is closed was submitted, so that all that is submitted later comes after it, or
    /// never runs.
    fn is_obsolete(&self, mark: u64) -> bool {
        let scope = point_of(mark).0;
        scope != QUEUE && self.0.open.is_closed(scope)
    }
    /// What was handed over may be submitted, though the pool has not heard of it.
    fn may_have_ended(&self, mark: u64) -> bool {
        let scope = point_of(mark).0;
        scope != QUEUE && self.0.open.may_have_ended(scope)
    }
    /// A program keeps a mesh and its bind group, and records them in each frame.
    fn open_marks(&self, since: u64) -> Vec<u64> {
        self.0.open.marks_since(point_of(since).0)
    }
    /// In a browser a poll tells nothing, so it is refused there.
    fn is_done(&self, after: u64) -> Result<bool, DeviceError> {
        if !self.is_submitted(after) {
            return Ok(false);
        }
        self.0.shared.living()?;
        no_browser("ask in a browser whether work is done")?;
        let status = self.0.shared.device.poll(PollType::Poll).map_err(|_| lost())?;
        Ok(status.is_queue_empty())
    }
    fn synchronize(&self, after: u64) -> Result<(), DeviceError> {
        if !self.is_submitted(after) {
            let code = i64::try_from(after).unwrap_or(-1);
            return Err(DeviceError::new(Why::NotSubmitted, "wait for an open scope").code(code));
        }
        self.0.shared.living()?;
        no_browser("wait in a browser, where a program must not block")?;
        self.0.shared.device.poll(PollType::wait_indefinitely()).map(|_| ()).map_err(|_| lost())
    }
}

fn no_browser(call: &'static str) -> Result<(), DeviceError> {
    match cfg!(target_family = "wasm") {
        true => Err(DeviceError::new(Why::Unsupported, call)),
        false => Ok(()),
    }
}

impl fmt::Debug for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scopes").field("open", &self.0.open.count()).finish_non_exhaustive()
    }
}
