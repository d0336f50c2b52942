//! The arrival of mapped memory: told by a callback, awaited by threads and tasks.

use crate::shared::{Shared, lost};
use parking_lot::{Condvar, Mutex};
use pool_core::DeviceError;
use std::collections::BTreeMap;
use std::mem::take;
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::Duration;
use wgpu::{BufferAsyncError, PollError, PollType, SubmissionIndex};

/// Time that another thread, which has polled, gets to run a callback.
const GRACE: Duration = Duration::from_millis(100);

/// How often it gets that time where the device has done the submission, so that the callback is on its
/// way: behind callbacks of the program that take long, or behind the one that waits.
const TURNS: u32 = 10;

/// Time between two looks at whether memory has arrived, where its submission is not known.
const TURN: Duration = Duration::from_millis(1);

/// How a mapping ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Mapped,
    /// wgpu refused it.
    Refused,
    /// The commands that it was to follow were dropped.
    NotSubmitted,
}

/// The end of a mapping, told by a callback. It holds no buffer, because a callback lives as long
/// as the buffer that it belongs to and would keep the device.
#[derive(Debug, Default)]
pub(crate) struct Arrival {
    outcome: Mutex<Option<Outcome>>,
    changed: Condvar,
    /// The newest waker of each who waits.
    wakers: Mutex<BTreeMap<u64, Waker>>,
    /// The submission that the memory arrives after, where it is known.
    by: OnceLock<SubmissionIndex>,
}

/// Mappings that have ended, by their numbers, until they are collected: so nobody looks at those that have not.
#[derive(Default)]
pub(crate) struct Ended(Mutex<Vec<(u64, Outcome)>>);

/// The end that a callback holds. A drop without a call tells that the callback will never run.
pub(crate) struct Tell {
    arrival: Arc<Arrival>,
    how: Outcome,
    collected: Option<(Arc<Ended>, u64)>,
}

impl Arrival {
    pub(crate) fn tell(self: &Arc<Self>) -> Tell {
        Tell { arrival: self.clone(), how: Outcome::NotSubmitted, collected: None }
    }

    pub(crate) fn outcome(&self) -> Option<Outcome> {
        *self.outcome.lock()
    }

    /// The submission is known: a callback will come.
    pub(crate) fn submitted(&self, by: &SubmissionIndex) {
        let _ = self.by.set(by.clone());
    }

    pub(crate) fn is_submitted(&self) -> bool {
        self.by.get().is_some()
    }

    /// Wakes the task of this waker once the outcome is there, and not that of an earlier one of who waits.
    pub(crate) fn wake_later(&self, who: u64, waker: &Waker) {
        let waker = waker.clone(); // foreign code, as the drop of the one before: not under the lock
        let before = self.wakers.lock().insert(who, waker);
        drop(before);
    }

    /// Blocks until the device has done the submission that this arrival follows, and its callback
    /// has run. Where the program submits, the submission is not known: then it looks every
    /// millisecond, and returns `None` if all that is submitted did not bring it; a patient caller gives another
    /// thread's poll some time to tell. It returns `None` too where the callback did not run for a second
    /// after the device was done: wgpu calls one after the other, so inside of one of them no other runs.
    ///
    /// # Errors
    ///
    /// [`Why::Lost`](pool_core::Why::Lost) if the device is lost.
    pub(crate) fn wait_for_device(
        &self,
        shared: &Shared,
        patient: bool,
    ) -> Result<Option<Outcome>, DeviceError> {
        let (device, known) = (&shared.device, self.by.get());
        // Where the submission is not known, all that is submitted so far is waited for, and the memory
        // looked for in between; without an end of its own a busy queue would be waited for without end.
        let until = known.cloned().unwrap_or_else(|| shared.queue.submit([]));
        let (timeout, is_known) = (known.is_none().then_some(TURN), known.is_some());
        while self.outcome().is_none() {
            let submission_index = Some(until.clone());
            let polled = match device.poll(PollType::Wait { submission_index, timeout }) {
                // wgpu refused the submission. It maps the memory all the same, once earlier
                // submissions that use it are done.
                Err(PollError::WrongSubmissionIndex(..)) => {
                    device.poll(PollType::wait_indefinitely())
                }
                polled => polled,
            };
            match polled {
                Err(PollError::Timeout) => {}
                polled => {
                    polled.map_err(|_| lost())?;
                    break;
                }
            }
        }
        // Another thread's poll may have taken the callback, and not called it yet.
        let turns = match (is_known, patient) {
            (true, _) => TURNS,
            (false, true) => 1,
            (false, false) => 0,
        };
        let mut outcome = self.outcome.lock();
        for _ in 0..turns {
            if outcome.is_some() || !self.changed.wait_for(&mut outcome, GRACE).timed_out() {
                break;
            }
        }
        Ok(*outcome)
    }

    fn end(&self, how: Outcome) {
        self.outcome.lock().get_or_insert(how);
        self.changed.notify_all();
        let wakers = take(&mut *self.wakers.lock());
        wakers.into_values().for_each(Waker::wake);
    }
}

impl Ended {
    /// Takes those that have ended since the last call.
    pub(crate) fn collect(&self) -> Vec<(u64, Outcome)> {
        take(&mut *self.0.lock())
    }
}

impl Tell {
    /// Its end is among `ended`, too, by this number, before anybody who waits for it goes on.
    pub(crate) fn collected(mut self, ended: &Arc<Ended>, number: u64) -> Self {
        self.collected = Some((ended.clone(), number));
        self
    }

    /// The callback was called.
    pub(crate) fn mapped(mut self, result: &Result<(), BufferAsyncError>) {
        self.how = if result.is_ok() { Outcome::Mapped } else { Outcome::Refused };
    }
}

impl Drop for Tell {
    fn drop(&mut self) {
        if let Some((ended, number)) = &self.collected {
            ended.0.lock().push((*number, self.how));
        }
        self.arrival.end(self.how);
    }
}
