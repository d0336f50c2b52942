//! Rules of captures: forbidden calls, and the work that a graph records.

use super::calls::{
    MIB, allocate, allocate_on, ask, begin, code, context, copy_back, copy_to, destroy_graph, end,
    event, launch, pool, record, relaxed, status, stream, wait_on_host,
};
use crate::harness::{double, hazards, held, kernel_on, run};
use cudarc::driver::result;
use cudarc::driver::sys::CUstreamCaptureMode as Mode;
use std::{ptr, thread};

const GLOBAL: Mode = Mode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const OF_THREAD: Mode = Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const RELAXED: Mode = Mode::CU_STREAM_CAPTURE_MODE_RELAXED;

#[test]
fn e1_a_wait_for_the_context_breaks_a_capture_of_any_mode() {
    let _one = double();
    let _context = context(0);
    for mode in [GLOBAL, RELAXED] {
        let on = stream();
        begin(on, mode);
        assert_eq!(code(result::ctx::synchronize()), 900);
        assert_eq!(end(on).0, 901);
        assert_eq!(code(result::ctx::synchronize()), 0);
    }
}

#[test]
fn e2_a_broken_capture_is_invalid_until_it_ends() {
    let _one = double();
    let _context = context(0);
    let (on, at) = (stream(), allocate(MIB).unwrap());
    begin(on, OF_THREAD);
    assert_eq!(code(allocate(1)), 900);
    assert_eq!(kernel_on(on.addr(), at, 1), 901);
    assert_eq!(status(on), 2);
    let (ended, graph) = end(on);
    assert_eq!((ended, graph.is_null()), (901, true));
    assert_eq!(kernel_on(on.addr(), at, 1), 0);
}

#[test]
fn e3_a_captured_event_can_be_waited_for_by_streams_only() {
    let _one = double();
    let _context = context(0);
    let (on, event) = (stream(), event());
    begin(on, RELAXED);
    assert_eq!(record(event, on), 0);
    relaxed(|| assert_eq!(wait_on_host(event), 907));
    assert_eq!(end(on).0, 901);
}

#[test]
fn e4_an_event_and_its_stream_are_of_one_context() {
    let _one = double();
    let first = context(0);
    let event = event();
    let _second = context(1);
    let on = stream();
    first.bind_to_thread().unwrap();
    assert_eq!(record(event, on), 400);
}

#[test]
fn e5_the_legacy_stream_breaks_captures_of_blocking_streams() {
    let _one = double();
    let _context = context(0);
    let at = allocate(MIB).unwrap();
    let blocking = result::stream::create(result::stream::StreamKind::Default).unwrap();
    for (on, refused, ended) in [(stream(), 0, 0), (blocking, 906, 901)] {
        begin(on, RELAXED);
        assert_eq!(kernel_on(0, at, 1), refused);
        assert_eq!(end(on).0, ended);
    }
}

#[test]
fn e6_pools_are_not_asked_and_not_set_in_a_capture() {
    let _one = double();
    let _context = context(0);
    let (on, pool) = (stream(), pool(0));
    begin(on, OF_THREAD);
    relaxed(|| assert_eq!(ask(pool), 0));
    assert_eq!(ask(pool), 900);
    assert_eq!(end(on).0, 901);
}

#[test]
fn e7_a_capture_ends_on_its_own_thread() {
    let _one = double();
    let context = context(0);
    let on = stream();
    begin(on, OF_THREAD);
    let handle = on.addr();
    let elsewhere = thread::spawn({
        let context = context.clone();
        move || {
            context.bind_to_thread().unwrap();
            end(ptr::without_provenance_mut(handle)).0
        }
    });
    assert_eq!(elsewhere.join().unwrap(), 908);
    assert_eq!(end(on).0, 0, "it goes on");
}

#[test]
fn e8_only_a_global_capture_forbids_calls_of_other_threads() {
    let _one = double();
    let context = context(0);
    for (mode, elsewhere, ended) in [(OF_THREAD, 0, 0), (GLOBAL, 900, 901)] {
        let on = stream();
        begin(on, mode);
        let context = context.clone();
        let allocated = thread::spawn(move || {
            context.bind_to_thread().unwrap();
            code(allocate(MIB))
        });
        assert_eq!(allocated.join().unwrap(), elsewhere);
        assert_eq!(end(on).0, ended);
    }
}

/// Captures a copy of pageable memory to the device and one back, changes the source, and launches.
/// Returns the bytes that were copied back.
fn captured_copies() -> [u8; 4] {
    let _context = context(0);
    let (on, at) = (stream(), allocate(4).unwrap());
    let (mut source, mut target) = (vec![1; 4], vec![0; 4]);
    begin(on, OF_THREAD);
    copy_to(at, &source, on);
    copy_back(&mut target, at, on);
    let (_, graph) = end(on);
    assert_eq!(target, [0; 4], "nothing runs in a capture");
    source.fill(2);
    launch(graph, on);
    run();
    target.try_into().unwrap()
}

#[test]
fn e9_a_copy_back_into_pageable_memory_is_captured() {
    let _one = double();
    assert_ne!(captured_copies(), [0; 4]);
}

#[test]
fn e11_a_captured_copy_reads_the_host_memory_in_each_launch() {
    let _one = double();
    assert_eq!(captured_copies(), [2; 4], "what the memory held at the launch");
}

#[test]
fn e10_an_allocation_in_a_capture_is_a_node_with_memory_of_the_graph() {
    let _one = double();
    let _context = context(0);
    let on = stream();
    begin(on, OF_THREAD);
    let at = allocate_on(on, MIB);
    assert_eq!(kernel_on(on.addr(), at, 1), 0);
    let (_, graph) = end(on);
    launch(graph, on);
    destroy_graph(graph);
    assert_eq!((held(), hazards()), (MIB as u64, 0), "the instance keeps it");
}
