//! Bytes on their way into a larger buffer, which must come there whatever becomes of the frame.

use crate::shared::Shared;
use wgpu::Buffer;

/// A copy from a buffer's old block to its new one. The scope records it among its commands; where these do not
/// run, it is made by itself. The old block is free by then, and serves nobody before the scope has ended.
pub(crate) struct Move {
    pub(crate) from: Buffer,
    pub(crate) to: Buffer,
    pub(crate) bytes: u64,
    /// Whether it is ahead of all commands, and so made also where wgpu refuses these.
    pub(crate) is_ahead: bool,
}

impl Move {
    /// Copies the bytes now.
    pub(crate) fn run(&self, shared: &Shared) {
        let Self { from, to, bytes, .. } = self;
        let copy = |encoder: &mut wgpu::CommandEncoder| {
            encoder.copy_buffer_to_buffer(from, 0, to, 0, *bytes);
        };
        // wgpu refuses it where the program has destroyed one of them: nothing is there to be kept.
        let _ = shared.run_alone(copy);
    }
}
