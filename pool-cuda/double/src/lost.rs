//! Contexts that are lost: each later call of theirs returns the same code.

use crate::code::Code;
use crate::state::DEVICES;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The code of each device's context; 0 while it works. Clones are the same, so that late work can
/// lose its context when its turn comes.
#[derive(Clone, Default)]
pub(crate) struct Lost(Arc<[AtomicU32; DEVICES]>);

impl Lost {
    pub(crate) fn lose(&self, device: usize, code: Code) {
        // The first error stays.
        let _ = self.0[device].compare_exchange(0, code, Relaxed, Relaxed);
    }

    pub(crate) fn check(&self, device: usize) -> Result<(), Code> {
        match self.0[device].load(Relaxed) {
            0 => Ok(()),
            code => Err(code),
        }
    }

    pub(crate) fn mend(&self) {
        for code in self.0.iter() {
            code.store(0, Relaxed);
        }
    }
}
