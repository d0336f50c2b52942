//! Whole programs on the device, their results checked: seed 000's tiles with the pool and without,
//! and a hand-over between three streams.

use super::Row;
use super::contender::{Gpu, Refused};
use super::kernels::{Kernel, Kernels};
use crate::contest::quantile;
use bucketpool::cuda::cudarc::driver::{CudaStream, result};
use bucketpool::cuda::{CudaAllocator, CudaStreamOf};
use bucketpool::{BucketPool, PooledBuffer, preset};
use std::time::Instant;

/// Bytes of a point in each array of a tile: position, normal, 12 features, 20 neighbours.
const BYTES_PER_POINT: [u64; 4] = [12, 12, 48, 80];
/// Points of a tile, about: seed 000's.
const POINTS: u64 = 2_000_000;
/// Kernels that read and write a tile: enough that computing, not allocating, takes the time.
const PASSES: u32 = 20;
/// Numbers in a block that is handed over.
const COUNT: u32 = 1 << 16;

/// The rows of each program; one that cannot run says why.
pub(super) fn rows(smoke: bool, tell: &impl Fn(&str)) -> Vec<Row> {
    let mut rows = Vec::new();
    let (tiles, rounds) = if smoke { (5, 1) } else { (100, 5) };
    let case = format!("{tiles} tiles of seed 000, end to end");
    tell(&case);
    let compared = compare_tiles(tiles, rounds);
    rows.extend(told(&case, ["bucketpool", "cuMemAlloc"], compared));
    let case = "hand-over between three streams, contents checked".to_owned();
    tell(&case);
    rows.extend(told(
        &case,
        ["bucketpool"],
        hand_over(if smoke { 100 } else { 20_000 }).map(|ns| vec![[ns]]),
    ));
    rows
}

/// What each contender took in each round.
type Rounds<const N: usize> = Result<Vec<[f64; N]>, Refused>;

fn told<const N: usize>(case: &str, names: [&str; N], rounds: Rounds<N>) -> Vec<Row> {
    let (rounds, refused) = match rounds {
        Ok(rounds) => (rounds, String::new()),
        Err(refused) => (Vec::new(), refused.to_string()),
    };
    let row = |(at, name): (usize, &str)| {
        let mut ns: Vec<f64> = rounds.iter().map(|round| round[at]).collect();
        let mut times: Vec<f64> = rounds.iter().map(|round| round[at] / round[0]).collect();
        let spread = (quantile(&mut times, 0.25), quantile(&mut times, 0.75));
        Row {
            case: case.to_owned(),
            peer: name.to_owned(),
            rounds: rounds.len(),
            ns: quantile(&mut ns, 0.5),
            times: quantile(&mut times, 0.5),
            times_error: (spread.1 - spread.0) / 2.0,
            reserved_peak_bytes: 0,
            live_peak_bytes: 0,
            refused: refused.clone(),
        }
    };
    names.into_iter().enumerate().map(row).collect()
}

/// Tile n + 1 is loaded on one stream while tile n is computed on another.
fn compare_tiles(tiles: u64, rounds: usize) -> Rounds<2> {
    let gpu = Gpu::new()?;
    let kernels = Kernels::load(&gpu.device)?;
    let pool = preset::tile_pipeline(CudaAllocator::on(gpu.device.clone())).build();
    let on = [gpu.device.stream(&gpu.streams[0])?, gpu.device.stream(&gpu.streams[1])?];
    let mut host = vec![0_u8; usize::try_from(POINTS * 12 + 12 * 7919 * 8).unwrap_or(0)];
    host.fill(7);
    let mut all = Vec::new();
    for _ in 0..=rounds {
        all.push([
            timed(|| pooled_tiles(&pool, &on, &gpu, &kernels, &host, tiles))?,
            timed(|| direct_tiles(&gpu, &kernels, &host, tiles))?,
        ]);
    }
    all.remove(0); // the pool fills
    Ok(all)
}

fn timed(work: impl FnOnce() -> Result<(), Refused>) -> Result<f64, Refused> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_nanos() as f64)
}

fn points(tile: u64) -> u64 {
    POINTS + tile % 8 * 7919
}

fn pooled_tiles(
    pool: &BucketPool<CudaAllocator>,
    [load, compute]: &[CudaStreamOf; 2],
    gpu: &Gpu,
    kernels: &Kernels,
    host: &[u8],
    tiles: u64,
) -> Result<(), Refused> {
    let refused = |error: bucketpool::AllocError| Refused(error.to_string());
    for tile in 0..tiles {
        let points = points(tile);
        let positions = pool.allocate_on(load, points * 12).map_err(refused)?;
        let bytes = usize::try_from(points * 12).unwrap_or(0);
        gpu.streams[0].memcpy_htod(&host[..bytes], &mut &*positions.on(load)?)?;
        let rest: Result<Vec<PooledBuffer<_>>, _> =
            BYTES_PER_POINT[1..].iter().map(|b| pool.allocate_on(compute, points * b)).collect();
        let rest = rest.map_err(refused)?;
        let positions = positions.on(compute)?;
        for buffer in &rest {
            let to = buffer.on(compute)?;
            work_on(kernels, &gpu.streams[1], (to.as_ptr(), positions.as_ptr()), points)?;
        }
    }
    gpu.device.context().synchronize()?;
    Ok(())
}

fn direct_tiles(gpu: &Gpu, kernels: &Kernels, host: &[u8], tiles: u64) -> Result<(), Refused> {
    use super::contender::{Allocator, Direct};
    let direct = Direct::new()?;
    for tile in 0..tiles {
        let points = points(tile);
        let blocks: Result<Vec<u64>, _> =
            BYTES_PER_POINT.iter().map(|bytes| direct.take(points * bytes, 0)).collect();
        let blocks = blocks?;
        let bytes = usize::try_from(points * 12).unwrap_or(0);
        gpu.device.context().bind_to_thread()?;
        copy(&gpu.streams[0], blocks[0], &host[..bytes])?;
        gpu.streams[1].join(&gpu.streams[0])?;
        for block in &blocks[1..] {
            work_on(kernels, &gpu.streams[1], (*block, blocks[0]), points)?;
        }
        blocks.into_iter().try_for_each(|block| direct.give(block, 0))?;
    }
    gpu.device.context().synchronize()?;
    Ok(())
}

#[expect(unsafe_code, reason = "the driver is called through C")]
fn copy(on: &CudaStream, to: u64, from: &[u8]) -> Result<(), Refused> {
    // SAFETY: the caller owns a block of so many bytes; pageable memory is read before this
    // returns.
    Ok(unsafe { result::memcpy_htod_async(to, from, on.cu_stream()) }?)
}

fn work_on(
    kernels: &Kernels,
    on: &CudaStream,
    (to, from): (u64, u64),
    points: u64,
) -> Result<(), Refused> {
    let count = u32::try_from(points * 3).unwrap_or(u32::MAX);
    let add = |value| kernels.launch(on, Kernel::Add { to, from, value, count });
    Ok((0..PASSES).try_for_each(add)?)
}

fn fill(
    kernels: &Kernels,
    buffer: &PooledBuffer<CudaAllocator>,
    on: &CudaStreamOf,
    value: u32,
) -> Result<(), Refused> {
    let used = buffer.on(on)?;
    let fill = Kernel::Fill { to: used.as_ptr(), value, count: COUNT };
    Ok(kernels.launch(on.raw(), fill)?)
}

/// Blocks go from stream to stream, each kernel adding one to what the one before has left. A block
/// that is handed out too early shows a wrong number. Returns nanoseconds of a hand-over.
fn hand_over(turns: u32) -> Result<f64, Refused> {
    let gpu = Gpu::new()?;
    let kernels = Kernels::load(&gpu.device)?;
    let on: Result<Vec<_>, _> = gpu.streams[..3].iter().map(|s| gpu.device.stream(s)).collect();
    let on = on?;
    let pool = BucketPool::new(CudaAllocator::on(gpu.device.clone()));
    let refused = |error: bucketpool::AllocError| Refused(error.to_string());
    let bytes = u64::from(COUNT) * 4;
    let mut current = pool.allocate_on(&on[0], bytes).map_err(refused)?;
    fill(&kernels, &current, &on[0], 0)?;
    let start = Instant::now();
    for turn in 1..=turns {
        let which = turn as usize % 3;
        let next = pool.allocate_on(&on[which], bytes).map_err(refused)?;
        {
            let (from, to) = (current.on(&on[which])?, next.on(&on[which])?);
            let (from, to) = (from.as_ptr(), to.as_ptr());
            kernels
                .launch(&gpu.streams[which], Kernel::Add { to, from, value: 1, count: COUNT })?;
        }
        // Something that overwrites whatever it is given too early.
        let beside = (which + 1) % 3;
        let scratch = pool.allocate_on(&on[beside], bytes).map_err(refused)?;
        fill(&kernels, &scratch, &on[beside], u32::MAX)?;
        current = next;
    }
    let ns = start.elapsed().as_nanos() as f64 / f64::from(turns);
    let which = turns as usize % 3;
    let mut shown = vec![0_u8; COUNT as usize * 4];
    gpu.streams[which].memcpy_dtoh(&*current.on(&on[which])?, &mut shown)?;
    gpu.device.context().synchronize()?;
    let expected = turns.to_ne_bytes();
    let wrong = shown.chunks(4).filter(|number| **number != expected).count();
    if wrong > 0 {
        return Err(Refused(format!("{wrong} of {COUNT} numbers are wrong after {turns} turns")));
    }
    Ok(ns)
}
