//! A 2-D renderer's engine that runs recordings, as vello's does: uploads, dispatches, clears, downloads and
//! frees by name. A frame is two recordings, and buffers live from the first to the second.

mod by_hand;
mod pooled;
mod recording;

use crate::gpu::Failure;
use crate::turns::{self, Times, Way};
use bucketpool::wgpu::WgpuAllocator;
use by_hand::ByHand;
use pooled::Pooled;
use recording::{Shaders, TwoRecordings, frame};
use std::rc::Rc;

pub(crate) const LINES: [&str; 2] =
    [include_str!("recordings/by_hand.rs"), include_str!("recordings/pooled.rs")];

pub(crate) fn run(
    allocator: &WgpuAllocator,
    frames: u32,
    compares: bool,
) -> Result<Times, Failure> {
    let shaders = Rc::new(Shaders::new(allocator.device()));
    let mut by_hand = ByHand::new(allocator.device().clone(), allocator.queue().clone());
    let mut pooled = Pooled::new(allocator);
    let of_both = shaders.clone();
    let ways: [Way<TwoRecordings>; 2] = [
        Box::new(move |frame| {
            for recording in &frame.recordings {
                by_hand.run(&of_both, recording);
            }
            by_hand.download(&frame.out)
        }),
        Box::new(move |frame| {
            frame.recordings.iter().try_for_each(|recording| pooled.run(&shaders, recording))?;
            pooled.download(&frame.out)
        }),
    ];
    turns::run(ways, frames, frame, |frame| Some(&frame.expected), compares)
}
