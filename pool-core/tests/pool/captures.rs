//! Graphs: blocks allocated in a capture belong to the graph and are ordered with its launches.
#![expect(clippy::unwrap_used, reason = "tests")]

use crate::hooked::hooked;
use pool_core::observe::RangeState;
use pool_core::stream::{Mark, StealPolicy};
use pool_core::{
    ArenaConfig, BucketPool, DeviceAllocator, KIB, MIB, PooledBuffer, PrivatePool, StreamClock, Why,
};
use pool_sim::{Graph, Hooked, SimDevice, SimStream};
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc;

type Pool = BucketPool<SimDevice>;

fn kernel(buffer: &PooledBuffer<SimDevice>, on: &SimStream) {
    buffer.allocator().kernel(on, &buffer.on(on).unwrap());
}

/// Captures on `on` the work that `work` does.
fn captured(
    pool: &Pool,
    on: &SimStream,
    work: impl FnOnce(&Pool),
) -> (PrivatePool<SimDevice>, Graph) {
    let private = PrivatePool::new(pool);
    pool.allocator().begin_capture(on).unwrap();
    private.bind(on).unwrap();
    work(pool);
    let (graph, awaited) = pool.allocator().end_capture(on).unwrap();
    private.end(&awaited);
    (private, graph)
}

fn launch(pool: &Pool, (private, graph): &(PrivatePool<SimDevice>, Graph), on: &SimStream) {
    let device = pool.allocator();
    let launched = private.launch(on, || {
        device.launch(graph, on);
        Ok(())
    });
    launched.unwrap();
}

#[test]
fn a_graph_gets_what_it_frees_again() {
    let arena = BucketPool::builder(SimDevice::new()).arena(ArenaConfig::grow()).build();
    for pool in [arena, Pool::new(SimDevice::new())] {
        let (s, other) = (pool.allocator().stream(), pool.allocator().stream());
        drop(pool.allocate_on(&s, MIB).unwrap());
        let used_elsewhere = pool.allocate_on(&s, 4096).unwrap();
        kernel(&used_elsewhere, &other);
        drop(used_elsewhere);
        drop(pool.allocate_on(&s, 4096).unwrap());
        let private = PrivatePool::new(&pool);
        private.bind(&s).unwrap();
        let of_graph = pool.allocate_on(&s, 4096).unwrap();
        drop(of_graph);
        assert_eq!(private.cached_bytes(), 4096, "the graph's from now on");
    }
}

#[test]
fn what_is_freed_in_a_capture_is_used_again_in_it_and_by_nobody_else() {
    let pool = Pool::new(SimDevice::new());
    let (s, other) = (pool.allocator().stream(), pool.allocator().stream());
    let before = pool.allocator().calls();
    let graph = captured(&pool, &s, |pool| {
        for _ in 0..10 {
            kernel(&pool.allocate_on(&s, MIB).unwrap(), &s);
        }
        assert_eq!((pool.stats().misses, pool.stats().served_by.private), (1, 9));
    });
    let during = pool.allocator().calls();
    assert_eq!(during.records - before.records, 1, "the one before the capture");
    assert_eq!((during.queries, during.waits), (before.queries, before.waits));
    for stream in [&s, &other, &s] {
        launch(&pool, &graph, stream);
        kernel(&pool.allocate_on(stream, MIB).unwrap(), stream);
    }
    assert_eq!((graph.0.cached_bytes(), pool.allocator().hazards()), (MIB, 0));
    pool.clear().unwrap();
    assert_eq!(pool.stats().reserved_bytes, MIB, "the graph's");
    drop(graph);
    // The block is now ordered after the last launch, for each stream that takes it.
    kernel(&pool.allocate_on(&other, MIB).unwrap(), &other);
    pool.clear().unwrap();
    assert_eq!((pool.stats().reserved_bytes, pool.allocator().hazards()), (0, 0));
}

#[test]
fn streams_of_a_capture_share_blocks_where_an_edge_orders_them() {
    let pool = Pool::new(SimDevice::new());
    let (s, t) = (pool.allocator().stream(), pool.allocator().stream());
    let clock = pool.allocator().clock();
    let private = PrivatePool::new(&pool);
    pool.allocator().begin_capture(&s).unwrap();
    clock.begin_capture(&t).unwrap();
    clock.join_captured(&t, &s).unwrap();
    private.bind(&s).unwrap();
    private.bind(&t).unwrap();
    kernel(&pool.allocate_on(&s, MIB).unwrap(), &s);
    // A second block: t is not ordered after the first use.
    kernel(&pool.allocate_on(&t, MIB).unwrap(), &t);
    assert_eq!(pool.stats().misses, 2);
    clock.join_captured(&s, &t).unwrap();
    let (one, two) = (pool.allocate_on(&s, MIB).unwrap(), pool.allocate_on(&s, MIB).unwrap());
    assert_eq!(pool.stats().misses, 2, "s is after both");
    kernel(&one, &s);
    kernel(&two, &s);
    drop((one, two));
    let mut awaited = clock.end_capture(&t);
    let (graph, of_s) = pool.allocator().end_capture(&s).unwrap();
    awaited.extend(of_s);
    private.end(&awaited);
    launch(&pool, &(private, graph), &s);
    pool.allocator().run();
    assert_eq!(pool.allocator().hazard_report(), Vec::<String>::new());
}

#[test]
fn a_launch_waits_for_what_the_captured_work_was_behind() {
    let pool = Pool::new(SimDevice::new());
    let (s, load) = (pool.allocator().stream(), pool.allocator().stream());
    let input = pool.allocate_on(&load, MIB).unwrap();
    kernel(&input, &load);
    let graph = captured(&pool, &s, |_| kernel(&input, &s));
    launch(&pool, &graph, &s);
    assert_eq!(pool.allocator().hazards(), 0);
}

/// Two inputs are last used on one stream, with an event between the two uses. The captured work
/// uses the later one first.
#[test]
fn a_launch_waits_for_the_later_of_two_marks_of_one_stream() {
    let pool = Pool::new(SimDevice::new());
    let [copy, s, other] = [(); 3].map(|()| pool.allocator().stream());
    let (early, late) =
        (pool.allocate_on(&copy, MIB).unwrap(), pool.allocate_on(&copy, MIB).unwrap());
    kernel(&early, &copy);
    drop(early.on(&other).unwrap()); // records an event on `copy`
    kernel(&late, &copy);
    let graph = captured(&pool, &s, |_| {
        kernel(&late, &s);
        kernel(&early, &s);
    });
    launch(&pool, &graph, &s);
    let device = pool.allocator();
    assert_eq!(device.hazards(), 0, "{:?}", device.hazard_report());
}

/// Calls `with` with each order of `items`.
fn each_order<T: Clone>(items: &[T], with: &mut impl FnMut(&[T])) {
    fn swap_in<T: Clone>(order: &mut [T], at: usize, with: &mut impl FnMut(&[T])) {
        if at == order.len() {
            return with(order);
        }
        for other in at..order.len() {
            order.swap(at, other);
            swap_in(order, at + 1, with);
            order.swap(at, other);
        }
    }
    swap_in(&mut items.to_vec(), 0, with);
}

/// The marks of a private pool are those of the capture, and the last launch on each stream.
#[test]
fn a_launch_waits_for_the_marks_of_a_capture_in_whatever_order_they_come() {
    let marks = [(0, 1), (0, 2), (1, 1), (0, 0), (1, 0)];
    // The last marks of both streams are among the first three.
    let marks = if cfg!(miri) { &marks[..3] } else { &marks[..] };
    each_order(marks, &mut |order: &[(usize, usize)]| {
        let pool = Pool::new(SimDevice::new());
        let device = pool.allocator();
        let [s, t, other, first, second] = [(); 5].map(|()| device.stream());
        let used_by = |stream: &SimStream, times: usize| -> Vec<(PooledBuffer<SimDevice>, Mark)> {
            let use_one = |_| {
                let buffer = pool.allocate_on(stream, MIB).unwrap();
                kernel(&buffer, stream);
                let mark = device.clock().mark(stream);
                device.clock().order(&other, &[mark]).unwrap(); // ends the epoch of the mark
                (buffer, mark)
            };
            (0..times).map(use_one).collect()
        };
        let used = [used_by(&first, 3), used_by(&second, 2)];
        let graph = captured(&pool, &s, |_| {
            let all = used.iter().flatten();
            all.for_each(|(buffer, _)| device.kernel(&s, &buffer.on(&s).unwrap()));
        });
        let private = PrivatePool::new(&pool);
        private.end(&order.iter().map(|(of, at)| used[*of][*at].1).collect::<Vec<_>>());
        launch(&pool, &(private, graph.1), &t);
        assert_eq!(device.hazards(), 0, "{order:?}: {:?}", device.hazard_report());
    });
}

#[test]
fn the_cpu_waits_for_the_launches_of_a_graph() {
    let pool = Pool::new(SimDevice::new());
    let (s, t) = (pool.allocator().stream(), pool.allocator().stream());
    let mut result = None;
    let graph = captured(&pool, &s, |pool| {
        let buffer = pool.allocate_on(&s, MIB).unwrap();
        kernel(&buffer, &s);
        result = Some(buffer);
    });
    let mut result = result.unwrap();
    for stream in [&t, &s, &t] {
        launch(&pool, &graph, stream);
        pool.allocator().touch(&result.on_cpu().unwrap());
    }
    let device = pool.allocator();
    assert_eq!(device.hazards(), 0, "{:?}", device.hazard_report());
}

/// The graph of that capture would use the memory of the first one, which only launches of the
/// first one are ordered with.
#[test]
fn a_graph_is_not_launched_into_a_capture() {
    let pool = Pool::new(SimDevice::new());
    let (s, t) = (pool.allocator().stream(), pool.allocator().stream());
    let (private, graph) = captured(&pool, &s, |pool| {
        kernel(&pool.allocate_on(&s, MIB).unwrap(), &s);
    });
    let outer = captured(&pool, &s, |pool| {
        let launched = private.launch(&s, || {
            pool.allocator().launch(&graph, &s);
            Ok(())
        });
        assert_eq!(launched.unwrap_err().why, Why::NotSubmitted);
    });
    launch(&pool, &(private, graph), &t);
    launch(&pool, &outer, &s);
    assert_eq!(pool.allocator().hazards(), 0);
}

#[test]
fn an_arena_under_a_capture_hands_out_nothing_too_early() {
    for launches in 0..3 {
        let memory = SimDevice::new();
        let pool = BucketPool::builder(memory.clone()).arena(ArenaConfig::segments(MIB)).build();
        let (s, t) = (memory.stream(), memory.stream());
        let use_on = |on: &SimStream| {
            let buffer = pool.allocate_on(on, MIB / 2).unwrap();
            memory.kernel(on, &buffer.on(on).unwrap());
        };
        use_on(&t); // its kernel has not run yet
        let private = PrivatePool::new(&pool);
        memory.begin_capture(&s).unwrap();
        private.bind(&s).unwrap();
        // Must not take the range that t used: no part of it may count as if s had waited for t.
        use_on(&s);
        let (graph, awaited) = memory.end_capture(&s).unwrap();
        private.end(&awaited);
        for _ in 0..launches {
            let launch = || {
                memory.launch(&graph, &s);
                Ok(())
            };
            private.launch(&s, launch).unwrap();
        }
        drop(private);
        use_on(&s); // with or without a launch, t may still use the range
        assert_eq!(memory.hazards(), 0, "{launches} launches: {:?}", memory.hazard_report());
    }
}

#[test]
fn without_that_wait_the_check_sees_it() {
    let pool = Pool::new(SimDevice::new());
    let (s, load) = (pool.allocator().stream(), pool.allocator().stream());
    let input = pool.allocate_on(&load, MIB).unwrap();
    kernel(&input, &load);
    let (_private, graph) = captured(&pool, &s, |_| kernel(&input, &s));
    pool.allocator().launch(&graph, &s);
    assert_eq!(pool.allocator().hazards(), 1);
}

#[test]
fn what_lives_at_the_end_of_a_capture_is_the_graphs_too() {
    let pool = Pool::new(SimDevice::new());
    let (s, t) = (pool.allocator().stream(), pool.allocator().stream());
    let mut kept = None;
    let graph = captured(&pool, &s, |pool| {
        let result = pool.allocate_on(&s, MIB).unwrap();
        kernel(&result, &s);
        kept = Some(result);
    });
    let result = kept.unwrap();
    launch(&pool, &graph, &s);
    kernel(&result, &t); // reads it after the launch
    launch(&pool, &graph, &t);
    drop(result);
    kernel(&pool.allocate_on(&s, MIB).unwrap(), &s);
    assert_eq!(pool.stats().misses, 2, "the graph may be launched again");
    let late = pool.clone();
    drop(pool);
    drop(graph);
    late.clear().unwrap();
    assert_eq!((late.stats().reserved_bytes, late.allocator().hazards()), (0, 0));
}

#[test]
fn buffers_outlive_the_graph_and_a_detached_one_waits_for_it() {
    let pool = Pool::new(SimDevice::new());
    let (s, t) = (pool.allocator().stream(), pool.allocator().stream());
    let mut kept = Vec::new();
    let graph = captured(&pool, &s, |pool| {
        for _ in 0..3 {
            kept.push(pool.allocate_on(&s, MIB).unwrap());
        }
        for buffer in &kept {
            kernel(buffer, &s);
        }
    });
    launch(&pool, &graph, &s);
    kept.pop().unwrap().detach().free().unwrap();
    assert_eq!(pool.stats().reserved_bytes, 3 * MIB, "the graph may be launched again");
    let (block, marks) = kept.pop().unwrap().detach().into_raw().unwrap();
    drop(graph);
    drop(kept);
    kernel(&pool.allocate_on(&t, MIB).unwrap(), &t);
    pool.allocator().free(block, &marks).unwrap();
    pool.clear().unwrap();
    assert_eq!((pool.allocator().held_bytes(), pool.allocator().hazards()), (0, 0));
}

#[test]
fn captured_work_cannot_be_waited_for_and_says_so() {
    let pool = Pool::new(SimDevice::new());
    let (s, t) = (pool.allocator().stream(), pool.allocator().stream());
    let input = pool.allocate_on(&s, MIB).unwrap();
    let graph = captured(&pool, &s, |_| {
        kernel(&input, &s);
        assert_eq!(input.on(&t).unwrap_err().why, Why::NotSubmitted);
        assert_eq!(pool.allocator().begin_capture(&s).unwrap_err().why, Why::NotSubmitted);
        let again = PrivatePool::new(&pool);
        assert_eq!(again.bind(&s).unwrap_err().why, Why::Other);
        let stranger = SimDevice::new().stream();
        assert_eq!(again.bind(&stranger).unwrap_err().why, Why::Foreign);
    });
    launch(&pool, &graph, &s);
    kernel(&input, &t);
    assert_eq!(pool.allocator().hazards(), 0);
}

#[test]
fn memory_behind_a_capture_does_not_coalesce_with_memory_that_serves_others() {
    let device = SimDevice::new();
    let arena = ArenaConfig::segments(2 * MIB);
    let pool = Pool::builder(device.clone()).arena(arena).build();
    let (s, other) = (device.stream(), device.stream());
    let half = pool.allocate_on(&s, MIB).unwrap();
    device.begin_capture(&s).unwrap();
    kernel(&half, &s);
    drop(half); // its last use cannot be waited for before the launch
    kernel(&pool.allocate_on(&other, MIB).unwrap(), &other);
    assert_eq!(device.calls().allocations, 1, "the other half of the segment");
    device.end_capture(&s).unwrap();
    assert_eq!(device.hazards(), 0);
}

#[test]
fn a_late_buffer_of_a_graph_is_behind_its_last_launch() {
    let pool = Pool::new(SimDevice::new());
    let [s, t, other] = [(); 3].map(|()| pool.allocator().stream());
    let mut late = None;
    let graph = captured(&pool, &s, |pool| {
        let buffer = pool.allocate_on(&s, MIB).unwrap();
        kernel(&buffer, &s);
        late = Some(buffer);
    });
    launch(&pool, &graph, &t); // not the captured stream
    drop((graph, late)); // the graph is dropped before its buffer
    kernel(&pool.allocate_on(&other, MIB).unwrap(), &other);
    let calls = pool.allocator().calls();
    assert_eq!((pool.allocator().hazards(), calls.allocations), (0, 1));
}

#[test]
fn what_is_behind_a_capture_does_not_go_back_before_it_ends() {
    let builders = [
        Pool::builder(SimDevice::new()).cached_limit(0),
        Pool::builder(SimDevice::new()).arena(ArenaConfig::segments(MIB)),
        Pool::builder(SimDevice::new()).arena(ArenaConfig::grow()),
    ];
    for builder in builders {
        let pool = builder.build();
        let s = pool.allocator().stream();
        let buffer = pool.allocate_on(&s, MIB).unwrap();
        pool.allocator().begin_capture(&s).unwrap();
        kernel(&buffer, &s);
        drop(buffer);
        pool.clear().unwrap();
        assert_eq!(pool.stats().reserved_bytes, MIB, "to free it would be to wait for a launch");
        pool.allocator().end_capture(&s).unwrap();
        pool.clear().unwrap();
        assert_eq!((pool.stats().reserved_bytes, pool.allocator().hazards()), (0, 0));
    }
}

#[test]
fn a_private_pool_unbinds_only_its_own_streams() {
    let pool = Pool::new(SimDevice::new());
    let (on, [own, other]) = (pool.allocator().stream(), [(); 2].map(|()| PrivatePool::new(&pool)));
    own.bind(&on).unwrap();
    other.unbind_one(&on);
    let foreign = SimDevice::new();
    own.unbind_one(&foreign.stream()); // its number is that of `on`
    assert!(pool.allocate_on(&on, MIB).unwrap().is_private());
    own.unbind_one(&on);
    assert!(!pool.allocate_on(&on, MIB).unwrap().is_private());
}

#[test]
fn a_launch_whose_caller_panics_behind_it_is_known() {
    let pool = Pool::new(SimDevice::new());
    let [capture, first, second] = [(); 3].map(|()| pool.allocator().stream());
    let (private, graph) = captured(&pool, &capture, |pool| {
        kernel(&pool.allocate_on(&capture, MIB).unwrap(), &capture);
    });
    let device = pool.allocator();
    let panicking = || {
        private.launch(&first, || {
            device.launch(&graph, &first);
            panic::panic_any("behind the launch")
        })
    };
    assert!(panic::catch_unwind(panic::AssertUnwindSafe(panicking)).is_err());
    launch(&pool, &(private, graph), &second);
    device.run();
    assert_eq!(device.hazards(), 0, "{:?}", device.hazard_report());
}

// A stream that had ended stayed bound, and each request of the pool looked for its private pool.
#[test]
fn a_stream_that_has_ended_is_unbound() {
    let pool = Pool::new(SimDevice::new());
    let (on, private) = (pool.allocator().stream(), PrivatePool::new(&pool));
    private.bind(&on).unwrap();
    pool.allocator().clock().retire(&on).unwrap();
    assert_eq!(pool.check().bound_streams, 1);
    private.unbind_one(&on);
    assert_eq!(pool.check().bound_streams, 0);
}

#[test]
fn memory_that_a_graph_keeps_is_in_the_error() {
    let pool = BucketPool::builder(SimDevice::new()).reserved_limit(4 * MIB).build();
    let private = PrivatePool::new(&pool);
    private.bind(pool.default_stream()).unwrap();
    drop(pool.allocate(4 * MIB).unwrap());
    private.end(&[]);
    let error = pool.allocate(MIB).unwrap_err();
    assert_eq!(error.figures().private_bytes, 4 * MIB);
    insta::assert_snapshot!(error);
}

// The order, the launch and its mark were three steps, and another thread came between them.
#[test]
fn two_threads_that_launch_one_graph_launch_one_after_the_other() {
    let pool = Pool::new(SimDevice::new());
    let [capture, first, second] = [(); 3].map(|()| pool.allocator().stream());
    let (private, graph) = captured(&pool, &capture, |pool| {
        kernel(&pool.allocate_on(&capture, MIB).unwrap(), &capture);
    });
    let device = pool.allocator();
    let (inside, wait_inside) = mpsc::channel();
    let (has_launched, private, graph, second) =
        (&AtomicBool::new(false), &private, &graph, &second);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            wait_inside.recv().unwrap();
            let launched = private.launch(second, || {
                device.launch(graph, second);
                has_launched.store(true, SeqCst);
                Ok(())
            });
            launched.unwrap();
        });
        let launched = private.launch(&first, || {
            inside.send(()).unwrap();
            // Time for the other thread, which may not launch yet.
            (0..2000).for_each(|_| std::thread::yield_now());
            assert!(!has_launched.load(SeqCst));
            device.launch(graph, &first);
            private.launch(&first, || Ok(()))
        });
        launched.unwrap();
    });
    device.run();
    assert_eq!(device.hazards(), 0, "{:?}", device.hazard_report());
}

/// Captures, launches and drops a graph again and again, all of whose work is done each time before
/// the next capture. Returns the bytes that the pool has from its device.
fn reserved_after_captures(pool: &Pool, seen_done: bool, new_stream: bool) -> u64 {
    let device = pool.allocator();
    let (clock, s, mut c) = (device.clock(), device.stream(), device.stream());
    for _ in 0..if cfg!(miri) { 3 } else { 50 } {
        if new_stream {
            clock.retire(&c).unwrap();
            c = device.stream();
        }
        let graph = captured(pool, &c, |pool| {
            let both = [(); 2].map(|()| pool.allocate_on(&c, 64 * KIB).unwrap());
            for buffer in &both {
                kernel(buffer, &c);
            }
        });
        (0..3).for_each(|_| launch(pool, &graph, &s));
        drop(graph);
        device.run();
        if seen_done {
            clock.synchronize(clock.mark(&s)).unwrap();
        }
    }
    assert_eq!(device.hazard_report(), Vec::<String>::new());
    pool.reserved_bytes()
}

#[test]
fn the_memory_of_graphs_that_are_gone_serves_the_next_capture() {
    let builder = || BucketPool::builder(SimDevice::new());
    for (seen_done, new_stream) in [(true, false), (true, true), (false, false), (false, true)] {
        let blocks = reserved_after_captures(&builder().build(), seen_done, new_stream);
        assert_eq!(blocks, 128 * KIB, "of blocks; {seen_done}, {new_stream}");
        let arena = builder().arena(ArenaConfig::segments(128 * KIB)).build();
        let of_arena = reserved_after_captures(&arena, seen_done, new_stream);
        assert_eq!(of_arena, 128 * KIB, "of an arena; {seen_done}, {new_stream}");
    }
}

#[test]
fn a_capture_takes_no_memory_whose_work_is_not_done() {
    for steal in [StealPolicy::Never, StealPolicy::Ordered, StealPolicy::Wait] {
        let pool = BucketPool::builder(SimDevice::new()).steal(steal).build();
        let (s, c) = (pool.allocator().stream(), pool.allocator().stream());
        kernel(&pool.allocate_on(&s, MIB).unwrap(), &s);
        let graph = captured(&pool, &c, |pool| kernel(&pool.allocate_on(&c, MIB).unwrap(), &c));
        assert_eq!(pool.stats().misses, 2, "the kernel has not run");
        pool.allocator().run();
        let other = captured(&pool, &c, |pool| kernel(&pool.allocate_on(&c, MIB).unwrap(), &c));
        let never = u64::from(steal == StealPolicy::Never);
        assert_eq!(pool.stats().misses, 2 + never, "{steal:?}: it has run");
        assert_eq!((graph.0.cached_bytes(), other.0.cached_bytes()), (MIB, MIB));
    }
}

/// Whole blocks, and ranges of segments: what a graph keeps is neither live nor free.
#[test]
fn what_a_graph_keeps_is_private_in_maps_and_figures() {
    let arena = BucketPool::builder(SimDevice::new()).arena(ArenaConfig::segments(MIB)).build();
    for pool in [arena, Pool::new(SimDevice::new())] {
        let s = pool.allocator().stream();
        let live = pool.allocate_on(&s, 8192).unwrap();
        let (private, _graph) = captured(&pool, &s, |pool| {
            drop(pool.allocate_on(&s, 4096).unwrap());
        });
        assert_eq!(private.cached_bytes(), 4096);
        let bytes = |state: RangeState| -> u64 {
            let segments = pool.map().segments;
            let ranges = segments.iter().flat_map(|segment| &segment.ranges);
            ranges
                .filter(|range| range.state == state)
                .map(|one| one.range.end - one.range.start)
                .sum()
        };
        assert_eq!((bytes(RangeState::Private), bytes(RangeState::Used)), (4096, 8192));
        assert_eq!(pool.outstanding_buffers().into_iter().collect::<Vec<_>>(), [(8192, 1)]);
        let inside = pool.check();
        assert_eq!((inside.live.blocks, inside.live.bytes), (1, 8192));
        drop(live);
    }
}

/// The program drops the private pool while a request on its stream is at the device.
#[test]
fn a_block_of_a_pool_that_went_during_the_request_is_anybodys() {
    type Slot = std::sync::Mutex<Option<PrivatePool<Hooked<SimDevice>>>>;
    let slot = std::sync::Arc::<Slot>::default();
    let at_call = slot.clone();
    let hook = move || drop(at_call.lock().unwrap().take());
    let pool = BucketPool::new(hooked(&SimDevice::new(), hook, false));
    let s = pool.default_stream().clone();
    let private = PrivatePool::new(&pool);
    private.bind(&s).unwrap();
    *slot.lock().unwrap() = Some(private);
    let buffer = pool.allocate(4096).unwrap();
    assert!(slot.lock().unwrap().is_none(), "it is gone");
    drop(buffer);
    let again = pool.allocate(4096).unwrap();
    assert_eq!((again.is_private(), pool.stats().hits), (false, 1));
    drop(again);
    pool.check();
}

#[test]
fn a_graph_of_which_nobody_tells_takes_only_what_is_done() {
    for own in [true, false] {
        let pool = Pool::new(SimDevice::new());
        let device = pool.allocator().clone();
        let (s, t, theirs) = (device.stream(), device.stream(), device.stream());
        let before = if own { &s } else { &t };
        kernel(&pool.allocate_on(before, 4096).unwrap(), before);
        let private = PrivatePool::without_launches(&pool);
        let mut graphs = Vec::new();
        for turn in 1..=2 {
            device.begin_capture(&s).unwrap();
            private.bind(&s).unwrap();
            kernel(&pool.allocate_on(&s, 4096).unwrap(), &s);
            let (graph, awaited) = device.end_capture(&s).unwrap();
            private.end(&awaited);
            graphs.push(graph);
            let (hits, misses) = (pool.stats().hits, pool.stats().misses);
            assert_eq!(
                (hits, misses),
                (turn - 1, 2),
                "the second one has what the first has freed"
            );
        }
        for graph in &graphs {
            device.launch(graph, &theirs); // ordered behind nothing
        }
        device.run();
        assert_eq!(device.hazards(), 0, "own stream: {own}, {:?}", device.hazard_report());
        drop((graphs, private));
        // What a query has seen done serves such a graph.
        drop(pool.allocate_on(&t, 4096).unwrap());
        let private = PrivatePool::without_launches(&pool);
        device.run();
        device.begin_capture(&s).unwrap();
        private.bind(&s).unwrap();
        let misses = pool.stats().misses;
        kernel(&pool.allocate_on(&s, 4096).unwrap(), &s);
        assert_eq!(pool.stats().misses, misses);
        drop(device.end_capture(&s));
    }
}
