//! Clones that outlive their pooled buffers, found in debug builds by wgpu's report of what it
//! holds. That report names allocations, so each buffer is given a name of its own; whether a
//! clone is alive while the buffer is pooled, nothing tells.

use parking_lot::Mutex;
use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use wgpu::Device;

/// Names of buffers that went back to wgpu; none in release builds.
#[derive(Default)]
pub(crate) struct Gone {
    next: AtomicU64,
    labels: Mutex<BTreeSet<String>>,
}

impl Gone {
    /// A name that no other buffer of the device has.
    pub(crate) fn label(&self, bytes: u64) -> Option<String> {
        let number = || self.next.fetch_add(1, Relaxed);
        cfg!(debug_assertions).then(|| format!("bucketpool {}: {bytes} bytes", number()))
    }

    /// A buffer goes back to wgpu.
    pub(crate) fn note(&self, label: Option<String>) {
        self.labels.lock().extend(label);
    }

    /// Which of those are alive; the others are forgotten. `None` where nobody can know.
    pub(crate) fn alive(&self, device: &Device) -> Option<Vec<String>> {
        if !cfg!(debug_assertions) {
            return None;
        }
        let report = device.generate_allocator_report()?;
        let held: HashSet<String> = report.allocations.into_iter().map(|held| held.name).collect();
        let mut labels = self.labels.lock();
        labels.retain(|label| held.contains(label));
        Some(labels.iter().cloned().collect())
    }
}
