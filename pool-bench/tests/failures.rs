//! Each device call of a replay fails, once and from then on, under each policy: nothing is lost,
//! no figure drifts, and the next call works (`SQLite` tests its `malloc` this way).
//!
//! A run of the tests takes the first operations of each bundled trace. A long run takes more:
//!
//! ```console
//! $ BUCKETPOOL_OPERATIONS=2000 \
//!     cargo test --release -p pool-bench --test failures -- --nocapture
//! ```
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "tests; a long run says what it did")]

use bucketpool::limits::CachedLimit;
use bucketpool::sim::{SimCall, SimDevice};
use bucketpool::{BucketPool, PooledBuffer, Why};
use pool_bench::spec::{self, NamedPolicy};
use pool_bench::trace::{self, Step};
use std::path::Path;

const TRACES: [&str; 5] = ["bert_embed", "gcc_cc1", "gpt2_train", "numpy_lidar", "resnet18_train"];
const POLICIES: &str = "exact,pow2,fit:2,tiered:4K+64K+1M,arena,arena:torch,arena:pages=64K";

/// Operations of each trace that are replayed for each call.
fn operations() -> usize {
    std::env::var("BUCKETPOOL_OPERATIONS").map_or(100, |text| text.parse().unwrap())
}

/// A replay of the first operations of a trace.
struct Replay<'t> {
    steps: &'t [Step],
    spec: &'t NamedPolicy,
    live: Vec<Option<PooledBuffer<SimDevice>>>,
    refused: u64,
}

impl<'t> Replay<'t> {
    fn new(trace: &'t trace::Trace, spec: &'t NamedPolicy) -> Self {
        let steps = &trace.steps[..trace.steps.len().min(operations())];
        let mut live = Vec::new();
        live.resize_with(trace.slots, || None);
        Self { steps, spec, live, refused: 0 }
    }

    fn pool(&self, device: &SimDevice) -> BucketPool<SimDevice> {
        self.spec.builder(device.clone()).cached_limit(CachedLimit::OfPeak(0.25)).build()
    }

    /// Runs the operations. A refused request leaves its slot empty, and all figures but those of
    /// the refusal as they were.
    fn run(&mut self, pool: &BucketPool<SimDevice>) {
        for step in self.steps {
            match *step {
                Step::Allocate { slot, bytes, .. } => {
                    let got = pool.allocate(bytes);
                    self.refused += u64::from(got.is_err());
                    if let Err(error) = &got {
                        assert_eq!(error.figures().requested_bytes, bytes);
                        assert!(matches!(error.why(), Why::OutOfMemory | Why::Other), "{error}");
                    }
                    self.live[slot as usize] = got.ok();
                }
                Step::Free { slot, .. } => self.live[slot as usize] = None,
                Step::Use { .. } => {}
            }
        }
    }

    fn live_bytes(&self) -> u64 {
        self.live.iter().flatten().map(PooledBuffer::allocated_size).sum()
    }
}

/// One replay in which `call` fails `times` times after `skip` more of its kind.
fn with_failure(mut replay: Replay<'_>, call: SimCall, skip: u64, times: u64) {
    let device = SimDevice::new();
    let pool = replay.pool(&device);
    device.fail(call, skip, times);
    replay.run(&pool);
    let what = format!("{}: {call:?} {skip}, {times} times", replay.spec.text);
    let stats = pool.stats();
    assert_eq!(stats.failures, replay.refused, "{what}");
    assert_eq!(stats.allocations, stats.hits + stats.misses + stats.bypasses + stats.failures);
    assert_eq!(stats.allocated_bytes, replay.live_bytes(), "{what}");
    let parts = stats.allocated_bytes + stats.cached_bytes + stats.lost_bytes;
    assert_eq!((stats.reserved_bytes, device.held_bytes()), (parts, parts), "{what}: {stats}");
    if times == 1 {
        // One refusal is retried, at most it refuses one request.
        assert!(replay.refused <= 1, "{what}: {} refused", replay.refused);
        assert!(pool.allocate(1000).is_ok(), "{what}: the next call");
    }
    replay.live.clear();
    let cleared = pool.clear().and_then(|_| pool.clear());
    let stats = pool.stats();
    assert_eq!((stats.allocated_bytes, stats.requested_bytes), (0, 0), "{what}");
    if times == 1 && device.pending_failures() == 0 && cleared.is_ok() {
        let lost = stats.lost_bytes;
        assert_eq!((stats.reserved_bytes, device.held_bytes()), (lost, lost), "{what}: {stats}");
        let gives_back = matches!(call, SimCall::Free | SimCall::Decommit);
        assert!(lost == 0 || gives_back, "{what}: {lost} bytes are lost");
    }
    drop(pool);
    assert_eq!(device.clones(), 1, "{what}: a buffer or a pool is still there");
    let takes_back = matches!(call, SimCall::Free | SimCall::Decommit | SimCall::Query);
    assert!(takes_back || device.held_bytes() == 0, "{what}: {} bytes leak", device.held_bytes());
}

/// The calls of a replay by kind.
fn calls_of(mut replay: Replay<'_>) -> [(SimCall, u64); 5] {
    let device = SimDevice::new();
    let pool = replay.pool(&device);
    replay.run(&pool);
    replay.live.clear();
    pool.clear().unwrap();
    let calls = device.calls();
    [
        (SimCall::Allocate, calls.allocations),
        (SimCall::Free, calls.frees),
        (SimCall::Reserve, calls.reservations),
        (SimCall::Commit, calls.commits),
        (SimCall::Decommit, calls.decommits),
    ]
}

fn every_call_of(name: &str) {
    let file = format!("{}/../traces/{name}.ptrace.csv.zst", env!("CARGO_MANIFEST_DIR"));
    let trace = trace::read(Path::new(&file)).unwrap();
    for spec in spec::list(POLICIES).unwrap() {
        let mut failed = 0;
        for (call, count) in calls_of(Replay::new(&trace, &spec)) {
            for skip in 0..count {
                with_failure(Replay::new(&trace, &spec), call, skip, 1);
                with_failure(Replay::new(&trace, &spec), call, skip, u64::MAX);
            }
            failed += count;
        }
        assert!(failed > 0, "{name} {}: no device call", spec.text);
        println!("{name} {}: {failed} calls, each failed once and from then on", spec.text);
    }
}

#[test]
fn every_device_call_of_every_trace_may_fail() {
    std::thread::scope(|scope| {
        let threads = TRACES.map(|name| scope.spawn(|| every_call_of(name)));
        for thread in threads {
            thread.join().unwrap();
        }
    });
}
