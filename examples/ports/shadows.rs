//! A renderer of two passes, as wgpu's own example of shadows has: a shadow map, and a forward pass with uniforms
//! for each entity. The textures are of the frame, and the window is resized now and then.

mod by_hand;
mod pipelines;
mod pooled;
mod scene;

use crate::gpu::Failure;
use crate::turns::{self, Times, Way};
use bucketpool::wgpu::WgpuAllocator;
use by_hand::ByHand;
use pooled::Pooled;
use scene::{Frame, frame};

pub(crate) const LINES: [&str; 2] =
    [include_str!("shadows/by_hand.rs"), include_str!("shadows/pooled.rs")];

pub(crate) fn run(
    allocator: &WgpuAllocator,
    frames: u32,
    compares: bool,
) -> Result<Times, Failure> {
    let mut by_hand = ByHand::new(allocator.device().clone(), allocator.queue().clone());
    let mut pooled = Pooled::new(allocator)?;
    let ways: [Way<Frame>; 2] =
        [Box::new(move |frame| by_hand.draw(frame)), Box::new(move |frame| pooled.draw(frame))];
    turns::run(ways, frames, frame, |_| None, compares)
}
