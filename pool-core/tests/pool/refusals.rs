//! Each single call of a device refused, one after the other, under a pool with an arena: nothing
//! is lost that the device did not keep, no use is out of order, and all figures agree.

use pool_core::stream::StealPolicy;
use pool_core::{ArenaConfig, BucketPool, KIB, MIB, PooledBuffer, Why};
use pool_sim::{SimCall, SimCalls, SimDevice};

/// A kind of call, and how many of it there were.
type Count = fn(&SimCalls) -> u64;

const KINDS: [(SimCall, Count); 8] = [
    (SimCall::Allocate, |calls| calls.allocations),
    (SimCall::Free, |calls| calls.frees),
    (SimCall::Record, |calls| calls.records),
    (SimCall::Wait, |calls| calls.waits),
    (SimCall::Query, |calls| calls.queries),
    (SimCall::Reserve, |calls| calls.reservations),
    (SimCall::Commit, |calls| calls.commits),
    (SimCall::Decommit, |calls| calls.decommits),
];

/// Calls that a device refuses at most.
const REFUSALS: u64 = 400;

fn configs() -> [(&'static str, ArenaConfig); 4] {
    [
        ("grow", ArenaConfig::grow()),
        ("pages", ArenaConfig::pages(64 * KIB, 0.0)),
        ("segments", ArenaConfig::segments(MIB)),
        ("torch", ArenaConfig::torch()),
    ]
}

fn pool(device: &SimDevice, config: ArenaConfig) -> BucketPool<SimDevice> {
    let builder = BucketPool::builder(device.clone()).arena(config).steal(StealPolicy::Wait);
    builder.reserved_limit(64 * MIB).build()
}

/// A program on three streams that hands buffers on, trims, and asks for more than there is.
fn program(pool: &BucketPool<SimDevice>, seed: u64) {
    let device = pool.allocator();
    let streams = [device.stream(), device.stream(), device.stream()];
    let mut live: Vec<PooledBuffer<_>> = Vec::new();
    for turn in 0..90_u64 {
        let at = turn.wrapping_mul(seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        let stream = &streams[(at % 3) as usize];
        let bytes = match turn % 30 {
            7 => 60 * MIB,
            turn if turn % 3 == 0 => (at % 64 + 1) * 64 * KIB,
            _ => (at % 64 + 1) * 700,
        };
        live.extend(pool.allocate_on(stream, bytes));
        // A use that is refused does not happen.
        for on in [stream, &streams[(at / 3 % 3) as usize]] {
            if let Some(buffer) = live.last()
                && let Ok(using) = buffer.on(on)
            {
                device.kernel(on, &using);
            }
        }
        if live.len() > 6 || turn % 30 == 7 && !live.is_empty() {
            live.remove((at % live.len() as u64) as usize);
        }
        match turn % 30 {
            11 => device.advance(stream, 3),
            17 => drop(pool.trim(MIB)),
            23 => drop(pool.shrink_to(4 * MIB)),
            29 => drop(pool.clear()),
            _ => {}
        }
    }
}

/// Asserts that a pool without buffers agrees with its device, and gives all back.
fn check(device: &SimDevice, pool: BucketPool<SimDevice>, what: &str) {
    let stats = pool.stats();
    assert_eq!(stats.reserved_bytes, device.held_bytes(), "{what}");
    assert_eq!((stats.allocated_bytes, stats.requested_bytes), (0, 0), "{what}");
    assert_eq!(stats.cached_bytes + stats.lost_bytes, stats.reserved_bytes, "{what}");
    let refusals = (0..=REFUSALS).position(|_| pool.clear().is_ok());
    assert!(refusals.is_some(), "{what}: it refuses for ever");
    let stats = pool.stats();
    assert_eq!((stats.cached_bytes, stats.reserved_bytes), (0, stats.lost_bytes), "{what}");
    assert_eq!(stats.reserved_bytes, device.held_bytes(), "{what}");
    drop(pool);
    device.run();
    assert_eq!(device.held_bytes(), stats.lost_bytes, "{what}");
    assert_eq!(device.hazards(), 0, "{what}: {:?}", device.hazard_report());
}

#[test]
fn each_refused_call_is_survived() {
    for (name, config) in configs() {
        for seed in 1..=3 {
            let device = SimDevice::new();
            program(&pool(&device, config.clone()), seed);
            let calls = device.calls();
            let mut tried = 0;
            for (call, count) in KINDS {
                for k in 0..count(&calls) {
                    let device = SimDevice::new();
                    let pool = pool(&device, config.clone());
                    device.fail(call, k, 1);
                    program(&pool, seed);
                    check(&device, pool, &format!("{name}, seed {seed}, {call:?} {k}"));
                    tried += 1;
                }
            }
            assert!(tried > 50, "{name}, seed {seed}: {tried} calls were refused");
        }
    }
}

#[test]
fn a_device_that_refuses_all_calls_of_a_kind_is_survived() {
    for (name, config) in configs() {
        for (call, _) in KINDS {
            for after in [0, 3, 11] {
                let device = SimDevice::new();
                let pool = pool(&device, config.clone());
                device.fail(call, after, REFUSALS);
                program(&pool, 1);
                check(&device, pool, &format!("{name}, {call:?} from {after} on"));
            }
        }
    }
}

/// After the last call that a device answers, requests that need it say that it is lost, drops are
/// silent, and when the pool is cleared nothing is counted as held.
#[test]
fn each_call_may_be_the_last() {
    for (name, config) in configs() {
        let last = (0..10_000_u64).find(|calls| !is_lost_after(name, &config, *calls));
        assert!(last.is_some_and(|calls| calls > 100), "{name}: {last:?} calls");
    }
}

/// Runs the program on a device that is lost after this many calls, and tells whether it came to
/// that.
fn is_lost_after(name: &str, config: &ArenaConfig, calls: u64) -> bool {
    let what = format!("{name}, lost after {calls} calls");
    let device = SimDevice::new();
    let pool = pool(&device, config.clone());
    device.lose_after(calls);
    program(&pool, 1);
    let request = pool.allocate(2 * MIB);
    let Err(error) = request else { return false };
    assert_eq!(error.why(), Why::Lost, "{what}: {error}");
    for bytes in [1, 700, MIB, 60 * MIB] {
        let why = pool.allocate(bytes).map_or_else(|error| error.why(), |_hit| Why::Lost);
        assert_eq!(why, Why::Lost, "{what}: a request of {bytes} bytes");
    }
    let cleared = pool.clear();
    assert!(cleared.as_ref().map_or_else(|error| error.why() == Why::Lost, |bytes| *bytes == 0));
    let stats = pool.stats();
    assert_eq!((stats.allocated_bytes, stats.requested_bytes), (0, 0), "{what}: {stats}");
    let parts = (stats.reserved_bytes, stats.cached_bytes, stats.lost_bytes);
    assert_eq!(parts, (0, 0, 0), "{what}: {stats}");
    drop(pool);
    assert_eq!(device.hazards(), 0, "{what}: {:?}", device.hazard_report());
    true
}

#[test]
fn a_refusal_tells_what_each_stream_has_cached() {
    for arena in [false, true] {
        let builder = BucketPool::builder(SimDevice::new()).reserved_limit(8 * MIB);
        let pool = if arena { builder.arena(ArenaConfig::segments(MIB)) } else { builder }.build();
        let [first, second] = [(); 2].map(|()| pool.allocator().stream());
        let kept = [&first, &first, &second].map(|on| pool.allocate_on(on, MIB).unwrap());
        drop(kept);
        // It is above the limit, so nothing goes back for it.
        let error = pool.allocate_on(&first, 16 * MIB).unwrap_err();
        let cached: Vec<u64> =
            error.figures().cached_by_stream.iter().map(|cached| cached.bytes).collect();
        assert_eq!(cached, [2 * MIB, MIB], "{error}");
        assert_eq!(error.figures().largest_free_bytes, MIB);
    }
}
