//! Events that observers are told.
#![expect(clippy::unwrap_used, reason = "tests")]

use pool_core::limits::Retention;
use pool_core::observe::{
    DeviceStats, EventKind, Observer, PoolEvent, PoolStatsSnapshot, RangeMap, Reason,
};
use pool_core::port::Limit;
use pool_core::{ArenaConfig, BucketPool, KIB, MIB, PoolBuilder, PoolStats, PooledBuffer, Why};
use pool_sim::SimDevice;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

type Builder = PoolBuilder<SimDevice>;

/// Events as text.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

impl Seen {
    fn observe(&self, builder: Builder) -> BucketPool<SimDevice> {
        let seen = self.0.clone();
        let note = move |event: &PoolEvent<'_>| {
            let PoolEvent { kind, pool, tag, stream, requested_bytes, bytes, .. } = event;
            let line = format!("{pool} {kind:?} {tag:?} {stream} {requested_bytes} {bytes}");
            seen.lock().unwrap().push(line);
        };
        builder.observer(Arc::new(note)).build()
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

fn builder() -> Builder {
    BucketPool::builder(SimDevice::new())
}

#[test]
fn each_event_is_told_with_its_name_tag_stream_and_sizes() {
    let seen = Seen::default();
    let pool = seen.observe(builder().name("tiles").window(1..=MIB).reserved_limit(4 * MIB));
    let stream = pool.allocator().stream();
    drop(pool.allocate(3000).unwrap());
    drop(pool.tagged("load").allocate(4000).unwrap());
    drop(pool.allocate_on(&stream, 5000).unwrap());
    drop(pool.allocate(2 * MIB).unwrap());
    drop(pool.allocate(4 * MIB).unwrap()); // all of the limit
    assert_eq!(pool.allocate(5 * MIB).unwrap_err().why(), Why::Limit(Limit::Reserved));
    drop(pool.allocate(100).unwrap().detach());
    pool.clear().unwrap();
    insta::assert_snapshot!(seen.take().join("\n"));
}

/// Sees no hits and frees.
struct Seldom(Arc<Mutex<Vec<EventKind>>>);

impl Observer for Seldom {
    fn event(&self, event: &PoolEvent<'_>) {
        self.0.lock().unwrap().push(event.kind);
    }

    fn sees_hits(&self) -> bool {
        false
    }
}

#[test]
fn an_observer_that_does_not_see_hits_is_told_of_none_beside_others_too() {
    for beside in [false, true] {
        let (seen, seldom) = (Seen::default(), Arc::default());
        let builder = builder().observer(Arc::new(Seldom(Arc::clone(&seldom))));
        let pool = if beside { seen.observe(builder) } else { builder.build() };
        drop(pool.allocate(MIB).unwrap());
        drop(pool.allocate(MIB).unwrap());
        drop(pool.allocate(MIB).unwrap().detach());
        pool.allocate(MIB).unwrap().detach().free().unwrap();
        drop(pool.allocate(MIB).unwrap().detach().into_raw().unwrap());
        let told = seldom.lock().unwrap();
        let bound = EventKind::Evict(Reason::Bound);
        let miss = EventKind::Miss;
        assert_eq!(*told, [miss, bound, miss, bound, miss], "{beside}");
        assert_eq!(seen.take().len(), if beside { 12 } else { 0 });
    }
}

#[test]
fn each_reason_of_an_eviction_is_told() {
    let seen = Seen::default();
    let reasons = |builder: Builder, act: fn(BucketPool<SimDevice>)| {
        act(seen.observe(builder));
        let evictions = seen.take().into_iter().filter(|event| event.contains("Evict"));
        evictions.collect::<Vec<_>>().join("\n")
    };
    let evicts = |text: String, reason: Reason| {
        assert!(text.contains(&format!("{:?}", EventKind::Evict(reason))), "{reason}: {text:?}");
    };
    let bound = reasons(builder().cached_limit(MIB), |pool| {
        drop([pool.allocate(MIB / 2).unwrap(), pool.allocate(MIB / 2).unwrap()]);
        drop(pool.allocate(MIB / 4).unwrap());
        pool.trim(0).unwrap();
        std::mem::forget(pool);
    });
    evicts(bound, Reason::Bound);
    let minute = Retention { time: Some(Duration::from_mins(1)), ..Retention::default() };
    let age = reasons(builder().retention(minute), |pool| {
        drop(pool.allocate(MIB).unwrap());
        pool.tick(Duration::ZERO).unwrap();
        pool.tick(Duration::from_secs(61)).unwrap();
        std::mem::forget(pool);
    });
    evicts(age, Reason::Age);
    let shortage = reasons(builder().reserved_limit(MIB), |pool| {
        drop(pool.allocate(MIB / 2).unwrap());
        drop(pool.allocate(MIB).unwrap());
        std::mem::forget(pool);
    });
    evicts(shortage, Reason::Shortage);
    let asked = reasons(builder().arena(ArenaConfig::grow()), |pool| {
        drop(pool.allocate(MIB).unwrap());
        pool.clear().unwrap();
        std::mem::forget(pool);
    });
    evicts(asked, Reason::Asked);
    let closed = reasons(builder(), |pool| drop(pool.allocate(MIB).unwrap()));
    evicts(closed, Reason::Closed);
}

/// Random operations, the same for the same seed.
fn operate(pool: &BucketPool<SimDevice>, seed: u64) {
    let (mut random, mut held) = (StdRng::seed_from_u64(seed), Vec::new());
    let streams = [pool.allocator().stream(), pool.allocator().stream()];
    for _ in 0..4000 {
        let bytes = 1 << random.random_range(4..16);
        match random.random_range(0..20) {
            0..10 => {
                let stream = &streams[random.random_range(0..2)];
                held.extend(pool.allocate_on(stream, random.random_range(1..=bytes)));
            }
            10..19 if !held.is_empty() => {
                drop(held.swap_remove(random.random_range(0..held.len())));
            }
            _ => drop(pool.trim(bytes)),
        }
    }
}

#[test]
fn a_pool_does_the_same_with_observers_and_without() {
    for arena in [false, true] {
        let of = |builder: Builder| match arena {
            true => builder.arena(ArenaConfig::grow()).reserved_limit(MIB),
            false => builder.cached_limit(256 * KIB).reserved_limit(MIB),
        };
        let (plain, seen) = (of(builder()).build(), Seen::default());
        let observed = seen.observe(of(builder()));
        let [with, without] = [&observed, &plain].map(|pool| {
            operate(pool, 7);
            (pool.stats(), pool.allocator().calls())
        });
        assert_eq!(with, without);
        let events = seen.take();
        let count = |kind: &str| events.iter().filter(|event| event.contains(kind)).count() as u64;
        let stats = with.0;
        assert_eq!((count("Hit"), count("Miss")), (stats.hits, stats.misses));
        assert_eq!((count("Free"), count("Refuse")), (stats.deallocations, stats.failures));
    }
}

#[test]
fn an_observer_that_panics_or_allocates_disturbs_nothing() {
    let calls = Arc::new(AtomicUsize::new(0));
    let (count, inner) = (calls.clone(), Arc::new(Mutex::new(None::<BucketPool<SimDevice>>)));
    let other = inner.clone();
    let observer = move |_: &PoolEvent<'_>| {
        count.fetch_add(1, SeqCst);
        if let Some(pool) = &*other.lock().unwrap_or_else(std::sync::PoisonError::into_inner) {
            drop(pool.allocate(64)); // not observed
        }
        panic!("on purpose");
    };
    let pool = builder().observer(Arc::new(observer)).build();
    *inner.lock().unwrap() = Some(pool.clone());
    drop(pool.allocate(MIB).unwrap());
    assert_eq!(calls.load(SeqCst), 2);
    assert_eq!((pool.allocated_bytes(), pool.stats().deallocations), (0, 3));
    *inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = None;
}

/// Buffers go round fifty threads. At rest no figure contradicts another.
#[test]
fn figures_agree_after_fifty_threads_have_handed_buffers_around() {
    for (arena, cached_limit) in [(false, u64::MAX), (false, MIB), (true, u64::MAX), (true, MIB)] {
        let pool = match arena {
            true => builder().arena(ArenaConfig::grow()).cached_limit(cached_limit).build(),
            false => builder().cached_limit(cached_limit).build(),
        };
        let (give, take) = std::sync::mpsc::channel::<PooledBuffer<SimDevice>>();
        let take = Arc::new(Mutex::new(take));
        std::thread::scope(|scope| {
            for number in 0..50_u64 {
                let (pool, give, take) = (pool.clone(), give.clone(), take.clone());
                let hand_on = move |round: u64| {
                    let bytes = 1 + (number * 977 + round * 131) % (32 * KIB);
                    give.send(pool.allocate(bytes).unwrap()).unwrap();
                    drop(take.lock().unwrap().try_recv());
                };
                scope.spawn(move || (0..100).for_each(hand_on));
            }
        });
        drop(give);
        drop(take);
        pool.shrink_to(u64::MAX).unwrap(); // makes the deferred frees, which no peak counts
        let stats = pool.stats();
        assert_eq!((stats.allocations, stats.deallocations), (5000, 5000), "{stats}");
        assert_eq!((stats.requested_bytes, stats.allocated_bytes), (0, 0), "{stats}");
        assert_eq!(stats.hits + stats.misses, 5000, "{stats}");
        assert_eq!(stats.reserved_bytes, stats.cached_bytes, "{stats}");
        assert!(stats.requested_peak_bytes <= stats.allocated_peak_bytes, "{stats}");
        assert!(stats.allocated_peak_bytes <= stats.reserved_peak_bytes, "{stats}");
        assert!(stats.peak_cached_bytes <= stats.reserved_peak_bytes, "{stats}");
        assert!(stats.cached_bytes <= stats.peak_cached_bytes, "{stats}");
        let ordered = [stats.requested_bytes, stats.allocated_bytes, stats.active_bytes];
        assert!(ordered.is_sorted() && stats.active_bytes <= stats.reserved_bytes, "{stats}");
    }
}

/// A peak is of one moment: what two threads had one after the other is not added up.
#[test]
fn peaks_of_threads_that_follow_each_other_do_not_add_up() {
    let pool = builder().build();
    let turn = Barrier::new(2);
    let ten = || (0..10).map(|_| pool.allocate(KIB).unwrap()).collect::<Vec<_>>();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let held = ten();
            turn.wait();
            drop(held); // each thread has ten blocks in its cache
            turn.wait();
            turn.wait();
            drop(ten());
            turn.wait();
        });
        let held = ten();
        turn.wait();
        drop(held);
        turn.wait();
        pool.reset_stats();
        drop(ten());
        turn.wait();
        turn.wait();
        let stats = pool.stats();
        assert_eq!((stats.misses, stats.hits), (0, 20), "{stats}");
        assert_eq!((stats.requested_peak_bytes, stats.allocated_peak_bytes), (10 * KIB, 10 * KIB));
    });
}

#[test]
fn a_detached_block_is_evicted_however_it_goes() {
    for is_dropped in [true, false] {
        let seen = Seen::default();
        let pool = seen.observe(builder());
        let detached = pool.allocate(4096).unwrap().detach();
        seen.take();
        if is_dropped {
            drop(detached);
            pool.clear().unwrap(); // a drop calls no device
        } else {
            detached.free().unwrap();
        }
        let evictions: Vec<_> =
            seen.take().into_iter().filter(|line| line.contains("Evict")).collect();
        assert_eq!(evictions.len(), 1, "dropped: {is_dropped}: {evictions:?}");
        assert!(evictions[0].contains("Evict(Bound)"), "dropped: {is_dropped}: {evictions:?}");
    }
}

/// What is read equals what was written, in each version: rates have no bit less, and figures that a text
/// lacks are 0.
#[test]
fn figures_come_back_as_they_were_and_from_other_versions() {
    let mut random = StdRng::seed_from_u64(3);
    for round in 0..2000 {
        let mut stats = PoolStats::default();
        stats.allocations = random.random_range(1..1_000_000);
        stats.hits = random.random_range(0..1_000_000);
        stats.from_pool_bytes = random.random_range(0..1 << 40);
        stats.from_device_bytes = random.random_range(1..1 << 40);
        stats.reserved_limit_bytes = (round % 2 == 0).then(|| random.random());
        let text = serde_json::to_string(&stats.snapshot()).unwrap();
        let read: PoolStatsSnapshot = serde_json::from_str(&text).unwrap();
        assert_eq!(read, stats.snapshot(), "seed 3, round {round}: {text}");
    }
    let older = r#"{"allocations": 4, "hits": 3, "served_by": {"device": 1}, "of_later": 7}"#;
    let read: PoolStatsSnapshot = serde_json::from_str(older).unwrap();
    assert_eq!((read.stats.hits, read.stats.served_by.device, read.stats.timeouts), (3, 1, 0));
    assert_eq!(read.hit_rate.to_bits(), 0.75_f64.to_bits());
    let device: DeviceStats = serde_json::from_str(r#"{"num_ooms": 2}"#).unwrap();
    assert_eq!((device.num_ooms, device.num_alloc_retries), (2, 0));
    let range = r#"{"range": {"start": 0, "end": 64}, "state": "Free"}"#;
    let range: RangeMap = serde_json::from_str(range).unwrap();
    assert_eq!((range.bytes(), range.id, range.age, range.stream), (64, 0, 0, None));
}
