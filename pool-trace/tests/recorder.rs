//! A recorder's file tells what the pool did.
#![expect(clippy::unwrap_used, reason = "a test")]

use pool_core::{BucketPool, KIB, MIB, PooledBuffer};
use pool_sim::SimDevice;
use pool_trace::ring::{Ring, slots};
use pool_trace::{Kind, Log, Recorder, RecorderOptions, ptrace, raw};
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tempfile::TempDir;

struct Setting {
    _folder: TempDir,
    file: PathBuf,
    recorder: Arc<Recorder>,
    pool: BucketPool<SimDevice>,
}

fn setting(change: impl FnOnce(&mut RecorderOptions)) -> Setting {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("test.ptrace.csv.zst");
    let mut options = RecorderOptions::default();
    options.source = "test".into();
    change(&mut options);
    let recorder = Arc::new(Recorder::with(&file, options).unwrap());
    let builder = BucketPool::builder(SimDevice::new()).reserved_limit(64 * MIB);
    let pool = builder.observer(recorder.clone()).build();
    Setting { _folder: folder, file, recorder, pool }
}

impl Setting {
    fn log(&self) -> Log {
        ptrace::read(File::open(&self.file).unwrap()).unwrap()
    }
}

fn kinds(log: &Log) -> Vec<(Kind, u64, u64)> {
    log.operations.iter().map(|one| (one.kind, one.id, one.bytes)).collect()
}

#[test]
fn requests_frees_and_refusals_are_in_the_file_in_their_order() {
    let test = setting(|_| {});
    let first = test.pool.allocate(3 * KIB).unwrap();
    let second = test.pool.allocate(5 * KIB).unwrap();
    drop(first);
    assert!(test.pool.allocate(100 * MIB).is_err());
    let third = test.pool.allocate(3 * KIB).unwrap();
    drop((second, third));
    let recorded = test.recorder.finish().unwrap();
    let expected = [
        (Kind::Allocate, 0, 3 * KIB),
        (Kind::Allocate, 1, 5 * KIB),
        (Kind::Free, 0, 0),
        (Kind::Refuse, 0, 100 * MIB),
        (Kind::Allocate, 2, 3 * KIB),
        (Kind::Free, 1, 0),
        (Kind::Free, 2, 0),
    ];
    let log = test.log();
    assert_eq!(kinds(&log), expected);
    assert_eq!((recorded.operations, recorded.lost, log.source.as_str()), (7, 0, "test"));
}

#[test]
fn streams_are_lanes_and_tags_have_names() {
    let test = setting(|_| {});
    let stream = test.pool.allocator().stream();
    drop(test.pool.tagged("loader").allocate(KIB).unwrap());
    drop(test.pool.tagged("layer").allocate_on(&stream, KIB).unwrap());
    drop(test.pool.allocate(KIB).unwrap());
    test.recorder.finish().unwrap();
    let log = test.log();
    assert_eq!(log.tags, ["loader", "layer"]);
    let told: Vec<_> = log.operations.iter().map(|one| (one.lane, one.tag)).collect();
    assert_eq!(told, [(0, 1), (0, 1), (1, 2), (1, 2), (0, 0), (0, 0)]);
}

/// A recorder that begins late, or goes on after a pause, begins with what is live.
#[test]
fn a_file_begins_with_the_buffers_that_are_live() {
    let test = setting(|options| options.paused = true);
    let before = test.pool.allocate(KIB).unwrap();
    drop(test.pool.allocate(2 * KIB).unwrap());
    test.recorder.resume();
    let during = test.pool.allocate(4 * KIB).unwrap();
    test.recorder.pause();
    drop(during);
    let unseen = test.pool.allocate(8 * KIB).unwrap();
    test.recorder.resume();
    drop((before, unseen));
    let recorded = test.recorder.finish().unwrap();
    let expected = [
        (Kind::Allocate, 0, KIB),
        (Kind::Allocate, 2, 4 * KIB),
        (Kind::Free, 0, 0), // the pause ends what is live
        (Kind::Free, 2, 0),
        (Kind::Allocate, 3, KIB),
        (Kind::Allocate, 5, 8 * KIB),
        (Kind::Free, 3, 0),
        (Kind::Free, 5, 0),
    ];
    assert_eq!(kinds(&test.log()), expected);
    assert_eq!((recorded.baseline, recorded.unknown), (3, 0));
}

#[test]
fn a_ring_that_is_full_loses_operations_and_says_how_many() {
    let test = setting(|options| options.capacity = 2);
    for _ in 0..20_000 {
        drop(test.pool.allocate(KIB).unwrap());
    }
    let recorded = test.recorder.finish().unwrap();
    let log = test.log();
    assert!(recorded.lost > 0, "{recorded:?}");
    assert_eq!(log.lost, recorded.lost);
    assert_eq!(recorded.operations, log.operations.len() as u64);
    // Frees of lost allocations are left out, and an address that comes again ends the one before.
    let mut live = std::collections::HashSet::new();
    for one in &log.operations {
        match one.kind {
            Kind::Allocate => assert!(live.insert(one.id)),
            _ => assert!(live.remove(&one.id)),
        }
    }
}

#[test]
fn backtraces_name_the_function_that_requested() {
    #[inline(never)]
    fn requests_here(pool: &BucketPool<SimDevice>) -> PooledBuffer<SimDevice> {
        pool.allocate(KIB).unwrap()
    }
    let test = setting(|options| options.backtraces = true);
    for _ in 0..3 {
        drop(requests_here(&test.pool));
    }
    test.recorder.finish().unwrap();
    let log = test.log();
    assert_eq!(log.stacks.len(), 1, "{:?}", log.stacks);
    assert!(log.stacks[0].contains("requests_here"), "{:?}", log.stacks);
    assert_eq!(log.operations.iter().filter(|one| one.stack == 1).count(), 3);
}

#[test]
fn an_address_whose_free_was_lost_ends_the_block_before() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("raw.ptrace.csv.zst");
    let ring = Ring::new(slots(4));
    for record in [raw::allocated(1, 64, 0), raw::allocated(1, 32, 0), raw::freed(1, 0)] {
        assert!(ring.push(record));
    }
    let out = File::create(&file).unwrap();
    raw::write(&ring, out, &file, "test", &AtomicBool::new(true)).unwrap();
    let log = ptrace::read(File::open(&file).unwrap()).unwrap();
    let (allocate, free) = (Kind::Allocate, Kind::Free);
    let expected = [(allocate, 0, 64), (free, 0, 0), (allocate, 1, 32), (free, 1, 0)];
    assert_eq!(kinds(&log), expected);
}

#[test]
fn a_buffer_keeps_its_backtrace_over_a_pause() {
    let test = setting(|options| options.backtraces = true);
    let held = test.pool.allocate(KIB).unwrap();
    test.recorder.pause();
    let unseen = test.pool.allocate(KIB).unwrap();
    test.recorder.resume();
    drop((held, unseen));
    test.recorder.finish().unwrap();
    let log = test.log();
    let allocations = log.operations.iter().filter(|one| one.kind == Kind::Allocate);
    let stacks: Vec<u32> = allocations.map(|one| one.stack).collect();
    assert!(stacks.len() == 3 && stacks.iter().all(|stack| *stack > 0), "{stacks:?}");
}

#[test]
fn operations_of_several_threads_are_all_there() {
    let test = setting(|_| {});
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let pool = &test.pool;
            scope.spawn(move || {
                for round in 0..500 {
                    drop(pool.allocate(1 + thread * 1000 + round % 7).unwrap());
                }
            });
        }
    });
    let recorded = test.recorder.finish().unwrap();
    let log = test.log();
    assert_eq!((recorded.operations, recorded.lost), (4000, 0));
    let bytes: u64 = log.operations.iter().map(|one| one.bytes).sum();
    let expected: u64 = (0..4).map(|t| (0..500).map(|r| 1 + t * 1000 + r % 7).sum::<u64>()).sum();
    assert_eq!(bytes, expected);
}

#[test]
fn a_recorder_that_has_ended_says_so_and_the_pool_goes_on() {
    let test = setting(|_| {});
    test.recorder.finish().unwrap();
    drop(test.pool.allocate(KIB).unwrap());
    assert!(test.recorder.finish().is_err());
    assert!(test.log().operations.is_empty());
    assert!(Recorder::create("/no/such/folder/x.ptrace.csv.zst").is_err());
}

#[test]
fn a_file_is_compressed_where_its_name_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let logs = ["a.ptrace.csv", "a.ptrace.csv.zst"].map(|name| {
        let file = folder.path().join(name);
        let recorder = Arc::new(Recorder::create(&file).unwrap());
        let builder = BucketPool::builder(SimDevice::new()).observer(recorder.clone());
        drop(builder.build().allocate(3 * KIB).unwrap());
        recorder.finish().unwrap();
        (std::fs::read(&file).unwrap(), kinds(&ptrace::read(File::open(&file).unwrap()).unwrap()))
    });
    let [(plain, operations), (compressed, same)] = logs;
    assert!(plain.starts_with(b"#ptrace,") && plain.ends_with(b"\n"));
    assert!(compressed.starts_with(&[0x28, 0xB5, 0x2F, 0xFD])); // a frame of zstd
    assert_eq!(operations, [(Kind::Allocate, 0, 3 * KIB), (Kind::Free, 0, 0)]);
    assert_eq!(operations, same);
}

/// A server with a thread for each request has few threads at once.
#[test]
fn threads_that_end_leave_their_lanes_to_others() {
    let (ring, ends) = (Ring::new(slots(8192)), AtomicBool::new(true));
    for thread in 0..4000 {
        assert!(ring.push(raw::allocated(0x1000, 64, thread)));
        assert!(ring.push(raw::freed(0x1000, thread)));
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("threads.ptrace.csv");
    let recorded =
        raw::write(&ring, File::create(&file).unwrap(), &file, "threads", &ends).unwrap();
    assert_eq!((recorded.operations, recorded.shared_lane), (8000, 0));
    let log = ptrace::read(File::open(&file).unwrap()).unwrap();
    let lanes: std::collections::HashSet<u32> = log.operations.iter().map(|one| one.lane).collect();
    assert!(lanes.len() <= 1024, "{} lanes", lanes.len());
    assert!(log.operations.as_chunks::<2>().0.iter().all(|[a, f]| a.lane == f.lane));
}
