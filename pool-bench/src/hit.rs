//! The hit paths, repeated: callgrind counts their instructions.

use crate::input::BadInput;
use crate::trace::{self, Step, Trace};
use bucketpool::array::PooledArray;
use bucketpool::config::{AnyPool, preset};
use bucketpool::host::{HostAllocator, Tcache};
use bucketpool::sim::SimDevice;
use bucketpool::{ArenaConfig, BucketPolicy, BucketPool, DeviceAllocator, PoolBuilder};
#[cfg(feature = "noop")]
use bucketpool::{
    ZeroPolicy,
    wgpu::{Usage, WgpuAllocator, wgpu},
};
use bucketpool_c::calls::{bp_alloc, bp_free_here, bp_pool_drop, bp_pool_new};
use bucketpool_c::status::Status;
use pool_trace::Kind;
use std::alloc::{GlobalAlloc, Layout};
use std::hint::black_box;
use std::ptr;

const KIB: u64 = 1 << 10;
/// Sizes that take turns where there are many.
const SIZES: u64 = 500;
/// Allocations of a program that are replayed.
const REPLAYED: usize = 1000;

/// A path: its name, and the function that runs it that many times.
type Path = (&'static str, fn(u64) -> Option<()>);

/// Every path of this build. The names stand in `instructions.json`.
pub fn paths() -> Vec<Path> {
    let paths = PATHS.to_vec();
    #[cfg(feature = "noop")]
    let paths = [paths, WGPU.to_vec()].concat();
    paths
}

/// wgpu buffers on the noop device, which a pool does not zero: on the queue, with a usage, and taken and dropped
/// while a frame is recorded.
#[cfg(feature = "noop")]
const WGPU: [Path; 3] = [
    ("wgpu, pow2, 4 KiB", |pairs| one(noop(), 4 * KIB, pairs)),
    ("wgpu, pow2, 4 KiB, VERTEX", vertices),
    ("wgpu, pow2, 4 KiB, in a frame", in_a_frame),
];

const PATHS: [Path; 22] = [
    ("host, pow2, 4 KiB", |pairs| one(host(BucketPolicy::PowerOfTwo), 4 * KIB, pairs)),
    ("host, exact, 4 KiB", |pairs| one(host(BucketPolicy::Exact), 4 * KIB, pairs)),
    ("host, fit:2, 4 KiB", |pairs| one(host(BucketPolicy::Fit { alpha: 2.0 }), 4 * KIB, pairs)),
    ("host, tiered, 4 KiB", |pairs| {
        one(host(BucketPolicy::tiered(&preset::BUCKET_SIZES)), 4 * KIB, pairs)
    }),
    ("host, pow2, 4 MiB", |pairs| one(host(BucketPolicy::PowerOfTwo), 4096 * KIB, pairs)),
    ("host, exact, 500 sizes", |pairs| many(host(BucketPolicy::Exact), pairs)),
    ("host, pow2, 4 KiB, two shards", |pairs| {
        one(host(BucketPolicy::PowerOfTwo).shards(2), 4 * KIB, pairs)
    }),
    ("host, pow2, 4 KiB, as AnyPool", any),
    ("host, pow2, 4 KiB, as an array", array),
    ("host, pow2, 4 KiB, through C", through_c),
    ("host, pow2, sum of two arrays", sums),
    ("sim, pow2, 4 KiB", |pairs| one(BucketPool::builder(SimDevice::new()), 4 * KIB, pairs)),
    ("sim, pow2, two streams in turns", two_streams),
    ("sim, pow2, used on a stream", used),
    ("sim, pow2, handed over", handed_over),
    ("sim, arena, 500 sizes", |pairs| {
        many(BucketPool::builder(SimDevice::new()).arena(ArenaConfig::grow()), pairs)
    }),
    ("sim, preset:caching, 500 sizes", |pairs| many(preset::caching(SimDevice::new()), pairs)),
    ("sim, arena, a training", |pairs| {
        training(BucketPool::builder(SimDevice::new()).arena(ArenaConfig::grow()), pairs)
    }),
    ("sim, preset:caching, a training", |pairs| training(preset::caching(SimDevice::new()), pairs)),
    ("tcache, 64 B", |pairs| tcache(64, pairs)),
    ("tcache, 256 KiB", |pairs| tcache(256 * 1024, pairs)),
    ("tcache, 4 MiB", |pairs| tcache(4 << 20, pairs)),
];

/// Runs a path `pairs` times: an allocation and its free, or a turn of two streams; no call takes memory.
///
/// # Errors
///
/// A name that is none, or a machine without the memory.
pub fn run(name: &str, pairs: u64) -> Result<(), BadInput> {
    let paths = paths();
    let known = || paths.iter().map(|(name, _)| *name).collect::<Vec<_>>().join("; ");
    let path = paths.iter().find(|(known, _)| *known == name);
    let (_, path) = path.ok_or_else(|| BadInput::new(format!("path `{name}`"), known()))?;
    path(pairs).ok_or_else(|| BadInput::new(format!("path `{name}`: no memory"), "a few MiB"))
}

fn host(policy: BucketPolicy) -> PoolBuilder<HostAllocator> {
    BucketPool::builder(HostAllocator::new()).policy(policy)
}

fn one<A: DeviceAllocator>(builder: PoolBuilder<A>, bytes: u64, pairs: u64) -> Option<()> {
    let pool = builder.build();
    for _ in 0..=pairs {
        drop(black_box(pool.allocate(black_box(bytes)).ok()?));
    }
    Some(())
}

#[cfg(feature = "noop")]
fn noop() -> PoolBuilder<WgpuAllocator> {
    let (device, queue) = wgpu::Device::noop(&wgpu::DeviceDescriptor::default());
    BucketPool::builder(WgpuAllocator::new(device, queue)).zero(ZeroPolicy::Never)
}

#[cfg(feature = "noop")]
fn vertices(pairs: u64) -> Option<()> {
    let (pool, kind) = (noop().build(), Usage::new(wgpu::BufferUsages::VERTEX));
    for _ in 0..=pairs {
        drop(black_box(pool.allocate_kind(pool.default_stream(), black_box(4 * KIB), kind).ok()?));
    }
    Some(())
}

#[cfg(feature = "noop")]
fn in_a_frame(pairs: u64) -> Option<()> {
    let pool = noop().build();
    let scope = pool.allocator().scope();
    for _ in 0..=pairs {
        drop(black_box(scope.take(&pool, black_box(4 * KIB)).ok()?));
    }
    Some(())
}

/// By a pool whose memory is known when the program runs.
fn any(pairs: u64) -> Option<()> {
    let pool = AnyPool::from(host(BucketPolicy::PowerOfTwo).build());
    for _ in 0..=pairs {
        drop(black_box(pool.allocate(black_box(4 * KIB)).ok()?));
    }
    Some(())
}

/// As an array of numbers.
fn array(pairs: u64) -> Option<()> {
    let pool = host(BucketPolicy::PowerOfTwo).build();
    for _ in 0..=pairs {
        let elements = black_box(KIB.try_into().ok()?);
        drop(black_box(PooledArray::<f32, _>::new(&pool, [elements]).ok()?));
    }
    Some(())
}

/// A result of two arrays of 16 numbers, which has the memory of the one before.
fn sums(pairs: u64) -> Option<()> {
    let pool = host(BucketPolicy::PowerOfTwo).build();
    let one = PooledArray::from_elem(&pool, [16], 1.0_f32).ok()?;
    for _ in 0..=pairs {
        drop(black_box(one.zip_with(black_box(&one), |a, b| a + b).ok()?));
    }
    Some(())
}

/// Many sizes cached at once, as after a step of a training loop.
fn many<A: DeviceAllocator>(builder: PoolBuilder<A>, pairs: u64) -> Option<()> {
    let pool = builder.build();
    let live: Result<Vec<_>, _> = (1..=SIZES).map(|n| pool.allocate(n * KIB)).collect();
    drop(live.ok()?);
    for pair in 0..pairs {
        drop(black_box(pool.allocate(black_box((pair % SIZES + 1) * KIB)).ok()?));
    }
    Some(())
}

/// The first allocations of `resnet18_train` and their frees, again and again: free ranges are split and
/// coalesce as in a program, and change their sizes.
fn training<A: DeviceAllocator>(builder: PoolBuilder<A>, pairs: u64) -> Option<()> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../traces/resnet18_train.ptrace.csv.zst");
    let mut log = trace::read_log(file.as_ref()).ok()?;
    let mut allocations =
        log.operations.iter().enumerate().filter(|(_, op)| op.kind == Kind::Allocate);
    let (end, _) = allocations.nth(REPLAYED)?;
    log.operations.truncate(end);
    let (pool, trace) = (builder.build(), Trace::of(&log).ok()?);
    let mut slots: Vec<_> = (0..trace.slots).map(|_| None).collect();
    // What is live at the end of a pass is freed, so that all passes but the first are alike.
    for _ in 0..=pairs / REPLAYED as u64 {
        for step in &trace.steps {
            match *step {
                Step::Allocate { slot, bytes, .. } => {
                    slots[slot as usize] = Some(black_box(pool.allocate(black_box(bytes)).ok()?));
                }
                Step::Free { slot, .. } => slots[slot as usize] = None,
                Step::Use { .. } => {}
            }
        }
        for slot in &mut slots {
            *slot = None;
        }
    }
    Some(())
}

/// One size that two streams take in turns, a pair each, which have a block each.
fn two_streams(pairs: u64) -> Option<()> {
    let pool = BucketPool::new(SimDevice::new());
    let streams = [pool.allocator().stream(), pool.allocator().stream()];
    let both = streams.each_ref().map(|stream| pool.allocate_on(stream, 4 * KIB));
    drop(both);
    for pair in 0..=pairs + 1 {
        let stream = &streams[usize::from(pair % 2 == 1)];
        drop(black_box(pool.allocate_on(stream, black_box(4 * KIB)).ok()?));
    }
    Some(())
}

/// With a use on the stream that the buffer was allocated for.
fn used(pairs: u64) -> Option<()> {
    let pool = BucketPool::new(SimDevice::new());
    let stream = pool.allocator().stream();
    for _ in 0..=pairs {
        let buffer = pool.allocate_on(&stream, black_box(4 * KIB)).ok()?;
        drop(black_box(buffer.on(&stream).ok()?));
    }
    Some(())
}

/// A pair by the functions of `bucketpool.h`.
#[expect(unsafe_code, reason = "the functions of C take pointers")]
fn through_c(pairs: u64) -> Option<()> {
    const BYTES: usize = 4 << 10;
    let (mut pool, none) = (ptr::null(), ptr::null_mut());
    // SAFETY: texts that end with a zero byte, and a place for the pool.
    let said =
        unsafe { bp_pool_new(c"policy = 'pow2'".as_ptr(), c"host".as_ptr(), 0, &raw mut pool) };
    if said != Status::BpOk {
        return None;
    }
    let mut done = Some(());
    for _ in 0..=pairs {
        let mut at = none;
        // SAFETY: the pool is alive, and `at` is a local variable.
        let lent = unsafe { bp_alloc(pool, black_box(BYTES), 0, none, &raw mut at) };
        // SAFETY: as above; the block is the pool's.
        let freed = unsafe { bp_free_here(pool, black_box(at)) };
        if lent != Status::BpOk || freed != Status::BpOk {
            done = None;
        }
    }
    // SAFETY: this is its only owner.
    let _ = unsafe { bp_pool_drop(pool) };
    done
}

/// A buffer that two streams use in turns: an event and a wait for each, of the simulated device, which
/// runs its queue now and then.
fn handed_over(pairs: u64) -> Option<()> {
    let device = SimDevice::new();
    let pool = BucketPool::new(device.clone());
    let streams = [device.stream(), device.stream()];
    let buffer = pool.allocate_on(&streams[0], 4 * KIB).ok()?;
    for pair in 0..=pairs {
        for stream in &streams {
            drop(black_box(buffer.on(stream).ok()?));
        }
        if pair % 64 == 0 {
            device.run();
        }
    }
    Some(())
}

#[expect(unsafe_code, reason = "an allocator is called directly")]
fn tcache(bytes: usize, pairs: u64) -> Option<()> {
    static TCACHE: Tcache = Tcache::new();
    let layout = Layout::from_size_align(bytes, 8).ok()?;
    for _ in 0..=pairs {
        // SAFETY: no size of a path is 0.
        let block = unsafe { TCACHE.alloc(black_box(layout)) };
        if block.is_null() {
            return None;
        }
        // SAFETY: from `alloc`, with this layout.
        unsafe { TCACHE.dealloc(black_box(block), layout) };
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_runs_and_another_name_is_refused() {
        for (name, _) in paths() {
            run(name, 3).unwrap();
        }
        let said = run("host", 1).unwrap_err().to_string();
        assert!(said.starts_with("path `host`; expected host, pow2, 4 KiB; "), "{said}");
    }
}
