//! The number of a stream, and its end.

use crate::engine::Engine;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

/// The number of a stream of a simulated device. The stream ends when no clock and no
/// [`SimStream`](super::SimStream) has it any more.
#[derive(Debug)]
pub struct SimRaw {
    number: usize,
    engine: Weak<Mutex<Engine>>,
}

impl SimRaw {
    /// Creates a stream.
    pub(super) fn new(engine: &Arc<Mutex<Engine>>) -> Self {
        let number = engine.lock().new_stream();
        Self { number, engine: Arc::downgrade(engine) }
    }

    /// The default stream, which does not end.
    pub(super) fn default_stream() -> Self {
        Self { number: 0, engine: Weak::new() }
    }

    /// Returns the number. A later stream may have the number of one that has ended.
    #[must_use]
    pub fn number(&self) -> usize {
        self.number
    }
}

impl PartialEq<usize> for SimRaw {
    fn eq(&self, number: &usize) -> bool {
        self.number == *number
    }
}

impl Drop for SimRaw {
    fn drop(&mut self) {
        if let Some(engine) = self.engine.upgrade() {
            engine.lock().end_stream(self.number);
        }
    }
}
