//! Engines as other projects have them, each with a memory management of its own and with pools, in turns:
//! `cargo run --release --features wgpu --example ports`, with `-- NAME FRAMES` for one of them.
//!
//! - `recordings`: an engine that runs recordings, as vello's does, with its pool by size class, uses and name.
//! - `shadows`: a shadow map and a forward pass, with a cache of textures and uniform buffers that grow, as bevy has.
//! - `tensors`: a recorded tensor program over pieces of large buffers, as burn's and cubecl's, with pages that are
//!   cut into slices.
//!
//! The folder of each has the program once with its own memory (`by_hand.rs`) and once with a pool
//! (`pooled.rs`). The program fails if they show anything else in any frame. `--noop` runs them on wgpu's
//! noop device, with nothing to compare: for machines without a driver (`--features noop`).
#![expect(clippy::print_stdout, reason = "an example tells what it did")]

mod gpu;
mod recordings;
mod shadows;
mod tensors;
mod turns;

use bucketpool::wgpu::WgpuAllocator;
use gpu::Failure;
use turns::Times;

/// A program: its name, the sources of both ways, and how to run so many frames; the flag says whether the
/// device computes.
type Port =
    (&'static str, [&'static str; 2], fn(&WgpuAllocator, u32, bool) -> Result<Times, Failure>);

const PORTS: [Port; 3] = [
    ("recordings", recordings::LINES, recordings::run),
    ("shadows", shadows::LINES, shadows::run),
    ("tensors", tensors::LINES, tensors::run),
];

/// Frames of each, unless the command line says otherwise.
const FRAMES: u32 = 30;

fn main() -> Result<(), Failure> {
    let (flags, words): (Vec<_>, Vec<_>) =
        std::env::args().skip(1).partition(|word| word == "--noop");
    let computes = flags.is_empty();
    let (name, frames) = (words.first(), words.get(1).map_or(Ok(FRAMES), |word| word.parse())?);
    let names = PORTS.map(|(name, ..)| name);
    if let Some(name) = name.filter(|name| !names.contains(&name.as_str())) {
        return Err(format!("no port `{name}`; expected one of {}", names.join(", ")).into());
    }
    for (port, sources, run) in
        PORTS.iter().filter(|(port, ..)| name.is_none_or(|name| name == port))
    {
        let allocator = gpu::device(!computes)?;
        let times = run(&allocator, frames, computes)?;
        if let Some(fault) = allocator.faults().first() {
            return Err(format!("{port}: {fault}").into());
        }
        let same = if computes { "the same by hand and with a pool" } else { "nothing compared" };
        let [by_hand, pooled] = sources.map(turns::lines);
        let (hand_us, pool_us) = (times.by_hand.as_micros(), times.pooled.as_micros());
        println!("{port}: {frames} frames, {same}");
        println!(
            "  by hand {by_hand} lines, {hand_us} us a frame; pooled {pooled} lines, {pool_us} us"
        );
    }
    Ok(())
}
