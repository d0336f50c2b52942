//! The loss of the device: who knows of it, and who is told.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use wgpu::{Device, DeviceLostReason};

/// What the program calls when the device is lost.
pub(crate) type OnLost = Arc<dyn Fn(DeviceLostReason, &str) + Send + Sync>;

/// Whether a device is lost.
#[derive(Default)]
pub(crate) struct Loss {
    lost: AtomicBool,
    /// wgpu tells it by the device's one callback.
    is_called: AtomicBool,
    /// That callback is another's by now.
    replaced: AtomicBool,
    /// The program was told.
    told: AtomicBool,
    on_lost: Mutex<Option<OnLost>>,
}

/// The device's callback. Dropped before it was called, it was replaced.
struct Callback(Arc<Loss>);

impl Drop for Callback {
    fn drop(&mut self) {
        let replaced = !self.0.lost.load(Relaxed);
        self.0.replaced.fetch_or(replaced, Relaxed);
        self.0.is_called.fetch_and(!replaced, Relaxed);
    }
}

impl Loss {
    /// Takes the device's one callback for its loss.
    pub(crate) fn learn(self: &Arc<Self>, of: &Device) {
        self.is_called.store(true, Relaxed);
        let callback = Callback(self.clone());
        of.set_device_lost_callback(move |reason, message| callback.0.tell(reason, &message));
    }

    pub(crate) fn on_lost(&self, told: OnLost) {
        *self.on_lost.lock() = Some(told);
    }

    pub(crate) fn mark(&self) {
        self.lost.store(true, Relaxed);
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Relaxed)
    }

    /// Whether the callback was replaced since the last call.
    pub(crate) fn was_replaced(&self) -> bool {
        self.replaced.swap(false, Relaxed)
    }

    /// The device refuses calls, and wgpu has not called back: it does so at once where a driver fails, and late
    /// where the program destroyed the device.
    pub(crate) fn notice(&self) {
        let reason = match self.is_called.load(Relaxed) {
            true => DeviceLostReason::Destroyed,
            false => DeviceLostReason::Unknown,
        };
        self.tell(reason, "");
    }

    /// Tells the program, once.
    fn tell(&self, reason: DeviceLostReason, message: &str) {
        self.mark();
        let on_lost = self.on_lost.lock().clone();
        if let Some(on_lost) = on_lost
            && !self.told.swap(true, Relaxed)
        {
            on_lost(reason, message);
        }
    }
}
