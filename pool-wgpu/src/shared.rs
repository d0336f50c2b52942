//! What all of one device's allocators and scopes share: the device, its queue, how ranges are
//! cleared, and whether it is lost.

use crate::gone::Gone;
use pool_core::{DeviceError, Why};
use std::future::Future;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use wgpu::{
    Buffer, BufferDescriptor, COPY_BUFFER_ALIGNMENT, CommandBuffer, CommandEncoderDescriptor,
    Device, ErrorFilter, PollError, PollType, Queue, SubmissionIndex,
};

pub(crate) struct Shared {
    /// Numbers are never used twice.
    pub(crate) id: u64,
    pub(crate) device: Device,
    pub(crate) queue: Queue,
    pub(crate) gone: Gone,
    lost: Arc<AtomicBool>,
}

/// A range that must read as zeroes before its scope's commands run.
pub(crate) struct Owed {
    buffer: Buffer,
    bytes: Range<u64>,
}

impl Owed {
    /// Whole words, the rounding tail among them.
    pub(crate) fn new(buffer: &Buffer, bytes: Range<u64>) -> Self {
        let end = bytes.end.next_multiple_of(COPY_BUFFER_ALIGNMENT).min(buffer.size());
        Self { buffer: buffer.clone(), bytes: bytes.start..end }
    }
}

impl Shared {
    pub(crate) fn new(device: Device, queue: Queue) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let lost = Arc::new(AtomicBool::new(false));
        let told = lost.clone();
        device.set_device_lost_callback(move |_, _| told.store(true, Relaxed));
        let id = NEXT.fetch_add(1, Relaxed);
        Self { id, device, queue, gone: Gone::default(), lost }
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Relaxed)
    }

    /// An error once the device is lost.
    pub(crate) fn living(&self) -> Result<(), DeviceError> {
        if self.is_lost() { Err(lost()) } else { Ok(()) }
    }

    /// A new buffer, checked before anybody gets it.
    pub(crate) fn create(&self, descriptor: &BufferDescriptor<'_>) -> Result<Buffer, DeviceError> {
        // The device's loss is told by a poll.
        let _ = self.device.poll(PollType::Poll);
        self.living()?;
        // A buffer is returned even where it is invalid.
        let ((buffer, invalid), out) = self.refused(ErrorFilter::OutOfMemory, || {
            self.refused(ErrorFilter::Validation, || self.device.create_buffer(descriptor))
        });
        match (invalid, out) {
            (false, false) => Ok(buffer),
            (_, true) => Err(DeviceError::new(Why::OutOfMemory, "create_buffer", 0)),
            (true, false) => Err(DeviceError::new(Why::Unsupported, "create_buffer", 0)),
        }
    }

    /// A call, and whether wgpu refused it. A browser would tell too late, so there its own handler
    /// is told instead.
    pub(crate) fn refused<T>(&self, filter: ErrorFilter, call: impl FnOnce() -> T) -> (T, bool) {
        if cfg!(target_family = "wasm") {
            return (call(), false);
        }
        let scope = self.device.push_error_scope(filter);
        let made = call();
        (made, now(scope.pop()).flatten().is_some())
    }

    /// Whether the device was given a submission; a refused one has an index too, which the next
    /// one makes look right: where another thread submits in between, nobody can tell.
    pub(crate) fn has(&self, submission: &SubmissionIndex) -> bool {
        let (submission_index, timeout) = (Some(submission.clone()), Some(Duration::ZERO));
        let asked = self.device.poll(PollType::Wait { submission_index, timeout });
        !matches!(asked, Err(PollError::WrongSubmissionIndex(..)))
    }

    /// Clears, as one command buffer.
    fn clears(&self, owed: &[Owed]) -> CommandBuffer {
        let mut encoder = self.device.create_command_encoder(&CommandEncoderDescriptor::default());
        for Owed { buffer, bytes } in owed {
            encoder.clear_buffer(buffer, bytes.start, Some(bytes.end - bytes.start));
        }
        encoder.finish()
    }

    /// Submits clears by themselves. Returns whether wgpu accepted all of them.
    pub(crate) fn clear_now(&self, owed: &[Owed]) -> bool {
        if owed.is_empty() || self.clear_together(owed) {
            return true;
        }
        // A buffer that cannot be cleared must not take the others with it.
        for one in owed.chunks(1).filter(|one| one.len() < owed.len()) {
            self.clear_together(one);
        }
        false
    }

    fn clear_together(&self, owed: &[Owed]) -> bool {
        !self.refused(ErrorFilter::Validation, || self.queue.submit([self.clears(owed)])).1
    }
}

pub(crate) fn lost() -> DeviceError {
    DeviceError::new(Why::Lost, "the wgpu device", 0)
}

/// What a future gives at once: native devices do not make anybody wait here.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}
