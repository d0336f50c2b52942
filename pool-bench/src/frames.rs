//! Pooled wgpu buffers beside fresh ones, frame by frame on one device, in turns: uploads, a kernel
//! that touches little, a copy that fills a large buffer, dense work, and an engine with a pool of its own.

mod device;
mod kernels;
mod many;
mod ports;
mod uploads;

use crate::apart::Process;
use crate::rounds::Row;
use bucketpool::MIB;
use bucketpool::wgpu::WgpuAllocator;
use device::{Failed, FrameBench};
use kernels::Work;

/// Runs all cases.
///
/// # Errors
///
/// The error of the device, or of a pool.
pub(crate) fn run(process: &Process) -> Result<Vec<Row>, Failed> {
    let device = WgpuAllocator::on_default_adapter().map_err(|error| error.to_string())?;
    let bench = FrameBench::new(device, process);
    let mut rows = Vec::new();
    let small = |bytes: u64| if process.smoke { MIB } else { bytes };
    rows.extend(bench.uploads()?);
    rows.extend(bench.read_by_a_kernel()?);
    rows.extend(bench.many()?);
    rows.extend(bench.recordings()?);
    let bytes = small(16 * MIB);
    let little = Work { bytes, groups: 1, kernels: 1, frames: 1, room: true };
    let groups = u32::try_from(bytes / 16 / 64).unwrap_or(u32::MAX);
    for (name, work) in [
        ("a kernel that touches little of 16 MiB", little),
        ("the same, and wgpu has no room", Work { room: false, ..little }),
        ("8 such frames, two in flight", Work { frames: 8, ..little }),
        ("8 such kernels in a frame", Work { kernels: 8, ..little }),
        ("dense work on 16 MiB", Work { groups, ..little }),
    ] {
        rows.extend(bench.kernels(name, work)?);
    }
    let name = "a copy that fills 64 MiB";
    rows.extend(bench.copies(name, small(64 * MIB))?);
    Ok(rows)
}
