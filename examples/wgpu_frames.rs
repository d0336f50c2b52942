//! 64 uploads a frame, and a read-back loop two frames behind:
//! `cargo run --release --features wgpu --example wgpu_frames`
#![expect(clippy::print_stdout, reason = "an example tells what it did")]

use bucketpool::wgpu::WgpuAllocator;
use bucketpool::wgpu::wgpu::PollType;
use bucketpool::{BucketPool, KIB, MIB, ZeroPolicy};
use std::collections::VecDeque;
use std::error::Error;

const FRAMES: u8 = 60;
const UPLOADS: u8 = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let device = WgpuAllocator::on_default_adapter()?;
    let (uploads, backs) = (device.uploads(4 * MIB, 16 * MIB), device.read_backs(16 * MIB));
    // Every byte is written, so nothing needs to be cleared.
    let pool = BucketPool::builder(device.clone()).zero(ZeroPolicy::Never).build();
    let mut on_their_way = VecDeque::new();
    for frame in 0..FRAMES {
        let mut scope = device.scope();
        let on = scope.stream();
        for upload in 0..UPLOADS {
            let data = vec![frame ^ upload; 64 * 1024];
            let buffer = pool.allocate_on(&on, 64 * KIB)?;
            let view = buffer.on(&on)?;
            scope.upload(&uploads, &view, 0, &data)?;
            if upload == frame % UPLOADS {
                let back = scope.read_back(&backs, &view, 0, 64 * KIB)?;
                on_their_way.push_back((frame ^ upload, back));
            }
        }
        scope.submit()?;
        // The device works two frames behind; results are read once they are here.
        device.device().poll(PollType::Poll)?;
        while on_their_way.len() > 2 {
            let Some((expected, back)) = on_their_way.pop_front() else { break };
            check(frame, back.wait(|shown| shown.iter().all(|byte| *byte == expected))?)?;
        }
    }
    for (expected, back) in on_their_way {
        check(FRAMES, back.wait(|shown| shown.iter().all(|byte| *byte == expected))?)?;
    }
    println!(
        "{FRAMES} frames of {UPLOADS} uploads, all right; staging {} KiB, read-back {} KiB\n{}",
        uploads.reserved_bytes() / KIB,
        backs.reserved_bytes() / KIB,
        pool.stats()
    );
    Ok(())
}

fn check(frame: u8, right: bool) -> Result<(), Box<dyn Error>> {
    if right { Ok(()) } else { Err(format!("frame {frame}: something else came back").into()) }
}
