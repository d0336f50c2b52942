//! Random schedules over several streams, through cudarc's real code, with the check of every use.

use crate::harness::{
    capture, count, double, expected_hazards, hazards, kernel, kernel_at, pretend, reset, seed,
    touch,
};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode as Mode};
use pool_core::stream::StealPolicy;
use pool_core::{ArenaConfig, BucketPool, DeviceError, KIB, MIB, PoolBuilder, PooledBuffer, Why};
use pool_cuda::{
    CudaAllocator, CudaAsyncAllocator, CudaCapture, CudaDevice, CudaPinnedAllocator,
    CudaVmmAllocator, PinnedBytes, PoolStream, VmmConfig, Vram,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Schedules of each kind of memory; `SCHEDULES` says another number.
const SCHEDULES: u64 = 5_000;
/// How cudarc makes a graph of what was captured.
const FLAGS: CUgraphInstantiate_flags =
    CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
/// Steps of one schedule.
const STEPS: u64 = 40;

/// The kinds of steps of a schedule. Where the host learns that the device is done, by a query, a
/// free or the end of a stream, a wait before that turns out to be unnecessary. A test that every
/// removed wait is noticed leaves these steps out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Everything,
    /// Nothing is given back, and no stream ends.
    NoFrees,
    /// Nor is there page-locked memory.
    StreamsOnly,
}

/// One schedule: buffers are taken, used, passed on and dropped on four streams, and page-locked
/// ones are copied from; streams come and go; other libraries capture. Returns how many uses were out of order.
fn schedule<A: Vram>(
    number: u64,
    what: What,
    make: impl Fn(CudaDevice) -> PoolBuilder<A>,
) -> usize {
    let mut dice = StdRng::seed_from_u64(number);
    seed(number);
    let calm = what != What::Everything;
    let device = CudaDevice::new(0).unwrap();
    let new = |_| device.stream(&device.context().new_stream().unwrap()).unwrap();
    let mut streams: Vec<PoolStream> = (0..4).map(new).collect();
    let pool = make(device.clone()).cached_limit(if calm { MIB } else { 64 * KIB }).build();
    let host = BucketPool::new(CudaPinnedAllocator::on(device.clone()));
    let mut live: Vec<PooledBuffer<A>> = Vec::new();
    for _ in 0..STEPS {
        let on = &streams[dice.random_range(0..4)];
        match dice.random_range(0..if calm { 12 } else { 14 }) {
            0..=3 => {
                let buffer =
                    pool.allocate_on(on, [KIB, 2 * KIB, 4 * KIB][dice.random_range(0..3)]).unwrap();
                kernel(&buffer, on);
                live.push(buffer);
            }
            4..=6 if !live.is_empty() => kernel(&live[dice.random_range(0..live.len())], on),
            7..=8 if !live.is_empty() => drop(live.swap_remove(dice.random_range(0..live.len()))),
            9 if what != What::StreamsOnly && !live.is_empty() => {
                let target = &live[dice.random_range(0..live.len())];
                let mut source = host.allocate(target.size()).unwrap();
                let bytes = source.bytes_mut().unwrap();
                touch(bytes);
                bytes.fill(1);
                let source = source.read_on(on).unwrap();
                on.raw().memcpy_htod(&*source, &mut &*target.on(on).unwrap()).unwrap();
            }
            10 if !calm && dice.random_range(0..4) == 0 => {
                let at = dice.random_range(0..4);
                let ended = std::mem::replace(&mut streams[at], new(0));
                device.retire(&ended).unwrap();
            }
            11 if !calm && dice.random_range(0..2) == 0 => {
                graph(&pool, &live, on, &mut dice, &streams);
            }
            11 if !calm => {
                pool.trim(4 * KIB).unwrap();
            }
            12 if !calm && dice.random_range(0..2) == 0 => {
                capture_of_others(&pool, &live, on, &mut dice, &streams);
            }
            12 if !calm => adopted(&pool, &live, on, &mut dice, &streams),
            13 if !calm && live.len() > 1 => {
                let [from, to] = [0, 1].map(|_| dice.random_range(0..live.len()));
                if from != to && live[from].size() == live[to].size() {
                    let (from, mut to) =
                        (live[from].read_on(on).unwrap(), &*live[to].on(on).unwrap());
                    on.raw().memcpy_dtod(&*from, &mut to).unwrap();
                }
            }
            _ => {}
        }
    }
    drop(live);
    drop(pool);
    expected_hazards()
}

/// Captures work on `on` that uses a buffer from outside and its own scratch memory, launches it on
/// any streams, reads its result on any stream, and loads its input anew on any stream.
fn graph<A: Vram>(
    pool: &BucketPool<A>,
    live: &[PooledBuffer<A>],
    on: &PoolStream,
    dice: &mut StdRng,
    streams: &[PoolStream],
) {
    let Some(input) = live.get(dice.random_range(0..4)) else { return };
    let captured = capture(pool, on).unwrap();
    let result = pool.allocate_on(on, KIB).unwrap();
    kernel(&result, on);
    kernel(&pool.allocate_on(on, 2 * KIB).unwrap(), on);
    kernel(input, on);
    let mut graph = captured.end().unwrap();
    for _ in 0..dice.random_range(0..3) {
        graph.launch(&streams[dice.random_range(0..4)], &[input, &result]).unwrap();
        kernel(&result, &streams[dice.random_range(0..4)]);
        kernel(input, &streams[dice.random_range(0..4)]);
    }
}

/// Begins a capture of `on` as another library does.
fn begin(on: &PoolStream) {
    on.raw().begin_capture(Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
}

/// Another library captures `on`, unknown to the pool, and throws its graph away; the program goes on
/// meanwhile. What would fall into the capture is refused.
fn capture_of_others<A: Vram>(
    pool: &BucketPool<A>,
    live: &[PooledBuffer<A>],
    on: &PoolStream,
    dice: &mut StdRng,
    streams: &[PoolStream],
) {
    begin(on);
    for _ in 0..dice.random_range(0..6) {
        let other = &streams[dice.random_range(0..4)];
        match dice.random_range(0..3) {
            0 => {
                let buffer = live.get(dice.random_range(0..4));
                if let Some(Ok(view)) = buffer.map(|buffer| buffer.on(other)) {
                    assert_eq!(kernel_at(other, view.as_ptr(), KIB), 0);
                }
            }
            1 => match pool.allocate_on(other, [KIB, 8 * KIB][dice.random_range(0..2)]) {
                Ok(buffer) => {
                    let used = buffer.on(other).map(|view| kernel_at(other, view.as_ptr(), KIB));
                    assert!(matches!(used, Ok(0)), "{used:?}");
                }
                Err(refused) => assert_eq!(refused.why(), Why::NotSubmitted, "{refused}"),
            },
            _ => drop(pool.trim(KIB)),
        }
    }
    on.raw().end_capture(FLAGS).unwrap();
}

/// Another library captures `on`, and the pool adopts the capture. As [`graph`] otherwise.
fn adopted<A: Vram>(
    pool: &BucketPool<A>,
    live: &[PooledBuffer<A>],
    on: &PoolStream,
    dice: &mut StdRng,
    streams: &[PoolStream],
) {
    let Some(input) = live.get(dice.random_range(0..4)) else { return };
    begin(on);
    // SAFETY: the input outlives the graph.
    let mut adopted = unsafe { CudaCapture::adopt(pool, on) }.unwrap();
    let result = pool.allocate_on(on, KIB).unwrap();
    kernel(&result, on);
    kernel(&pool.allocate_on(on, 2 * KIB).unwrap(), on);
    kernel(input, on);
    let graph = on.raw().end_capture(FLAGS).unwrap().unwrap();
    let memory = adopted.end().unwrap();
    for _ in 0..dice.random_range(0..3) {
        {
            let _uses = [input.on(on).unwrap(), result.on(on).unwrap()];
            let refused = |_| DeviceError::new(Why::Other, "a launch");
            memory.launch(on, || graph.launch().map_err(refused)).unwrap();
        }
        kernel(&result, &streams[dice.random_range(0..4)]);
        kernel(input, &streams[dice.random_range(0..4)]);
        kernel(&pool.allocate_on(&streams[dice.random_range(0..4)], KIB).unwrap(), on);
    }
    drop(graph);
}

fn all<A: Vram>(make: impl Fn(CudaDevice) -> PoolBuilder<A>) {
    let _one = double();
    let schedules = std::env::var("SCHEDULES").map_or(SCHEDULES, |n| n.parse().unwrap());
    for number in 1..=schedules {
        reset();
        schedule(number, What::Everything, &make);
        assert_eq!(hazards(), 0, "schedule {number}");
    }
}

fn plain(device: CudaDevice) -> PoolBuilder<CudaAllocator> {
    BucketPool::builder(CudaAllocator::on(device))
}

fn pages(device: CudaDevice) -> PoolBuilder<CudaVmmAllocator> {
    let config = VmmConfig::default();
    let memory = CudaVmmAllocator::with(device, &config).unwrap();
    BucketPool::builder(memory).arena(ArenaConfig::grow())
}

#[test]
fn no_use_is_out_of_order_by_alloc() {
    all(plain);
}

#[test]
fn no_use_is_out_of_order_in_the_order_of_streams() {
    all(|device| BucketPool::builder(CudaAsyncAllocator::new(device, 0).unwrap()));
}

#[test]
fn no_use_is_out_of_order_in_pages() {
    all(pages);
}

#[test]
fn no_use_is_out_of_order_in_segments() {
    all(|device| plain(device).arena(ArenaConfig::segments(16 * KIB)));
}

/// Removes each wait, or query, of some schedules in a separate run. Returns how many removals were
/// noticed, and how many there were.
fn noticed(call: &str, what: What, steal: StealPolicy) -> (u64, u64) {
    let plain = |device| plain(device).steal(steal);
    let _one = double();
    let (mut noticed, mut all) = (0, 0);
    for number in 1..=100 {
        reset();
        schedule(number, what, plain);
        let calls = count(call);
        for one in 0..calls {
            reset();
            pretend(call, one);
            noticed += u64::from(schedule(number, what, plain) > 0);
        }
        all += calls;
    }
    (noticed, all)
}

#[test]
fn a_wait_that_is_removed_is_noticed() {
    let (noticed, all) = noticed("cuStreamWaitEvent", What::StreamsOnly, StealPolicy::Wait);
    assert!(all > 100, "{all} waits are too few to say anything");
    assert_eq!(noticed, all);
}

#[test]
fn a_query_that_lies_is_noticed() {
    // Without steals, all queries are about page-locked memory.
    let (noticed, all) = noticed("cuEventQuery", What::NoFrees, StealPolicy::Never);
    assert!(all > 100, "{all} queries are too few to say anything");
    assert_eq!(noticed, all);
}

#[test]
fn a_query_that_lies_to_a_thief_is_noticed_unless_another_wait_orders_the_same() {
    // A block of several streams' marks: the wait for one of them may order the others too.
    let (noticed, all) = noticed("cuEventQuery", What::StreamsOnly, StealPolicy::Wait);
    assert!(all > 50, "{all} queries are too few to say anything");
    assert!(noticed * 4 >= all * 3, "{noticed} of {all}");
}
