//! Blocks that a pool gave back while another library captured a stream that used them. The driver
//! would count a wait for that stream as part of the capture, so they are freed after it.

use crate::events::CudaDriver;
use parking_lot::Mutex;
use pool_core::{DeviceError, Mark, StreamClock, Timeline, Why};

/// The blocks of one allocator that wait.
#[derive(Debug)]
pub(crate) struct Waiting<B> {
    blocks: Mutex<Vec<(B, Vec<Mark>)>>,
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
                self.blocks.lock().push((block, after.to_vec()));
                Ok(())
            }
            other => other,
        }
    }

    /// Frees the blocks whose work is done, without a wait on the host.
    pub(crate) fn free_done(
        &self,
        clock: &Timeline<CudaDriver>,
        give: impl Fn(&B, &[Mark]) -> Result<(), DeviceError>,
    ) {
        if self.blocks.lock().is_empty() {
            return;
        }
        let done = |after: &[Mark]| after.iter().all(|mark| clock.is_done(*mark) == Ok(true));
        self.free_some(|after| done(after), give);
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
        self.free_some(|_| true, give);
        self.refused.lock().take().map_or(Ok(()), Err)
    }

    fn free_some(
        &self,
        goes: impl Fn(&[Mark]) -> bool,
        give: impl Fn(&B, &[Mark]) -> Result<(), DeviceError>,
    ) {
        // One block at a time leaves the list, so that other threads see those that still wait, and
        // no lock is held during the driver's calls.
        let mut at = 0;
        loop {
            let next = {
                let mut blocks = self.blocks.lock();
                (at < blocks.len()).then(|| blocks.swap_remove(at))
            };
            let Some((block, after)) = next else { return };
            let freed = match goes(&after) {
                true => give(&block, &after),
                false => Err(DeviceError::new(Why::NotSubmitted, "a block that waits", 0)),
            };
            match freed {
                Ok(()) => {}
                Err(error) if error.why == Why::NotSubmitted => {
                    let mut blocks = self.blocks.lock();
                    blocks.push((block, after));
                    // It goes where it was, so that the next turn takes another.
                    let last = blocks.len() - 1;
                    blocks.swap(at.min(last), last);
                    at += 1;
                }
                Err(error) => {
                    self.refused.lock().get_or_insert(error);
                }
            }
        }
    }

    /// Returns a sum over the blocks that wait.
    pub(crate) fn sum(&self, bytes: impl Fn(&B) -> u64) -> u64 {
        self.blocks.lock().iter().map(|(block, _)| bytes(block)).sum()
    }
}
