//! A tensor runtime, as burn's is over cubecl: a recorded program takes pieces of large buffers in many sizes,
//! and frees them while it is recorded; the tensors of its model live on.

mod by_hand;
mod pooled;
mod program;

use crate::gpu::Failure;
use crate::turns::{self, Times, Way};
use bucketpool::wgpu::WgpuAllocator;
use by_hand::ByHand;
use pooled::Pooled;
use program::{Kernels, Program, program};
use std::rc::Rc;

pub(crate) const LINES: [&str; 2] =
    [include_str!("tensors/by_hand.rs"), include_str!("tensors/pooled.rs")];

pub(crate) fn run(
    allocator: &WgpuAllocator,
    frames: u32,
    compares: bool,
) -> Result<Times, Failure> {
    let kernels = Rc::new(Kernels::new(allocator.device()));
    let mut by_hand = ByHand::new(allocator.device().clone(), allocator.queue().clone());
    let mut pooled = Pooled::new(allocator);
    let of_both = kernels.clone();
    let ways: [Way<Program>; 2] = [
        Box::new(move |program| by_hand.run(&of_both, program)),
        Box::new(move |program| pooled.run(&kernels, program)),
    ];
    turns::run(ways, frames, program, |program| Some(&program.expected), compares)
}
