//! Whether the prologues that programs submit ran ahead of their commands.

use crate::arrival::Outcome;
use crate::nonces::Nonce;
use crate::readbacks::{Filling, ReadBacks, ReadChunk};
use crate::shared::Shared;
use parking_lot::Mutex;
use pool_core::{DeviceError, Why};
use std::sync::Arc;
use wgpu::CommandEncoder;

/// Bytes of receipts that are kept.
const KEPT: u64 = 64 << 10;

/// The receipts of one device. A prologue stamps one, and the program's commands bring it back.
pub(crate) struct Receipts {
    memory: ReadBacks,
    /// Those on their way.
    expected: Mutex<Vec<Arc<ReadChunk>>>,
}

impl Receipts {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { memory: ReadBacks::new(shared, KEPT), expected: Mutex::default() }
    }

    pub(crate) fn new_receipt(&self) -> Result<Filling, DeviceError> {
        self.look();
        self.memory.fill(Nonce::BYTES, 0, true)
    }

    /// `prologue` zeroes the first word of a receipt and stamps the receipt, and `commands` set the
    /// word. So the stamp and the word are both there only if the prologue ran before the commands.
    pub(crate) fn issue(
        &self,
        receipt: &mut Filling,
        (prologue, commands): (&mut CommandEncoder, &mut CommandEncoder),
    ) {
        receipt.add_word(commands, 0);
        receipt.begin_elsewhere(prologue);
        receipt.set_word(commands, 0);
        receipt.map_after(commands);
        self.expected.lock().push(receipt.chunk.clone());
    }

    /// Notes the faults of prologues whose receipts came back without the stamp or the word.
    pub(crate) fn look(&self) {
        let came: Vec<_> = {
            let mut expected = self.expected.lock();
            expected.extract_if(.., |chunk| chunk.arrival.outcome().is_some()).collect()
        };
        let is_wrong = |chunk: &Arc<ReadChunk>| {
            let mapped = chunk.arrival.outcome() == Some(Outcome::Mapped);
            mapped && !chunk.shared().is_lost() && !(chunk.brought() && chunk.has_word(0))
        };
        let wrong: Vec<_> = came.into_iter().filter(is_wrong).collect();
        let Some(shared) = wrong.first().map(|chunk| chunk.shared().clone()) else { return };
        // A buffer that the program has destroyed would have each later frame refused, too.
        shared.count_refusal();
        let call = "a prologue that was left out, refused, or submitted too late";
        shared.note_all(&vec![DeviceError::new(Why::NotSubmitted, call); wrong.len()]);
    }
}
