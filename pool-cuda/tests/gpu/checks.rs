//! Checks of the allocators, for a GPU and for the double.

use cudarc::driver::result;
use pool_array::PooledArray;
use pool_core::{ArenaConfig, BucketPool, KIB, MIB};
use pool_cuda::{
    CudaAllocator, CudaAsyncAllocator, CudaCapture, CudaDevice, CudaPinnedAllocator,
    CudaVmmAllocator, PinnedBytes, into_slice,
};
use pool_sim::conformance;
use std::thread;

/// A check and what it is called.
pub(crate) type Check = (&'static str, fn(&CudaDevice));

pub(crate) const CHECKS: [Check; 12] = [
    ("cuMemAlloc passes the suite", by_alloc),
    ("memory in the order of streams passes the suite", in_order),
    ("memory in whole pages passes the suite", in_pages),
    ("an arena in pages passes the suite", arena_in_pages),
    ("an arena of segments passes the suite", arena_of_segments),
    ("page-locked memory passes the suite", page_locked),
    ("registered memory passes the suite", registered),
    ("three streams hand buffers on, contents checked", hand_over),
    ("arrays go into cudarc's copies on any stream", arrays),
    ("a capture uses its memory again, and launches show it", captures),
    ("a wrapped stream is retired", wrapped_stream),
    ("threads share a pool, contents checked", threads),
];

fn by_alloc(device: &CudaDevice) {
    conformance::run(|| CudaAllocator::on(device.clone()));
}

fn in_order(device: &CudaDevice) {
    let make = || CudaAsyncAllocator::new(device.clone(), u64::MAX).unwrap();
    conformance::run(make);
}

fn in_pages(device: &CudaDevice) {
    let make = || CudaVmmAllocator::new(device.clone(), &[]).unwrap();
    conformance::run(make);
}

fn arena_in_pages(device: &CudaDevice) {
    let memory = || CudaVmmAllocator::new(device.clone(), &[]).unwrap();
    conformance::run_arena(memory, &ArenaConfig::grow());
}

fn arena_of_segments(device: &CudaDevice) {
    let memory = || CudaAllocator::on(device.clone());
    conformance::run_arena(memory, &ArenaConfig::torch());
}

fn page_locked(device: &CudaDevice) {
    conformance::run(|| CudaPinnedAllocator::on(device.clone()));
}

fn registered(device: &CudaDevice) {
    conformance::run(|| CudaPinnedAllocator::registered(device.clone()));
}

/// Each turn a block is filled with the turn's byte and copied to a second one on another stream,
/// while a third stream overwrites what it is given. A block that comes too early shows it.
fn hand_over(device: &CudaDevice) {
    let raw: Vec<_> = (0..3).map(|_| device.context().new_stream().unwrap()).collect();
    let on: Vec<_> = raw.iter().map(|stream| device.stream(stream).unwrap()).collect();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let host = BucketPool::new(CudaPinnedAllocator::on(device.clone()));
    let mut results = Vec::new();
    for turn in 0..300_u32 {
        let byte = turn.to_le_bytes()[0];
        let [a, b, c] = [0, 1, 2].map(|i| (turn as usize + i) % 3);
        let mut source = host.allocate(MIB).unwrap();
        source.bytes_mut().unwrap().fill(byte);
        let first = pool.allocate_on(&on[a], MIB).unwrap();
        raw[a].memcpy_htod(&*source.on(&on[a]).unwrap(), &mut &*first.on(&on[a]).unwrap()).unwrap();
        let second = pool.allocate_on(&on[b], MIB).unwrap();
        let (from, to) = (first.on(&on[b]).unwrap(), second.on(&on[b]).unwrap());
        raw[b].memcpy_dtod(&*from, &mut &*to).unwrap();
        drop((from, to));
        let third = pool.allocate_on(&on[c], MIB).unwrap();
        raw[c].memset_zeros(&mut &*third.on(&on[c]).unwrap()).unwrap();
        let back = host.allocate(MIB).unwrap();
        raw[b].memcpy_dtoh(&*second.on(&on[b]).unwrap(), &mut &*back.on(&on[b]).unwrap()).unwrap();
        results.push((byte, back));
        if results.len() > 5 {
            let (byte, mut back) = results.remove(0);
            assert!(back.bytes().unwrap().iter().all(|shown| *shown == byte), "turn {turn}");
        }
    }
    assert!(pool.stats().misses < 30, "{:?}", pool.stats());
}

fn arrays(device: &CudaDevice) {
    let raw: Vec<_> = (0..2).map(|_| device.context().new_stream().unwrap()).collect();
    let on: Vec<_> = raw.iter().map(|raw| device.stream(raw).unwrap()).collect();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    for turn in 0..50_u8 {
        let a = PooledArray::<f32, _>::new_on(&pool, &on[0], [64, 64]).unwrap();
        let b = PooledArray::<f32, _>::new_on(&pool, &on[1], 4096).unwrap();
        let values = [f32::from(turn); 4096];
        raw[0].memcpy_htod(&values, &mut a.on(&on[0]).unwrap().typed::<f32>()).unwrap();
        let (from, to) = (a.on(&on[1]).unwrap(), b.on(&on[1]).unwrap());
        raw[1].memcpy_dtod(&from.typed::<f32>(), &mut to.typed()).unwrap();
        drop((from, to));
        raw[0].memset_zeros(&mut a.on(&on[0]).unwrap().typed::<f32>()).unwrap();
        assert_eq!(raw[1].clone_dtoh(&b.on(&on[1]).unwrap().typed::<f32>()).unwrap(), values);
        assert_eq!(a.to_vec().unwrap(), vec![0.0; 4096]);
    }
    let ordered = BucketPool::new(CudaAsyncAllocator::new(device.clone(), 0).unwrap());
    let slice = into_slice::<u8>(ordered.allocate_on(&on[0], KIB).unwrap().detach(), &raw[0]);
    drop(slice.unwrap());
}

fn captures(device: &CudaDevice) {
    let raw: Vec<_> = (0..2).map(|_| device.context().new_stream().unwrap()).collect();
    let [s, t] = [0, 1].map(|i: usize| device.stream(&raw[i]).unwrap());
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let input = pool.allocate_on(&s, MIB).unwrap();
    raw[0].memcpy_htod(&vec![3; 1 << 20], &mut &*input.on(&s).unwrap()).unwrap();
    // SAFETY: all buffers that the captured work uses outlive the graph.
    let mut capture = unsafe { CudaCapture::begin(&pool, &s) }.unwrap();
    let result = pool.allocate_on(&s, MIB).unwrap();
    capture.fork(&t, &s).unwrap();
    for _ in 0..4 {
        let scratch = pool.allocate_on(&s, MIB).unwrap();
        let (from, to) = (input.on(&s).unwrap(), scratch.on(&s).unwrap());
        raw[0].memcpy_dtod(&*from, &mut &*to).unwrap();
        raw[0].memcpy_dtod(&*to, &mut &*result.on(&s).unwrap()).unwrap();
        let side = pool.allocate_on(&t, MIB).unwrap();
        raw[1].memset_zeros(&mut &*side.on(&t).unwrap()).unwrap();
    }
    let mut graph = capture.end().unwrap();
    for stream in [&s, &t, &s] {
        graph.launch(stream, &[&input, &result]).unwrap();
        // Memory outside of the graph, overwritten at once.
        let other = pool.allocate_on(stream, MIB).unwrap();
        stream.raw().memset_zeros(&mut &*other.on(stream).unwrap()).unwrap();
        assert!(result.contents().unwrap().iter().all(|byte| *byte == 3));
    }
    assert_eq!(pool.stats().served_by.private, 6, "{:?}", pool.stats());
}

fn wrapped_stream(device: &CudaDevice) {
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    device.context().bind_to_thread().unwrap();
    let handle = result::stream::create(result::stream::StreamKind::NonBlocking).unwrap();
    // SAFETY: a stream of this context, destroyed after it was retired.
    let theirs = unsafe { device.wrap_stream(handle) }.unwrap();
    let buffer = pool.allocate_on(&theirs, MIB).unwrap();
    theirs.raw().memset_zeros(&mut &*buffer.on(&theirs).unwrap()).unwrap();
    drop(buffer);
    theirs.retire().unwrap();
    // SAFETY: created above, and not used afterwards.
    unsafe { result::stream::destroy(handle) }.unwrap();
    assert!(pool.allocate(MIB).unwrap().contents().unwrap().iter().all(|byte| *byte == 0));
    assert_eq!(pool.stats().misses, 1);
}

fn threads(device: &CudaDevice) {
    let pool =
        BucketPool::builder(CudaAllocator::on(device.clone())).cached_limit(16 * MIB).build();
    thread::scope(|scope| {
        for thread in 0..8_u8 {
            let (pool, device) = (&pool, device);
            scope.spawn(move || {
                let raw = device.context().new_stream().unwrap();
                let on = device.stream(&raw).unwrap();
                for turn in 0..200_u64 {
                    let bytes = (turn * 37 % 64 + 1) * 4 * KIB;
                    let buffer = pool.allocate_on(&on, bytes).unwrap();
                    let wanted = vec![thread; usize::try_from(bytes).unwrap()];
                    raw.memcpy_htod(&wanted, &mut &*buffer.on(&on).unwrap()).unwrap();
                    let mut shown = vec![0; wanted.len()];
                    raw.memcpy_dtoh(&*buffer.on(&on).unwrap(), &mut shown).unwrap();
                    raw.synchronize().unwrap();
                    assert_eq!(shown, wanted);
                }
                device.retire(&on).unwrap();
            });
        }
    });
}
