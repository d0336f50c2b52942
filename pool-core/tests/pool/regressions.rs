//! Faults of other allocators that ran out of memory or waited in vain: one test for each.
//!
//! Each test is named after the source of the fault, usually a project and its issue number.
#![expect(clippy::unwrap_used, reason = "tests")]

use pool_core::port::{Sliceable, VirtualMemory};
use pool_core::stream::{
    StealPolicy, StealPolicy::Never, StealPolicy::Ordered, StealPolicy::Wait, Timeline,
};
use pool_core::{
    ArenaConfig, BucketPolicy, BucketPool, DeviceAllocator, KIB, MIB, PooledBuffer, StreamClock,
    Why,
};
use pool_sim::{MappedSim, SimDevice, SimDriver, SimStream, SimView};

type Pool<A> = BucketPool<A>;

/// Creates a pool with an arena and no other settings.
fn bare<A: VirtualMemory>(device: A, config: ArenaConfig, steal: StealPolicy) -> Pool<A> {
    let builder = BucketPool::builder(device).arena(config);
    builder.policy(BucketPolicy::Exact).steal(steal).build()
}

/// Allocates buffers of these sizes in KiB for a stream and runs a kernel on each.
fn used<A>(
    device: &SimDevice,
    pool: &Pool<A>,
    on: &SimStream,
    sizes: &[u64],
) -> Vec<PooledBuffer<A>>
where
    A: for<'b> Sliceable<Clock = Timeline<SimDriver>, Kind = (), View<'b> = SimView<'b>>,
{
    let mut buffers = Vec::new();
    for kib in sizes {
        let buffer = pool.allocate_on(on, kib * KIB).unwrap();
        device.kernel(on, &buffer.on(on).unwrap());
        buffers.push(buffer);
    }
    buffers
}

// All memory of the device was free but waited for one event: the allocator ran out of memory.
#[test]
fn pytorch_189504_a_pending_block_that_is_all_there_is_serves_again() {
    for steal in [Never, Ordered, Wait] {
        for config in [ArenaConfig::segments(MIB), ArenaConfig::grow()] {
            let device = SimDevice::with_capacity(MIB);
            let pool = bare(device.clone(), config.clone(), steal);
            let (s, t) = (device.stream(), device.stream());
            drop(used(&device, &pool, &s, &[1024]));
            drop(used(&device, &pool, &t, &[1024]));
            assert_eq!(device.hazards(), 0, "{:?}", device.hazard_report());
            let calls = device.calls();
            let waited = calls.waits == 1 && calls.frees + calls.decommits == 0;
            // The query whether the pages may go back records an event, which `Ordered` may then
            // use.
            assert!(steal == Ordered || waited == (steal == Wait), "{steal:?}, {config:?}");
        }
    }
}

// An event that never completed held the memory behind all later events, until none was left.
#[test]
fn pytorch_183501_one_stuck_event_blocks_nobody_else() {
    for stuck_ones in [10, 40] {
        let device = SimDevice::new();
        let config = ArenaConfig::segments(4 * MIB);
        let pool = bare(MappedSim::new(device.clone()), config, Wait);
        let (stuck, fine) = (device.stream(), device.stream());
        let (mut theirs, mut pins) = (Vec::new(), Vec::new());
        for kib in 0..stuck_ones {
            // Each is a better fit than the free range of `fine`.
            theirs.extend(used(&device, &pool, &stuck, &[8 + kib]));
            pins.extend(used(&device, &pool, &stuck, &[1]));
        }
        let rest = 4096 - pool.stats().allocated_bytes / KIB;
        drop((theirs, used(&device, &pool, &fine, &[rest])));
        let (never, soon) = (device.clock().mark(&stuck), device.clock().mark(&fine));
        assert!(!device.clock().is_done(soon).unwrap(), "this records an event");
        device.run_stream(&fine);
        let again = used(&device, &pool, &device.stream(), &[8; 10]);
        assert_eq!((again.len(), device.calls().allocations), (10, 1), "behind {stuck_ones}");
        assert!(!device.clock().is_done(never).unwrap());
    }
}

// A stream that was used only once, at the start, kept 21 GB that no other stream could use.
#[test]
fn megatron_6885_a_one_shot_stream_strands_nothing() {
    let sizes = [[512; 40], [4; 40]].concat();
    for (steal, ends) in [(Never, true), (Ordered, true), (Wait, false)] {
        let device = SimDevice::new();
        let pool = BucketPool::builder(device.clone())
            .arena(ArenaConfig::segments(40 * 516 * KIB))
            .policy(BucketPolicy::Exact)
            .steal(steal)
            .build();
        let (once, after) = (device.stream(), device.stream());
        drop(used(&device, &pool, &once, &sizes));
        if ends {
            device.clock().retire(&once).unwrap();
        }
        drop(used(&device, &pool, &after, &sizes));
        assert_eq!(device.calls().allocations, 1, "{steal:?}");
        assert_eq!(device.hazards(), 0, "{:?}", device.hazard_report());
    }
}

// Blocks that two streams freed alternated in memory, and were never coalesced.
#[test]
fn rmm_2039_what_two_streams_freed_becomes_one_again() {
    let device = SimDevice::new();
    let pool = bare(device.clone(), ArenaConfig::segments(MIB), Wait);
    let streams = [device.stream(), device.stream()];
    let turns = (0..16).flat_map(|turn| used(&device, &pool, &streams[turn % 2], &[64]));
    drop(turns.collect::<Vec<_>>());
    for on in &streams {
        drop(used(&device, &pool, on, &[1024]));
    }
    assert_eq!(device.calls().allocations, 1);
    assert_eq!(device.hazards(), 0, "{:?}", device.hazard_report());
}

// No memory was in use, but a request below the limit failed with out of memory.
#[test]
fn cupy_7678_a_limit_refuses_nobody_while_nothing_is_used() {
    for config in [ArenaConfig::segments(MIB), ArenaConfig::torch(), ArenaConfig::grow()] {
        let device = SimDevice::new();
        let builder =
            BucketPool::builder(device.clone()).arena(config.clone()).policy(BucketPolicy::Exact);
        let pool = builder.reserved_limit(48 * MIB).build();
        let (s, t) = (device.stream(), device.stream());
        drop((used(&device, &pool, &s, &[7000; 3]), used(&device, &pool, &t, &[3, 900, 3000])));
        let all = pool.allocate_on(&t, 48 * MIB).map(|buffer| buffer.size());
        assert_eq!(all.map_err(|error| error.to_string()), Ok(48 * MIB), "{config:?}");
        assert_eq!((device.held_peak_bytes(), device.hazards()), (48 * MIB, 0), "{config:?}");
    }
}

// A bound on splits, together with mapped pages, led to 14 GB reserved for 266 MB in use.
#[test]
fn pytorch_193400_a_bound_on_splits_lets_no_pages_pile_up() {
    let device = SimDevice::new();
    let config = ArenaConfig::pages(64 * KIB, 0.05);
    let pool = bare(device.clone(), config.max_split(4 * MIB), Wait);
    let mut live: [_; 20] = std::array::from_fn(|_| None);
    for turn in 0..2000 {
        live[turn % 20] = None;
        live[turn % 20] = pool.allocate(64 * KIB * (1 + turn as u64 * 7919 % 200)).ok();
    }
    assert!(live.iter().all(Option::is_some));
    let (peak, used_peak) = (device.held_peak_bytes(), pool.stats().allocated_peak_bytes);
    // The bound is a sixteenth above what the arena allows, because no stream is seen to be done.
    assert!(peak <= used_peak + used_peak / 4, "{peak} bytes for {used_peak}");
}

// A block had an unrecorded use on a second stream; the next user overwrote it, which gave NaN.
#[test]
fn torchrec_4231_both_parts_of_a_block_wait_for_all_its_streams() {
    let device = SimDevice::new();
    let pool = bare(device.clone(), ArenaConfig::segments(MIB), Wait);
    let (s, t, u) = (device.stream(), device.stream(), device.stream());
    for other in [&t, &s] {
        let buffer = used(&device, &pool, &s, &[1024]).remove(0);
        device.kernel(other, &buffer.on(other).unwrap());
        drop(buffer);
        drop([used(&device, &pool, &s, &[512]), used(&device, &pool, &u, &[512])]);
        assert_eq!(device.calls().allocations, 1);
    }
    assert_eq!(device.hazards(), 0, "{:?}", device.hazard_report());
}

// The use of a part of a block, at an offset, was not recorded, and no error was reported.
#[test]
fn pytorch_27366_a_use_of_one_part_holds_back_all_that_it_becomes_part_of() {
    let device = SimDevice::new();
    let pool = bare(device.clone(), ArenaConfig::segments(192 * KIB), Wait);
    let (s, t) = (device.stream(), device.stream());
    let parts = used(&device, &pool, &s, &[64; 3]);
    device.kernel(&t, &parts[1].on(&t).unwrap());
    let waits = device.calls().waits;
    drop(parts);
    drop(used(&device, &pool, &s, &[192]));
    assert_eq!((device.calls().allocations, device.calls().waits - waits), (1, 1));
    assert_eq!(device.hazards(), 0, "{:?}", device.hazard_report());
}

// A stream was destroyed before memory that it had used; an event on no stream led to a crash.
#[test]
fn pytorch_66941_a_stream_may_end_before_its_buffers_do() {
    let device = SimDevice::new();
    let pool = bare(device.clone(), ArenaConfig::segments(MIB), Never);
    let once = device.stream();
    let buffers = used(&device, &pool, &once, &[512, 512]);
    device.clock().retire(&once).unwrap();
    let records = device.calls().records;
    assert_eq!(buffers[0].on(&once).unwrap_err().why, Why::Foreign);
    drop((once, buffers));
    drop(used(&device, &pool, &device.stream(), &[1024]));
    let calls = device.calls();
    assert_eq!((calls.allocations, calls.waits, calls.records), (1, 1, records));
    assert_eq!(device.hazards(), 0, "{:?}", device.hazard_report());
}

// The page number was truncated to 16 bits, so page 65 536 aliased page 0, in use or not.
#[test]
fn cubecl_u16_more_pages_than_65_536_do_not_alias() {
    let device = SimDevice::new();
    let pool = bare(device.clone(), ArenaConfig::pages(4 * KIB, 0.0), Wait);
    // Both streams would use an alias without order.
    let (s, t) = (device.stream(), device.stream());
    let mut blocks = used(&device, &pool, &s, &vec![4; 1 << 16]);
    blocks.append(&mut used(&device, &pool, &t, &vec![4; 4464]));
    assert_eq!((device.hazards(), pool.stats().allocated_bytes), (0, 70_000 * 4 * KIB));
    drop(blocks);
    assert!(pool.allocate_on(&s, 70_000 * 4 * KIB).is_ok());
    assert!(device.held_peak_bytes() < 70_200 * 4 * KIB, "they are one range again");
}

// A block was returned to the wrong owner, and the corruption showed up later.
#[test]
fn snmalloc_848_a_buffer_goes_back_to_the_pool_that_it_came_from() {
    let device = SimDevice::new();
    let pools = [(); 2].map(|()| bare(device.clone(), ArenaConfig::segments(MIB), Wait));
    let [block, other] = [0, 1].map(|of: usize| pools[of].allocate(512).unwrap());
    let before = pools[1].device_stats();
    pools[1].deallocate(block);
    assert_eq!(pools[1].device_stats(), before);
    assert_eq!((pools[0].allocated_bytes(), pools[1].allocated_bytes()), (0, 512));
    drop(other);
    assert_eq!(pools[1].allocated_bytes(), 0);
}

// The device was dropped before its blocks, which then had no owner to be freed by.
#[test]
fn wgpu_5529_pool_buffer_and_device_go_in_any_order() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        for config in [ArenaConfig::segments(MIB), ArenaConfig::grow()] {
            let observer = SimDevice::new();
            let pool = bare(observer.clone(), config, Wait);
            let (mut device, mut buffer) = (Some(observer.clone()), pool.allocate(MIB).ok());
            drop(pool.allocate(3 * MIB)); // leaves a free range as well
            let mut pool = Some(pool);
            for what in order {
                match what {
                    0 => drop(buffer.take()),
                    1 => drop(pool.take()),
                    _ => drop(device.take()),
                }
            }
            let calls = observer.calls();
            assert_eq!((observer.held_bytes(), observer.clones()), (0, 1), "{order:?}");
            assert_eq!(calls.allocations + calls.reservations, calls.frees, "{order:?}");
        }
    }
}
