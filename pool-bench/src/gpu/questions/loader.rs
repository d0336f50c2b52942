//! Question 12: page-locked memory of a loader, in an arena and in powers of two.
//!
//! The loader keeps blocks of keys and values that were moved out of the device's memory, and
//! stages batches whose lengths differ. The sizes are those of reports against pools that round to
//! powers of two (vllm #56410: 1.9 times what is used; sglang #36562: 32 GiB for 20.4 GiB), scaled
//! to megabytes.

use super::{Inquiry, Refused};
use bucketpool::cuda::{CudaAllocator, CudaDevice, CudaPinnedAllocator, PinnedBytes, PoolStream};
use bucketpool::{ArenaConfig, BucketPolicy, BucketPool, PoolBuilder, PooledBuffer, Why};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::time::Instant;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Bytes of a block of keys and values: 20.4 MiB, and 8.3 MiB of a smaller layer.
const KEYS_AND_VALUES: [u64; 2] = [20 * MIB + 410 * KIB, 8 * MIB + 300 * KIB];
/// Blocks of keys and values that are kept at once, of each size.
const KEPT: usize = 6;
/// Batches that are staged while their copies may still run.
const STAGED: usize = 3;
/// Bytes of a sample: an image of 3 x 224 x 224 numbers of 2 bytes, and its tokens.
const SAMPLE: [u64; 2] = [3 * 224 * 224 * 2, 1536];
/// Most samples of a batch.
const SAMPLES: u64 = 32;
/// The seed of the batches' lengths.
const SEED: u64 = 7;
/// The most that a pool may page-lock.
const LIMIT: u64 = 512 * MIB;

type Host = BucketPool<CudaPinnedAllocator>;
type Staged = PooledBuffer<CudaPinnedAllocator>;

pub(super) fn page_locked(asked: &Inquiry<'_>) -> Result<Value, Refused> {
    let device = &asked.gpu.device;
    device.context().bind_to_thread()?;
    let batches = if asked.process.smoke { 20 } else { 400 };
    let mut answers = Map::new();
    for (name, keeps_up) in [("the device keeps up", true), ("the device is a batch behind", false)]
    {
        let mut of_ways = Map::new();
        for (way, pool) in ways(device) {
            let host = pool.reserved_limit(LIMIT).build();
            let answer = Loader::new(device, host, keeps_up).and_then(|loader| loader.run(batches));
            let failed = |why: Refused| json!({ "failed": why.to_string() });
            of_ways.insert(way.into(), answer.unwrap_or_else(failed));
        }
        answers.insert(name.into(), of_ways.into());
    }
    Ok(answers.into())
}

fn ways(device: &CudaDevice) -> [(&'static str, PoolBuilder<CudaPinnedAllocator>); 5] {
    let memory = || BucketPool::builder(CudaPinnedAllocator::on(device.clone()));
    [
        ("powers of two", memory().policy(BucketPolicy::PowerOfTwo)),
        ("exact sizes", memory().policy(BucketPolicy::Exact)),
        ("arena, segments of 32 MiB", memory().arena(ArenaConfig::segments(32 * MIB))),
        ("arena, segments of 128 MiB", memory().arena(ArenaConfig::segments(128 * MIB))),
        ("arena, torch's constants", memory().arena(ArenaConfig::torch())),
    ]
}

struct Loader {
    host: Host,
    on: PoolStream,
    target: PooledBuffer<CudaAllocator>,
    random: SmallRng,
    /// Whether all copies are done when the next buffer is requested.
    keeps_up: bool,
    /// Nanoseconds of requests and drops, and how many requests.
    took: (u128, u64),
}

impl Loader {
    fn new(device: &CudaDevice, host: Host, keeps_up: bool) -> Result<Self, Refused> {
        let on = device.stream(&device.context().new_stream()?)?;
        let vram = BucketPool::new(CudaAllocator::on(device.clone()));
        let refused = |error: bucketpool::AllocError| Refused(error.to_string());
        let target = vram.allocate_on(&on, KEYS_AND_VALUES[0]).map_err(refused)?;
        Ok(Self { host, on, target, random: SmallRng::seed_from_u64(SEED), keeps_up, took: (0, 0) })
    }

    /// Requests a buffer. Once the limit is reached, waits for the copies and tries again, as a
    /// loader does.
    fn request(&mut self, bytes: u64) -> Result<Staged, Refused> {
        if self.keeps_up {
            self.on.raw().synchronize()?;
        }
        let start = Instant::now();
        let mut taken = self.host.allocate(bytes);
        if taken.as_ref().is_err_and(|error| matches!(error.why(), Why::Limit(_))) {
            self.on.raw().synchronize()?;
            taken = self.host.allocate(bytes);
        }
        self.took = (self.took.0 + start.elapsed().as_nanos(), self.took.1 + 1);
        taken.map_err(|error| Refused(error.to_string()))
    }

    fn drop(&mut self, buffer: Staged) {
        let start = Instant::now();
        drop(buffer);
        self.took.0 += start.elapsed().as_nanos();
    }

    /// Writes a byte on the CPU, and gives the copy to the stream.
    fn copy(&self, buffer: &mut Staged) -> Result<(), Refused> {
        buffer.bytes_mut()?[0] = 1;
        let (from, to) = (buffer.read_on(&self.on)?, self.target.on(&self.on)?);
        Ok(self.on.raw().memcpy_htod(&*from, &mut &*to)?)
    }

    fn run(mut self, batches: u64) -> Result<Value, Refused> {
        let (mut kept, mut staged) = (VecDeque::new(), VecDeque::new());
        for batch in 0..batches {
            self.on.raw().synchronize()?; // the program reads the result of the batch before
            // A request of the model moves blocks of keys and values out and in.
            if batch % 3 == 0 {
                if kept.len() >= 2 * KEPT
                    && let Some(oldest) = kept.pop_front()
                {
                    self.drop(oldest);
                }
                let bytes = KEYS_AND_VALUES[usize::from(batch % 2 == 1)];
                let mut block = self.request(bytes)?;
                self.copy(&mut block)?;
                kept.push_back(block);
            }
            let samples = SAMPLES - self.random.random_range(0..SAMPLES / 2);
            for bytes in SAMPLE {
                let mut part = self.request(samples * bytes)?;
                self.copy(&mut part)?;
                staged.push_back(part);
            }
            while staged.len() > STAGED * SAMPLE.len() {
                let Some(part) = staged.pop_front() else { break };
                self.drop(part);
            }
        }
        self.on.raw().synchronize()?;
        let stats = self.host.stats();
        let (reserved, live) = (stats.reserved_peak_bytes, stats.requested_peak_bytes);
        Ok(json!({
            "live_peak_bytes": live,
            "reserved_peak_bytes": reserved,
            "reserved_over_live": reserved as f64 / live as f64,
            "device_calls": stats.misses,
            "ns": self.took.0 as f64 / self.took.1 as f64,
        }))
    }
}
