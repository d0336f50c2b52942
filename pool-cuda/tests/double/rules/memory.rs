//! When memory goes, what serves again, when errors come, and what calls cost.

use super::calls::{
    MIB, allocate, allocate_host, allocate_on, code, context, destroy, event, free, free_host,
    free_on, mapped, pool, query, record, release, set_access, stream, synchronize, trim, unmap,
    unregister_beside,
};
use crate::harness::{calls_wait, cost_sets, count, double, held, kernel_on, reset, run, taken};

const CHUNK: u64 = 2 << 20;

#[test]
fn e12_freed_memory_stays_taken_until_its_free_has_passed() {
    let _one = double();
    let _context = context(0);
    let _pool = pool(0);
    let on = stream();
    free_on(allocate_on(on, 2 * MIB), on);
    assert_eq!((held(), taken()), (0, CHUNK));
    assert_eq!((synchronize(on), taken()), (0, 0));
}

/// A machine as new, on which the open calls wait for the device or not.
fn machine(they_wait: bool) {
    reset();
    calls_wait(they_wait);
}

#[test]
fn e13_whether_frees_wait_for_the_device_is_open() {
    let _one = double();
    for (they_wait, refused) in [(true, 0), (false, 700)] {
        machine(they_wait);
        let _context = context(0);
        let (on, host) = (stream(), allocate_host(4096));
        assert_eq!(kernel_on(on.addr(), host.addr() as u64, 4096), 0);
        assert_eq!(free_host(host), refused, "cuMemFreeHost");
        machine(they_wait);
        let _context = context(0);
        let (on, at) = (stream(), allocate(MIB).unwrap());
        assert_eq!(kernel_on(on.addr(), at, 1), 0);
        assert_eq!(free(at), refused, "cuMemFree");
        machine(they_wait);
        let _context = context(0);
        let on = stream();
        let kernel = |at| assert_eq!(kernel_on(on.addr(), at, 4096), 0);
        assert_eq!(unregister_beside(kernel), refused, "cuMemHostUnregister");
    }
}

#[test]
fn e14_whether_mappings_wait_for_the_device_is_open() {
    let _one = double();
    for (they_wait, refused) in [(true, 0), (false, 700)] {
        machine(they_wait);
        let _context = context(0);
        let (on, (at, _), event) = (stream(), mapped(), event());
        let is_done = || query(event) == 0;
        assert_eq!(kernel_on(on.addr(), at, 1), 0);
        assert_eq!(record(event, on), 0);
        assert_eq!((set_access(at), is_done()), (0, they_wait), "cuMemSetAccess");
        assert_eq!(kernel_on(on.addr(), at, 1), 0);
        assert_eq!(unmap(at), refused, "cuMemUnmap");
    }
}

#[test]
fn e15_addresses_serve_again() {
    let _one = double();
    let _context = context(0);
    let at = allocate(MIB).unwrap();
    assert_eq!((free(at), allocate(MIB).unwrap()), (0, at));
}

#[test]
fn e16_handles_serve_again() {
    let _one = double();
    let _context = context(0);
    let on = stream();
    destroy(on);
    assert_eq!(event().addr(), on.addr(), "as another kind of thing");
    let (at, handle) = mapped();
    assert_eq!(unmap(at), 0);
    release(handle);
    assert_eq!(mapped().1, handle);
}

#[test]
fn e17_an_error_comes_late_and_stays_with_its_context() {
    let _one = double();
    let (second, first) = (context(1), context(0));
    let on = stream();
    assert_eq!(kernel_on(on.addr(), 1 << 40, 1), 0, "the call has queued it");
    assert_eq!(code(allocate(1)), 0, "it has not run");
    run();
    assert_eq!([(); 3].map(|()| code(allocate(1))), [700; 3]);
    second.bind_to_thread().unwrap();
    assert_eq!(code(allocate(1)), 0, "the other context works");
    assert_eq!(code(first.bind_to_thread()), 700, "so does the call that makes it current");
    assert_eq!(code(allocate(1)), 700);
}

#[test]
fn e18_calls_have_the_costs_that_were_measured() {
    let _one = double();
    let _context = context(0);
    let (at, _) = mapped();
    assert_eq!((count("cuMemCreate"), count("handles: access")), (1, 1));
    // Nanoseconds to create, map and set access of one piece of 2 MiB, by each set.
    let made = [193_000 + 1_500 + 36_000, 7_600 + 1_000 + 21_000, 20_100 + 1_000 + 40_000];
    assert_eq!(cost_sets(), made);
    assert_eq!(unmap(at), 0);
    assert_eq!(cost_sets(), [made[0] + 26_000, made[1] + 11_000, made[2] + 25_000]);
}

#[test]
fn e19_a_pool_keeps_up_to_its_release_threshold() {
    let _one = double();
    let _context = context(0);
    let (on, pool) = (stream(), pool(CHUNK));
    for at in [(); 3].map(|()| allocate_on(on, 2 * MIB)) {
        free_on(at, on);
    }
    assert_eq!((synchronize(on), taken()), (0, CHUNK));
    trim(pool);
    assert_eq!(taken(), 0);
}

#[test]
fn e20_a_pool_takes_whole_chunks_and_reuses_their_parts() {
    let _one = double();
    let _context = context(0);
    let (on, other) = (stream(), stream());
    let at = allocate_on(on, 1000);
    assert_eq!(taken(), CHUNK);
    free_on(at, on);
    assert_eq!(allocate_on(on, 1000), at, "its own stream, at once");
    free_on(at, on);
    assert_ne!(allocate_on(other, 1000), at, "another stream is not behind it");
    assert_eq!(taken(), CHUNK, "the rest of the chunk");
}
