//! Two threads on one stream: what one frees while the other's request begins.
#![expect(clippy::unwrap_used, reason = "tests")]

use pool_core::port::{Memory, Order, PageCalls, Request, Sliceable};
use pool_core::{
    ArenaConfig, BucketPolicy, BucketPool, DeviceAllocator, DeviceError, KIB, PoolBuilder,
    StreamClock, Why,
};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// What a test does when a pool asks for a mark, in place of another thread.
type Meanwhile = Box<dyn FnOnce() + Send>;

/// Streams that are numbers, with epochs that a test begins.
#[derive(Clone, Default)]
struct Epochs(Arc<State>);

#[derive(Default)]
struct State {
    epoch: AtomicU64,
    meanwhile: Mutex<Option<Meanwhile>>,
    /// The marks of another stream that the pool asked about.
    asked: Mutex<Vec<(u64, u64)>>,
}

impl StreamClock for Epochs {
    type Stream = u64;
    type Mark = (u64, u64);

    fn default_stream(&self) -> &u64 {
        &0
    }
    fn owns(&self, _: &u64) -> bool {
        true
    }
    fn mark(&self, on: &u64) -> (u64, u64) {
        let mark = (*on, self.0.epoch.load(Relaxed));
        let meanwhile = self.0.meanwhile.lock().unwrap().take();
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        mark
    }
    fn latest(&self, mark: (u64, u64)) -> (u64, u64) {
        (mark.0, self.0.epoch.load(Relaxed))
    }
    fn same_stream(&self, a: (u64, u64), b: (u64, u64)) -> bool {
        a.0 == b.0
    }
    fn later(&self, a: (u64, u64), b: (u64, u64)) -> (u64, u64) {
        a.max(b)
    }
    fn is_later(&self, a: (u64, u64), b: (u64, u64)) -> bool {
        a.0 == b.0 && a.1 >= b.1
    }
    fn stream_id(&self, mark: (u64, u64)) -> u64 {
        mark.0
    }
    fn is_ordered(&self, on: &u64, after: (u64, u64)) -> bool {
        if *on != after.0 {
            self.0.asked.lock().unwrap().push(after);
        }
        *on == after.0
    }
    fn order(&self, _: &u64, _: &[(u64, u64)]) -> Result<Order, DeviceError> {
        Ok(Order::NotYet)
    }
    fn is_seen_done(&self, _: (u64, u64)) -> bool {
        false
    }
    fn is_done(&self, _: (u64, u64)) -> Result<bool, DeviceError> {
        Ok(false)
    }
    fn synchronize(&self, _: (u64, u64)) -> Result<(), DeviceError> {
        Ok(())
    }
}

impl DeviceAllocator for Epochs {
    type Block = ();
    type View<'b> = ();
    type Kind = ();
    type Clock = Self;
    const MEMORY: Memory = Memory::DEVICE;

    fn clock(&self) -> &Self {
        self
    }
    fn aligned(&self, (): (), _: u64) -> Result<(), DeviceError> {
        Err(DeviceError::new(Why::Unsupported, "alignment"))
    }
    fn allocate(&self, _: Request<()>, _: &u64) -> Result<(), DeviceError> {
        Ok(())
    }
    fn free(&self, (): (), _: &[(u64, u64)]) -> Result<(), DeviceError> {
        Ok(())
    }
    fn view<'b>(&'b self, (): &'b (), _: u64, _: u64, _: &u64) {}
    fn zero(&self, (): &mut (), _: u64, _: &u64) -> Result<(), DeviceError> {
        Ok(())
    }
}

impl Sliceable for Epochs {
    fn pages(&self) -> Option<PageCalls<Self>> {
        None
    }
    unsafe fn zero_part(&self, (): &(), _: Range<u64>, _: &u64) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// A buffer whose block another thread used and freed while its request began, and that is freed unused,
/// leaves the block behind that thread's work.
#[test]
fn a_block_that_is_freed_while_a_request_begins_stays_behind_its_last_use() {
    type Build = fn(PoolBuilder<Epochs>) -> PoolBuilder<Epochs>;
    let builds: [(&str, Build, u64); 3] = [
        ("a whole block", |builder| builder, KIB),
        ("a larger block", |builder| builder.policy(BucketPolicy::Fit { alpha: 2.0 }), 1500),
        ("a range", |builder| builder.arena(ArenaConfig::segments(KIB)), KIB),
    ];
    for (name, build, bytes) in builds {
        let clock = Epochs::default();
        let pool = build(BucketPool::builder(clock.clone())).build();
        let (own, other) = (1, 2);
        let late = pool.allocate_on(&own, bytes).unwrap();
        let meanwhile = clock.clone();
        *clock.0.meanwhile.lock().unwrap() = Some(Box::new(move || {
            meanwhile.0.epoch.fetch_add(1, Relaxed); // an event
            drop(late.on(&own).unwrap()); // and work behind it
            drop(late);
        }));
        drop(pool.allocate_on(&own, KIB).unwrap());
        assert_eq!(pool.stats().hits, 1, "{name}");
        pool.allocate_on(&other, KIB).unwrap();
        let asked = clock.0.asked.lock().unwrap();
        assert!(!asked.is_empty() && asked.iter().all(|mark| mark.1 == 1), "{name}: {asked:?}");
    }
}
