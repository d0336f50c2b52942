//! Counts the captures of each context, so that no wait for the whole context breaks one.

use crate::forks::forked;
use cudarc::driver::CudaContext;
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Weak};

/// The captures of one context that this crate has begun and not ended. All devices that share the
/// context share it.
#[derive(Debug, Default)]
pub(crate) struct Captures(RwLock<u32>);

/// One capture; its drop ends the count.
#[derive(Debug)]
pub(crate) struct Counted(Arc<Captures>);

impl Captures {
    pub(crate) fn of(context: &CudaContext) -> Arc<Self> {
        static ALL: LazyLock<Mutex<HashMap<usize, Weak<Captures>>>> = LazyLock::new(Mutex::default);
        let mut all = ALL.lock();
        all.retain(|_, captures| captures.strong_count() > 0);
        let known = all.entry(context.cu_ctx().addr()).or_default();
        known.upgrade().unwrap_or_else(|| {
            let new = Arc::new(Self::default());
            *known = Arc::downgrade(&new);
            new
        })
    }

    /// Counts a capture that begins. Waits for a call of [`Captures::without`] that is under way.
    pub(crate) fn begin(self: &Arc<Self>) -> Counted {
        *self.0.write() += 1;
        Counted(self.clone())
    }

    /// Runs a call that would break each capture, unless there is one. None begins meanwhile.
    pub(crate) fn without<T>(&self, call: impl FnOnce() -> T) -> Option<T> {
        let count = self.0.read();
        (*count == 0).then(call)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        // In a forked child a thread that is not there may hold the lock.
        if forked().is_none() {
            *self.0.0.write() -= 1;
        }
    }
}
