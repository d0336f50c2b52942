//! Bytes on their way into a larger buffer, which must come there whatever becomes of the frame.

use wgpu::{Buffer, CommandEncoder};

/// A copy from a buffer's old block to its new one. The scope records it among its commands; where these do not
/// run, it is made by itself.
pub(crate) struct Move {
    pub(crate) from: Buffer,
    pub(crate) to: Buffer,
    pub(crate) bytes: u64,
    /// Whether it is ahead of all commands of its step, and so made also where wgpu refuses these.
    pub(crate) is_ahead: bool,
}

impl Move {
    pub(crate) fn record(&self, encoder: &mut CommandEncoder) {
        encoder.copy_buffer_to_buffer(&self.from, 0, &self.to, 0, self.bytes);
    }
}
