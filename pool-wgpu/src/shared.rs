//! What all of one device's allocators and scopes share: the device, its queue, clears that are
//! owed, and whether it is lost.

use parking_lot::Mutex;
use std::future::Future;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use wgpu::{
    Buffer, COPY_BUFFER_ALIGNMENT, CommandBuffer, CommandEncoderDescriptor, Device, ErrorFilter,
    Queue,
};

pub(crate) struct Shared {
    /// Numbers are never used twice.
    pub(crate) id: u64,
    pub(crate) device: Device,
    pub(crate) queue: Queue,
    /// Ranges that must read as zeroes before the next submission does anything.
    clears: Mutex<Vec<(Buffer, Range<u64>)>>,
    lost: Arc<AtomicBool>,
}

impl Shared {
    pub(crate) fn new(device: Device, queue: Queue) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let lost = Arc::new(AtomicBool::new(false));
        let told = lost.clone();
        device.set_device_lost_callback(move |_, _| told.store(true, Relaxed));
        let (id, clears) = (NEXT.fetch_add(1, Relaxed), Mutex::default());
        Self { id, device, queue, clears, lost }
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Relaxed)
    }

    /// Owes a range its zeroes. Whole words are cleared, the rounding tail among them.
    pub(crate) fn owe_clear(&self, buffer: &Buffer, bytes: Range<u64>) {
        let end = bytes.end.next_multiple_of(COPY_BUFFER_ALIGNMENT).min(buffer.size());
        self.clears.lock().push((buffer.clone(), bytes.start..end));
    }

    /// What is owed, as one command buffer that goes ahead of all else.
    pub(crate) fn clears(&self) -> Option<CommandBuffer> {
        let owed = std::mem::take(&mut *self.clears.lock());
        if owed.is_empty() {
            return None;
        }
        let mut encoder = self.device.create_command_encoder(&CommandEncoderDescriptor::default());
        for (buffer, Range { start, end }) in owed {
            encoder.clear_buffer(&buffer, start, Some(end - start));
        }
        Some(encoder.finish())
    }

    /// Clears now what is owed. Returns whether wgpu accepted it.
    pub(crate) fn clear_now(&self) -> bool {
        let validation = self.device.push_error_scope(ErrorFilter::Validation);
        if let Some(clears) = self.clears() {
            self.queue.submit([clears]);
        }
        now(validation.pop()).flatten().is_none()
    }
}

/// What a future gives at once: native devices do not make anybody wait here.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}
