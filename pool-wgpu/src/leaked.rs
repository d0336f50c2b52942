//! Clones that outlive their pooled buffers, found in debug builds by wgpu's report of what it
//! holds. That report names allocations, so each buffer has its own name; whether a clone is alive
//! while the buffer is pooled, nothing tells.

use parking_lot::Mutex;
use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use wgpu::Device;

/// Names of buffers that went back to wgpu; none in release builds.
#[derive(Default)]
pub(crate) struct LeakedClones(Mutex<BTreeSet<String>>);

/// A name that no other buffer has.
pub(crate) fn label(of: &str, bytes: u64) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{of} {}: {bytes} bytes", NEXT.fetch_add(1, Relaxed))
}

impl LeakedClones {
    /// A buffer went back to wgpu. Where many did, those without a clone are forgotten.
    pub(crate) fn note(&self, label: String, device: &Device) {
        if !cfg!(debug_assertions) {
            return;
        }
        let count = {
            let mut labels = self.0.lock();
            labels.insert(label);
            labels.len()
        };
        if count >= 1024 && count.is_power_of_two() {
            let _ = self.alive(device);
        }
    }

    /// Returns those that are alive; the others are forgotten. `None` where wgpu does not tell.
    pub(crate) fn alive(&self, device: &Device) -> Option<Vec<String>> {
        if !cfg!(debug_assertions) {
            return None;
        }
        // The names are read before the report: a buffer that goes back in between is asked about
        // next time.
        let went: Vec<String> = self.0.lock().iter().cloned().collect();
        let Some(report) = device.generate_allocator_report() else {
            self.0.lock().clear();
            return None;
        };
        let held: HashSet<String> = report.allocations.into_iter().map(|held| held.name).collect();
        let (alive, freed): (Vec<_>, Vec<_>) = went.into_iter().partition(|l| held.contains(l));
        let mut labels = self.0.lock();
        for label in &freed {
            labels.remove(label);
        }
        Some(alive)
    }
}
