//! Memory that graphs of another library share, which tells of no launch.

use crate::harness::{calls_wait, count, double, fail, hazards, kernel, mend, run};
use cudarc::driver::{result, sys};
use pool_core::{ArenaConfig, BucketPool, KIB, MIB, Why};
use pool_cuda::{CudaAllocator, CudaDevice, GraphPool, PoolStream};

const MODE: sys::CUstreamCaptureMode =
    sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

type Pool = BucketPool<CudaAllocator>;

fn stream(device: &CudaDevice) -> PoolStream {
    device.stream(&device.context().new_stream().unwrap()).unwrap()
}

/// A pool of whole blocks, or an arena, on a device whose calls wait for nothing.
fn pool(arena: bool) -> Pool {
    calls_wait(false);
    let builder = BucketPool::builder(CudaAllocator::new(0).unwrap());
    match arena {
        true => builder.arena(ArenaConfig::segments(4 * MIB)).build(),
        false => builder.build(),
    }
}

fn take_in(memory: &GraphPool<CudaAllocator>, on: &PoolStream) -> bool {
    // SAFETY: the graphs of each test run one after the other, and go before the memory.
    unsafe { memory.take_in(on) }.unwrap()
}

/// A graph of another library.
struct Theirs(sys::CUgraph, sys::CUgraphExec);

impl Theirs {
    /// On a stream that no pool knows.
    fn launch(&self) {
        let on = result::stream::create(result::stream::StreamKind::NonBlocking).unwrap();
        self.launch_on(on);
        // SAFETY: created above, and destroyed once.
        unsafe { result::stream::destroy(on) }.unwrap();
    }

    fn launch_on(&self, on: sys::CUstream) {
        // SAFETY: the graph and the stream live, and what runs goes on when they are gone.
        unsafe { result::graph::launch(self.1, on) }.unwrap();
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        // SAFETY: made by `captured`, and destroyed once.
        unsafe { result::graph::exec_destroy(self.1) }.unwrap();
        // SAFETY: as above.
        unsafe { result::graph::destroy(self.0) }.unwrap();
    }
}

/// A capture as another library makes one, of `work`.
fn captured(memory: &GraphPool<CudaAllocator>, on: &PoolStream, work: impl FnOnce()) -> Theirs {
    memory.begin();
    on.raw().begin_capture(MODE).unwrap();
    assert!(take_in(memory, on));
    work();
    // SAFETY: the stream lives, and its capture began above.
    let graph = unsafe { result::stream::end_capture(on.raw().cu_stream()) }.unwrap();
    memory.end().unwrap();
    // SAFETY: the graph was just made.
    let ready = unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) };
    Theirs(graph, ready.unwrap())
}

#[test]
fn memory_is_not_reused_beside_a_launch_that_nobody_told_of() {
    for arena in [false, true] {
        let _one = double();
        let pool = pool(arena);
        let device = pool.allocator().device().clone();
        let (s, t) = (stream(&device), stream(&device));
        let memory = GraphPool::new(&pool);
        let graph = captured(&memory, &s, || kernel(&pool.allocate_on(&s, MIB).unwrap(), &s));
        graph.launch(); // it runs when the graph is gone
        drop(graph);
        memory.close().unwrap();
        let misses = pool.stats().misses;
        kernel(&pool.allocate_on(&t, MIB).unwrap(), &t);
        assert_eq!((pool.stats().misses, hazards()), (misses, 0), "arena: {arena}");
    }
}

#[test]
fn graphs_that_share_memory_reuse_it() {
    for arena in [false, true] {
        let _one = double();
        let pool = pool(arena);
        let s = stream(pool.allocator().device());
        let memory = GraphPool::new(&pool);
        let mut kept = Vec::new();
        let graphs: Vec<_> = (0..4)
            .map(|_| {
                captured(&memory, &s, || {
                    let scratch = pool.allocate_on(&s, MIB).unwrap();
                    kernel(&scratch, &s);
                    kept.push(pool.allocate_on(&s, KIB).unwrap()); // a result, which stays
                    kernel(&kept[kept.len() - 1], &s);
                    scratch.drop_on(&s).unwrap();
                })
            })
            .collect();
        let live = pool.stats().allocated_bytes;
        assert_eq!(
            (live, memory.cached_bytes()),
            (4 * KIB, MIB),
            "one block for the scratch of all"
        );
        // Requests outside of captures get none of it.
        let other = pool.allocate_on(&s, MIB).unwrap();
        kernel(&other, &s);
        let theirs = pool.allocator().device().context().new_stream().unwrap();
        for graph in &graphs {
            graph.launch_on(theirs.cu_stream());
        }
        drop((graphs, kept));
        memory.close().unwrap();
        assert_eq!((pool.stats().allocated_bytes, hazards()), (MIB, 0));
    }
}

#[test]
fn buffers_that_outlive_the_memory_go_to_the_pool() {
    let _one = double();
    let pool = pool(false);
    let device = pool.allocator().device().clone();
    let (s, t) = (stream(&device), stream(&device));
    let memory = GraphPool::new(&pool);
    let mut result = None;
    let graph = captured(&memory, &s, || {
        result = pool.allocate_on(&s, MIB).ok();
        kernel(result.as_ref().unwrap(), &s);
    });
    graph.launch();
    drop((graph, memory));
    let result = result.unwrap();
    kernel(&result, &t);
    result.drop_on(&t).unwrap();
    kernel(&pool.allocate_on(&t, MIB).unwrap(), &t);
    assert_eq!((pool.stats().misses, hazards()), (1, 0));
}

#[test]
fn a_stream_that_joined_the_capture_takes_from_the_same_memory() {
    let _one = double();
    let pool = pool(false);
    let device = pool.allocator().device().clone();
    let (s, side) = (stream(&device), stream(&device));
    let memory = GraphPool::new(&pool);
    assert!(!take_in(&memory, &side), "it is under no capture");
    kernel(&pool.allocate_on(&side, MIB).unwrap(), &side);
    run();
    let graph = captured(&memory, &s, || {
        kernel(&pool.allocate_on(&s, KIB).unwrap(), &s);
        side.raw().join(s.raw()).unwrap(); // the other library's edge
        assert!(take_in(&memory, &side) && take_in(&memory, &side));
        kernel(&pool.allocate_on(&side, KIB).unwrap(), &side);
        s.raw().join(side.raw()).unwrap();
    });
    assert_eq!(
        memory.cached_bytes(),
        2 * KIB,
        "nothing orders one stream behind the other for the pool"
    );
    graph.launch();
    // Outside of the capture both serve as before.
    kernel(&pool.allocate_on(&side, MIB).unwrap(), &side);
    assert_eq!(hazards(), 0);
}

#[test]
fn memory_is_closed_when_no_capture_goes_on() {
    let _one = double();
    let pool = pool(false);
    let s = stream(pool.allocator().device());
    let (memory, next) = (GraphPool::new(&pool), GraphPool::new(&pool));
    let graph = captured(&memory, &s, || kernel(&pool.allocate_on(&s, MIB).unwrap(), &s));
    graph.launch();
    drop(graph);
    // Its last graph goes while another one is captured: a wait would break that.
    let mut waiting = None;
    let waits = count("cuCtxSynchronize");
    let second = captured(&next, &s, || {
        let (memory, refused) = memory.close().unwrap_err();
        assert_eq!(refused.why, Why::NotSubmitted);
        assert_eq!(next.end().unwrap_err().why, Why::NotSubmitted);
        waiting = Some(memory);
        kernel(&pool.allocate_on(&s, MIB).unwrap(), &s);
    });
    assert_eq!((count("cuCtxSynchronize") - waits, pool.stats().misses), (0, 2));
    waiting.unwrap().close().unwrap();
    second.launch();
    assert_eq!((pool.stats().cached_bytes, hazards()), (2 * MIB - next.cached_bytes(), 0));
}

#[test]
fn memory_whose_wait_is_refused_is_closed_later() {
    let _one = double();
    let pool = pool(false);
    let device = pool.allocator().device().clone();
    let (s, t) = (stream(&device), stream(&device));
    let memory = GraphPool::new(&pool);
    let graph = captured(&memory, &s, || kernel(&pool.allocate_on(&s, MIB).unwrap(), &s));
    graph.launch();
    drop(graph);
    fail("cuCtxSynchronize", 0, u64::MAX, 1);
    let (memory, refused) = memory.close().unwrap_err();
    assert_eq!(refused.call, "cuCtxSynchronize");
    mend();
    kernel(&pool.allocate_on(&t, MIB).unwrap(), &t);
    assert_eq!((pool.stats().misses, hazards()), (2, 0), "it serves nobody");
    memory.close().unwrap();
    kernel(&pool.allocate_on(&t, MIB).unwrap(), &t);
    assert_eq!((pool.stats().cached_bytes, hazards()), (2 * MIB, 0));
}

#[test]
fn two_memories_do_not_share_a_stream() {
    let _one = double();
    let pool = pool(false);
    let s = stream(pool.allocator().device());
    let (one, other) = (GraphPool::new(&pool), GraphPool::new(&pool));
    drop(captured(&one, &s, || {
        // SAFETY: nothing is launched.
        let refused = unsafe { other.take_in(&s) };
        assert_eq!(refused.unwrap_err().why, Why::NotSubmitted);
        kernel(&pool.allocate_on(&s, KIB).unwrap(), &s);
    }));
    let stranger = stream(&CudaDevice::new(1).unwrap());
    stranger.raw().begin_capture(MODE).unwrap();
    // SAFETY: as above.
    let refused = unsafe { one.take_in(&stranger) };
    assert_eq!(refused.unwrap_err().why, Why::Foreign);
    // SAFETY: the stream lives, and its capture began above.
    let nothing = unsafe { result::stream::end_capture(stranger.raw().cu_stream()) };
    // SAFETY: the graph was just made.
    unsafe { result::graph::destroy(nothing.unwrap()) }.unwrap();
}

#[test]
fn the_second_graph_of_a_memory_takes_a_side_stream_in_too() {
    for arena in [false, true] {
        let _one = double();
        let pool = pool(arena);
        let device = pool.allocator().device().clone();
        let (s, side) = (stream(&device), stream(&device));
        let memory = GraphPool::new(&pool);
        let graphs = [(); 3].map(|()| {
            captured(&memory, &s, || {
                kernel(&pool.allocate_on(&s, KIB).unwrap(), &s);
                side.raw().join(s.raw()).unwrap(); // the other library's edge
                assert!(take_in(&memory, &side));
                kernel(&pool.allocate_on(&side, KIB).unwrap(), &side);
                s.raw().join(side.raw()).unwrap();
            })
        });
        let theirs = stream(&device);
        for graph in &graphs {
            graph.launch_on(theirs.raw().cu_stream());
        }
        assert_eq!(hazards(), 0, "arena: {arena}");
    }
}

#[test]
fn a_graph_takes_no_memory_that_work_before_its_capture_still_uses() {
    for (arena, on_its_own) in [(false, false), (false, true), (true, false), (true, true)] {
        let _one = double();
        let pool = pool(arena);
        let device = pool.allocator().device().clone();
        let (s, t) = (stream(&device), stream(&device));
        let before = if on_its_own { &s } else { &t };
        kernel(&pool.allocate_on(before, MIB).unwrap(), before); // it has not run
        let memory = GraphPool::new(&pool);
        let graph = captured(&memory, &s, || kernel(&pool.allocate_on(&s, MIB).unwrap(), &s));
        graph.launch(); // on a stream that nobody orders
        run();
        assert_eq!(hazards(), 0, "arena: {arena}, on its own stream: {on_its_own}");
    }
}
