//! Blocks that a pool gave back while another library captured a stream that used them. The driver
//! would count a wait for that stream as part of the capture, so they are freed after it.

use crate::events::CudaDriver;
use parking_lot::Mutex;
use pool_core::stream::{Mark, Timeline};
use pool_core::{DeviceError, StreamClock, Why};
use std::collections::VecDeque;

/// Blocks that an allocation looks at. Each look may ask the driver about each stream that used the
/// block.
const LOOKED_AT: usize = 4;

/// The blocks of one allocator that wait.
#[derive(Debug)]
pub(crate) struct Waiting<B> {
    blocks: Mutex<VecDeque<(B, Vec<Mark>)>>,
    /// The driver's first refusal of a block that had waited, until a call returns it.
    refused: Mutex<Option<DeviceError>>,
}

impl<B> Default for Waiting<B> {
    fn default() -> Self {
        Self { blocks: Mutex::default(), refused: Mutex::default() }
    }
}

impl<B> Waiting<B> {
    /// Frees a block, or lets it wait for the end of a capture.
    pub(crate) fn free(
        &self,
        block: B,
        after: &[Mark],
        give: impl Fn(&B, &[Mark]) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        match give(&block, after) {
            Err(refused) if refused.why == Why::NotSubmitted => {
                self.blocks.lock().push_back((block, after.to_vec()));
                Ok(())
            }
            other => other,
        }
    }

    /// Frees blocks whose work is done, without a wait on the host. Looks at [`LOOKED_AT`] blocks
    /// at most; the next call looks at others.
    pub(crate) fn free_done(
        &self,
        clock: &Timeline<CudaDriver>,
        give: impl Fn(&B, &[Mark]) -> Result<(), DeviceError>,
    ) {
        let done = |after: &[Mark]| after.iter().all(|mark| clock.is_done(*mark) == Ok(true));
        self.free_some(LOOKED_AT, done, give);
    }

    /// Frees all blocks whose capture has ended, and waits for their work if it must.
    ///
    /// # Errors
    ///
    /// The first refusal since the last call. That block is lost.
    pub(crate) fn free_all(
        &self,
        give: impl Fn(&B, &[Mark]) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        self.free_some(usize::MAX, |_| true, give);
        self.refused.lock().take().map_or(Ok(()), Err)
    }

    /// Takes memory. If the device has none left, frees all blocks whose capture has ended and
    /// tries once more.
    ///
    /// # Errors
    ///
    /// What `take` returns.
    pub(crate) fn or_free_all<T>(
        &self,
        give: impl Fn(&B, &[Mark]) -> Result<(), DeviceError>,
        take: impl Fn() -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        match take() {
            Err(full) if full.why == Why::OutOfMemory && !self.blocks.lock().is_empty() => {
                self.free_some(usize::MAX, |_| true, give);
                take()
            }
            other => other,
        }
    }

    /// Looks at the `most` blocks that were looked at longest ago, and frees those that `goes`
    /// selects and whose capture has ended.
    fn free_some(
        &self,
        most: usize,
        goes: impl Fn(&[Mark]) -> bool,
        give: impl Fn(&B, &[Mark]) -> Result<(), DeviceError>,
    ) {
        // One block at a time leaves the queue, so that other threads see those that still wait,
        // and no lock is held during the driver's calls.
        let count = self.blocks.lock().len().min(most);
        for _ in 0..count {
            let Some((block, after)) = self.blocks.lock().pop_front() else { return };
            let freed = goes(&after).then(|| give(&block, &after));
            match freed {
                Some(Ok(())) => {}
                Some(Err(error)) if error.why != Why::NotSubmitted => {
                    self.refused.lock().get_or_insert(error);
                }
                None | Some(Err(_)) => self.blocks.lock().push_back((block, after)),
            }
        }
    }

    /// Returns a sum over the blocks that wait.
    pub(crate) fn sum(&self, bytes: impl Fn(&B) -> u64) -> u64 {
        self.blocks.lock().iter().map(|(block, _)| bytes(block)).sum()
    }
}
