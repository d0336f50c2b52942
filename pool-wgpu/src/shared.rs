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
use wgpu::{
    Buffer, BufferDescriptor, COPY_BUFFER_ALIGNMENT, CommandBuffer, CommandEncoderDescriptor,
    Device, ErrorFilter, PollType, Queue,
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

    /// A new buffer, checked before anybody gets it.
    pub(crate) fn create(&self, descriptor: &BufferDescriptor<'_>) -> Result<Buffer, DeviceError> {
        // The device's loss is told by a poll.
        let _ = self.device.poll(PollType::Poll);
        if self.is_lost() {
            return Err(lost());
        }
        // A buffer is returned even where it is invalid; the scopes tell, innermost first.
        let memory = self.device.push_error_scope(ErrorFilter::OutOfMemory);
        let validation = self.device.push_error_scope(ErrorFilter::Validation);
        let buffer = self.device.create_buffer(descriptor);
        let (invalid, out) = (now(validation.pop()).flatten(), now(memory.pop()).flatten());
        match (invalid, out) {
            (None, None) => Ok(buffer),
            (_, Some(_)) => Err(DeviceError::new(Why::OutOfMemory, "create_buffer", 0)),
            (Some(_), None) => Err(DeviceError::new(Why::Unsupported, "create_buffer", 0)),
        }
    }

    /// Clears, as one command buffer.
    pub(crate) fn clears(&self, owed: &[Owed]) -> Option<CommandBuffer> {
        if owed.is_empty() {
            return None;
        }
        let mut encoder = self.device.create_command_encoder(&CommandEncoderDescriptor::default());
        for Owed { buffer, bytes } in owed {
            encoder.clear_buffer(buffer, bytes.start, Some(bytes.end - bytes.start));
        }
        Some(encoder.finish())
    }

    /// Submits clears by themselves. Returns whether wgpu accepted them.
    pub(crate) fn clear_now(&self, owed: &[Owed]) -> bool {
        if owed.is_empty() {
            return true;
        }
        let validation = self.device.push_error_scope(ErrorFilter::Validation);
        self.queue.submit(self.clears(owed));
        now(validation.pop()).flatten().is_none()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // What the device still works on is alive by right.
        let rests = || self.device.poll(PollType::Poll).is_ok_and(|told| told.is_queue_empty());
        if cfg!(debug_assertions) && !self.is_lost() && rests() {
            for label in self.gone.alive(&self.device).unwrap_or_default() {
                log::warn!("a clone or a bind group of a pooled buffer outlives it: {label}");
            }
        }
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
