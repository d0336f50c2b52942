//! Whole programs on the device, with checked results.
//!
//! Point-cloud tiles with and without the pool; and a hand-over between three streams, with a
//! control that must fail.

use super::contender::{Allocator, Refused};
use super::driver::{Direct, Gpu};
use super::kernels::{Kernel, Kernels};
use crate::apart::Process;
use crate::rounds::{Rounds, Row};
use bucketpool::config::preset;
use bucketpool::cuda::cudarc::driver::result;
use bucketpool::cuda::{CudaAllocator, PoolStream};
use bucketpool::{BucketPool, PooledBuffer, StreamClock};
use std::time::Instant;

/// Bytes per point in each array of a tile: position, normal, 12 features, 20 neighbours.
const BYTES_PER_POINT: [u64; 4] = [12, 12, 48, 80];
/// Approximate number of points of a tile.
const POINTS: u64 = 2_000_000;
/// Numbers of kernels of 12 bytes per point that run on each array.
///
/// The amount of computing decides how much allocation costs in relation, so the bench reports two
/// programs.
const PASSES: [u32; 2] = [20, 400];
/// Numbers in a block that is handed over: enough that the device runs behind the host.
const COUNT: u32 = 1 << 24;

/// Measures each program and returns its rows. A program that cannot run reports why.
pub(super) fn rows(process: &Process) -> Vec<Row> {
    let mut rows = Vec::new();
    let (tiles, rounds) = if process.smoke { (5, 1) } else { (50, process.share(3)) };
    for passes in PASSES {
        let case = format!("{tiles} point-cloud tiles, {passes} kernels an array, end to end");
        rows.extend(compare_tiles(&case, tiles, rounds, passes, process.seed));
    }
    let turns = if process.smoke { 30 } else { 300 };
    let names = ["bucketpool"];
    let case = "hand-over between three streams, contents checked";
    let (took, failures) = Rounds::run(&names, (0, 1), process.seed, |_| hand_over(turns));
    rows.extend(told(took, failures, case));
    rows
}

fn told(took: Rounds, failures: Vec<Option<Refused>>, case: &str) -> Vec<Row> {
    let mut rows = took.rows(case, 0);
    for (row, failure) in rows.iter_mut().zip(failures) {
        row.page_faults = None;
        row.refused = failure.map(|refused| refused.to_string());
    }
    rows
}

/// The tile program: its streams, its kernels, and the data that it loads.
struct Tiles {
    gpu: Gpu,
    kernels: Kernels,
    host: Vec<u8>,
    count: u64,
    passes: u32,
}

/// Measures three tile programs.
///
/// The first uses a pool, the second the driver's own calls, the third no allocations in the loop.
/// Each loads tile n + 1 on one stream while it computes tile n on another. The third program
/// shows what allocation costs end to end.
fn compare_tiles(case: &str, tiles: u64, rounds: usize, passes: u32, seed: u64) -> Vec<Row> {
    let names = ["bucketpool", "cuMemAlloc", "no allocation"];
    let programs = programs(tiles, passes);
    let (took, failures) = Rounds::run(&names, (1, rounds), seed, |at| {
        let programs = programs.as_ref().map_err(Clone::clone)?;
        let start = Instant::now();
        match at {
            0 => programs.tiles.pooled(&programs.pool, &programs.on)?,
            1 => programs.tiles.direct(&programs.direct)?,
            _ => programs.tiles.kept(&programs.direct)?,
        }
        Ok(start.elapsed().as_nanos() as f64)
    });
    told(took, failures, case)
}

struct Programs {
    tiles: Tiles,
    pool: BucketPool<CudaAllocator>,
    direct: Direct,
    on: [PoolStream; 2],
}

fn programs(count: u64, passes: u32) -> Result<Programs, Refused> {
    let gpu = Gpu::new()?;
    let kernels = Kernels::load(&gpu.device)?;
    let pool = preset::tile_pipeline(CudaAllocator::on(gpu.device.clone())).build();
    let direct = Direct::new()?;
    let on = [gpu.device.stream(&gpu.streams[0])?, gpu.device.stream(&gpu.streams[1])?];
    let host = vec![7; usize::try_from((POINTS + 8 * 7919) * 12).unwrap_or(0)];
    Ok(Programs { tiles: Tiles { gpu, kernels, host, count, passes }, pool, direct, on })
}

impl Tiles {
    fn points(tile: u64) -> u64 {
        POINTS + tile % 8 * 7919
    }

    fn bytes(points: u64) -> usize {
        usize::try_from(points * 12).unwrap_or(0)
    }

    fn pooled(
        &self,
        pool: &BucketPool<CudaAllocator>,
        [load, compute]: &[PoolStream; 2],
    ) -> Result<(), Refused> {
        let refused = |error: bucketpool::AllocError| Refused(error.to_string());
        let [loading, computing] = [&self.gpu.streams[0], &self.gpu.streams[1]];
        for tile in 0..self.count {
            let points = Self::points(tile);
            let positions = pool.allocate_on(load, points * 12).map_err(refused)?;
            let from = &self.host[..Self::bytes(points)];
            loading.memcpy_htod(from, &mut &*positions.on(load)?)?;
            let rest: Result<Vec<PooledBuffer<_>>, _> = BYTES_PER_POINT[1..]
                .iter()
                .map(|bytes| pool.allocate_on(compute, points * bytes))
                .collect();
            let rest = rest.map_err(refused)?;
            let positions = positions.on(compute)?;
            for buffer in &rest {
                let to = buffer.on(compute)?;
                self.compute((to.as_ptr(), positions.as_ptr()), points)?;
            }
            if tile + 1 == self.count {
                self.check(&computing.clone_dtoh(&*rest[0].on(compute)?)?)?;
            }
        }
        Ok(self.gpu.device.context().synchronize()?)
    }

    fn direct(&self, direct: &Direct) -> Result<(), Refused> {
        self.gpu.device.context().bind_to_thread()?;
        for tile in 0..self.count {
            let points = Self::points(tile);
            let blocks: Result<Vec<u64>, _> =
                BYTES_PER_POINT.iter().map(|bytes| direct.take(points * bytes, 0)).collect();
            let blocks = blocks?;
            self.one(&blocks, tile)?;
            // CUDA does not guarantee that `cuMemFree` waits for the kernels.
            self.gpu.streams[1].synchronize()?;
            blocks.into_iter().try_for_each(|block| direct.give(block, 0))?;
        }
        Ok(self.gpu.device.context().synchronize()?)
    }

    /// Runs the tiles in blocks of the largest tile that are allocated once, before the loop.
    ///
    /// There are two sets of blocks, so that loading overlaps computing.
    fn kept(&self, direct: &Direct) -> Result<(), Refused> {
        self.gpu.device.context().bind_to_thread()?;
        let most = (0..8).map(Self::points).max().unwrap_or(POINTS);
        let take = |_| BYTES_PER_POINT.iter().map(|bytes| direct.take(most * bytes, 0)).collect();
        let sets: Result<Vec<Vec<u64>>, Refused> = (0..2).map(take).collect();
        let sets = sets?;
        for tile in 0..self.count {
            let at = usize::from(tile % 2 == 1);
            if tile >= 2 {
                // The tile before the last must be computed before this one overwrites it.
                self.gpu.streams[0].join(&self.gpu.streams[1])?;
            }
            self.one(&sets[at], tile)?;
        }
        self.gpu.device.context().synchronize()?;
        sets.into_iter().flatten().try_for_each(|block| direct.give(block, 0))
    }

    /// Loads a tile into the first block and computes in the others.
    #[expect(unsafe_code, reason = "the driver is called through C")]
    fn one(&self, blocks: &[u64], tile: u64) -> Result<(), Refused> {
        let [loading, computing] = [&self.gpu.streams[0], &self.gpu.streams[1]];
        let points = Self::points(tile);
        let from = &self.host[..Self::bytes(points)];
        // SAFETY: the block has at least this size; pageable memory is read before the call
        // returns.
        unsafe { result::memcpy_htod_async(blocks[0], from, loading.cu_stream()) }?;
        computing.join(loading)?;
        for block in &blocks[1..] {
            self.compute((*block, blocks[0]), points)?;
        }
        if tile + 1 == self.count {
            let mut shown = vec![0; Self::bytes(points)];
            // SAFETY: the block is at least as large as `shown`.
            unsafe { result::memcpy_dtoh_async(&mut shown, blocks[1], computing.cu_stream()) }?;
            computing.synchronize()?;
            self.check(&shown)?;
        }
        Ok(())
    }

    fn compute(&self, (to, from): (u64, u64), points: u64) -> Result<(), Refused> {
        let count = u32::try_from(points * 3).unwrap_or(u32::MAX);
        let add = |value| {
            let add = Kernel::Add { to, from, value, count };
            self.kernels.launch(&self.gpu.streams[1], add)
        };
        Ok((0..self.passes).try_for_each(add)?)
    }

    /// Checks that every number is the loaded number plus the value that the last kernel added.
    fn check(&self, shown: &[u8]) -> Result<(), Refused> {
        let expected = u32::from_ne_bytes([7; 4]).wrapping_add(self.passes - 1).to_ne_bytes();
        let wrong = shown.chunks_exact(4).filter(|number| **number != expected).count();
        if wrong == 0 {
            Ok(())
        } else {
            Err(Refused(format!("{wrong} numbers of a tile are wrong")))
        }
    }
}

fn fill(
    kernels: &Kernels,
    buffer: &PooledBuffer<CudaAllocator>,
    on: &PoolStream,
    value: u32,
) -> Result<(), Refused> {
    let used = buffer.on(on)?;
    let fill = Kernel::Fill { to: used.as_ptr(), value, count: COUNT };
    Ok(kernels.launch(on.raw(), fill)?)
}

/// Hands blocks from stream to stream. Returns the nanoseconds of a turn.
///
/// Each kernel adds one to the numbers of the kernel before, while another stream overwrites a
/// scratch block. A block that the pool hands out too early shows a wrong number. Without any order
/// between the streams some numbers must be wrong; otherwise the check proves nothing.
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
        let (which, beside) = (turn as usize % 3, (turn as usize + 1) % 3);
        let next = pool.allocate_on(&on[which], bytes).map_err(refused)?;
        {
            let (from, to) = (current.on(&on[which])?, next.on(&on[which])?);
            let (from, to) = (from.as_ptr(), to.as_ptr());
            let add = Kernel::Add { to, from, value: 1, count: COUNT };
            kernels.launch(&gpu.streams[which], add)?;
        }
        let scratch = pool.allocate_on(&on[beside], bytes).map_err(refused)?;
        fill(&kernels, &scratch, &on[beside], u32::MAX)?;
        current = next;
    }
    let which = turns as usize % 3;
    let shown = gpu.streams[which].clone_dtoh(&*current.on(&on[which])?)?;
    gpu.device.context().synchronize()?;
    let ns = start.elapsed().as_nanos() as f64 / f64::from(turns);
    let wrong = wrong(&shown, turns);
    if wrong > 0 {
        return Err(Refused(format!("{wrong} of {COUNT} numbers are wrong after {turns} turns")));
    }
    if unordered(&gpu, &kernels, turns)? == 0 {
        return Err(Refused("without any order nothing goes wrong, so this shows nothing".into()));
    }
    Ok(ns)
}

fn wrong(shown: &[u8], turns: u32) -> usize {
    shown.chunks_exact(4).filter(|number| **number != turns.to_ne_bytes()).count()
}

/// Runs the hand-over with two blocks and no order between the streams.
///
/// Returns how many numbers are wrong.
fn unordered(gpu: &Gpu, kernels: &Kernels, turns: u32) -> Result<usize, Refused> {
    let pool = BucketPool::new(CudaAllocator::on(gpu.device.clone()));
    let take = || pool.allocate(u64::from(COUNT) * 4).map_err(|e| Refused(e.to_string()));
    let on = pool.allocator().device().clock().default_stream();
    let blocks = [take()?, take()?];
    let uses = [blocks[0].on(on)?, blocks[1].on(on)?];
    let at = [uses[0].as_ptr(), uses[1].as_ptr()];
    fill(kernels, &blocks[0], on, 0)?;
    gpu.device.context().synchronize()?;
    for turn in 1..=turns {
        let (from, to) = (at[(turn as usize + 1) % 2], at[turn as usize % 2]);
        let add = Kernel::Add { to, from, value: 1, count: COUNT };
        kernels.launch(&gpu.streams[turn as usize % 3], add)?;
        let clear = Kernel::Fill { to: from, value: u32::MAX, count: COUNT };
        kernels.launch(&gpu.streams[(turn as usize + 1) % 3], clear)?;
    }
    gpu.device.context().synchronize()?;
    let shown = on.raw().clone_dtoh(&*uses[turns as usize % 2])?;
    gpu.device.context().synchronize()?;
    Ok(wrong(&shown, turns))
}
