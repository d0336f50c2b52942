//! The cost of a recorder: a hit and its free, and tensors of a trace whose bytes are written.
#![expect(clippy::unwrap_used, reason = "a bench")]

use bucketpool::BucketPool;
use bucketpool::host::HostAllocator;
use bucketpool::observe::{Observer, PoolEvent};
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use pool_bench::trace::{self, Step, Trace};
use pool_trace::{Recorder, RecorderOptions};
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

type Pool = BucketPool<HostAllocator>;

fn observed(observer: Arc<impl Observer>) -> Pool {
    BucketPool::builder(HostAllocator::new()).observer(observer).build()
}

fn recorder() -> Arc<Recorder> {
    let mut options = RecorderOptions::default();
    options.capacity = 1 << 20;
    Arc::new(Recorder::with(std::env::temp_dir().join("bench.ptrace.csv.zst"), options).unwrap())
}

fn pools() -> [(&'static str, Pool); 3] {
    [
        ("without an observer", BucketPool::new(HostAllocator::new())),
        ("an empty observer", observed(Arc::new(|_: &PoolEvent<'_>| {}))),
        ("a recorder", observed(recorder())),
    ]
}

fn hits(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("a hit and its free");
    for (name, pool) in pools() {
        // Bursts that the ring has room for, as a program makes them.
        let burst = || (0..1000).for_each(|_| drop(black_box(pool.allocate(4096).unwrap())));
        group.throughput(criterion::Throughput::Elements(1000));
        group.bench_function(name, |b| {
            b.iter_batched(std::thread::yield_now, |()| burst(), BatchSize::PerIteration);
        });
    }
}

/// Replays a trace, and writes all bytes of each buffer.
fn tensors(pool: &Pool, trace: &Trace) {
    let mut slots: Vec<_> = std::iter::repeat_with(|| None).take(trace.slots).collect();
    for step in &trace.steps {
        match *step {
            Step::Allocate { slot, bytes, .. } => {
                let mut buffer = pool.allocate(bytes).unwrap();
                buffer.fill(1);
                slots[slot as usize] = Some(buffer);
            }
            Step::Free { slot, .. } => slots[slot as usize] = None,
            Step::Use { .. } => {}
        }
    }
}

fn traces(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("tensors of bert_embed, written");
    group.sample_size(10);
    let file = format!("{}/../traces/bert_embed.ptrace.csv.zst", env!("CARGO_MANIFEST_DIR"));
    let trace = trace::read(Path::new(&file)).unwrap();
    for (name, pool) in pools() {
        group.bench_function(name, |b| b.iter(|| tensors(&pool, &trace)));
    }
}

criterion_group!(benches, hits, traces);
criterion_main!(benches);
