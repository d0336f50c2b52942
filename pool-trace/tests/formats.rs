//! Logs of other tools, written by their own writers, and what is written for them.
//!
//! `samples/torch_*.pickle` are snapshots of torch 2.15's caching allocator, over a stand-in for
//! the CUDA runtime: by the C++ writer (`_memory_snapshot_pickled`), by `_dump_snapshot` (protocol
//! 4), and in protocol 5. `samples/rmm.csv` is a log of RMM 26.10's `LoggingResourceAdaptor` over a
//! callback resource, of three threads and five streams.
#![expect(clippy::unwrap_used, reason = "a test")]

use pool_core::{ArenaConfig, BucketPool, MIB};
use pool_sim::SimDevice;
use pool_trace::{Kind, Log, Operation, perfetto, ptrace, rmm, torch};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;

fn sample(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/tests/samples/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn count(log: &Log, kind: Kind) -> usize {
    log.operations.iter().filter(|one| one.kind == kind).count()
}

/// Asserts that a free ends a live allocation, and that ids do not come again.
fn check(log: &Log) {
    let (mut live, mut seen) = (HashSet::new(), HashSet::new());
    for one in &log.operations {
        match one.kind {
            Kind::Allocate => {
                assert!(seen.insert(one.id) && live.insert(one.id), "{one:?}");
            }
            Kind::Free => assert!(live.contains(&one.id), "{one:?}"),
            Kind::FreeCompleted => assert!(live.remove(&one.id), "{one:?}"),
            _ => {}
        }
    }
}

#[test]
fn snapshots_of_pytorchs_writers_are_one_log() {
    let logs = ["cpp", "py4", "py5"].map(|writer| {
        let log = pool_trace::read(&sample(&format!("torch_{writer}.pickle"))[..]).unwrap();
        check(&log);
        log
    });
    let [cpp, py4, py5] = logs.map(|log| log.without_lines().operations);
    assert_eq!(py4, py5);
    assert_eq!(cpp.len(), py4.len());
    let kinds = |operations: &[Operation]| {
        let what = |one: &Operation| (one.kind, one.id, one.bytes, one.lane);
        operations.iter().map(what).collect::<Vec<_>>()
    };
    assert_eq!(kinds(&cpp), kinds(&py4));
    assert!(
        py4.iter().any(|one| one.kind == Kind::FreeCompleted),
        "a recorded stream delays a free"
    );
    let lanes: HashSet<u32> = py4.iter().map(|one| one.lane).collect();
    assert!(lanes.len() >= 2, "{lanes:?}");
}

#[test]
fn a_log_of_rmms_adaptor_is_read_whole() {
    let text = String::from_utf8(sample("rmm.csv")).unwrap();
    let log = pool_trace::read(text.as_bytes()).unwrap();
    check(&log);
    let lines = |action: &str| text.lines().filter(|line| line.contains(action)).count();
    assert_eq!(count(&log, Kind::Allocate), lines(",allocate,"));
    assert_eq!(count(&log, Kind::Refuse), lines(",allocate failure,"));
    assert_eq!(count(&log, Kind::Free), lines(",free,"));
    let lanes: HashSet<u32> = log.operations.iter().map(|one| one.lane).collect();
    assert_eq!(lanes.len(), 5);
    let ns: u64 = log.operations.iter().map(|one| one.dt_ns).sum();
    assert!((1_000_000..10_000_000_000).contains(&ns), "{ns}");
}

#[test]
fn a_log_of_rmms_adaptor_goes_on_after_midnight_and_a_small_step_back_is_no_day() {
    let times = ["23:59:59.000001", "00:00:01.000001", "00:00:01.000000", "00:00:02.000000"];
    let rows = times.iter().map(|time| format!("1,{time},allocate,0x1,64,0x0\n"));
    let text = format!("Thread,Time,Action,Pointer,Size,Stream\n{}", rows.collect::<String>());
    let log = rmm::read(text.as_bytes()).unwrap();
    let allocations = log.operations.iter().filter(|one| one.kind == Kind::Allocate);
    let ids: HashSet<u64> = allocations.map(|one| one.id).collect();
    assert_eq!(ids.len(), 4);
    let passed: u64 = log.operations.iter().map(|one| one.dt_ns).sum();
    assert_eq!(passed, 3_000_000_000, "2 s over midnight, then 1 s");
    check(&log);
}

#[test]
fn the_time_of_what_is_no_operation_counts_to_the_next() {
    let text = "Thread,Time,Action,Pointer,Size,Stream\n\
                1,10:00:00.000001,allocate,0x1,64,0x0\n\
                1,10:00:00.000004,free,0x2,64,0x0\n\
                1,10:00:00.000009,free,0x1,64,0x0\n";
    let times = |log: &Log| log.operations.iter().map(|one| one.dt_ns).collect::<Vec<_>>();
    assert_eq!(times(&rmm::read(text.as_bytes()).unwrap()), [0, 8000], "one free is of no block");
    // A free that is completed next is one operation.
    let text = "op,id,size,lane,dt_ns\na,0,64,0,0\nf,0,,0,3000\nd,0,,0,5000\na,1,64,0,7000\n";
    let (log, mut pickle) = (ptrace::read(text.as_bytes()).unwrap(), Vec::new());
    torch::write(&log, &pool_core::observe::MemoryMap::default(), &mut pickle).unwrap();
    let log = torch::read(&pickle[..]).unwrap();
    assert_eq!(times(&log), [0, 3000, 12_000]);
    assert_eq!(log.operations.iter().map(|one| one.line).collect::<Vec<_>>(), [1, 2, 4]);
}

#[test]
fn times_that_add_up_to_more_than_a_number_holds_are_written() {
    let text = format!("op,id,size,lane,dt_ns\na,0,64,0,{0}\nf,0,,0,{0}\n", u64::MAX);
    let (log, mut out) = (ptrace::read(text.as_bytes()).unwrap(), Vec::new());
    torch::write(&log, &pool_core::observe::MemoryMap::default(), &mut out).unwrap();
    assert_eq!(torch::read(&out[..]).unwrap().operations.len(), 2);
    for write in [perfetto::write, rmm::write] {
        out.clear();
        write(&log, &mut out).unwrap();
        assert!(!out.is_empty());
    }
}

/// More bytes than a number holds, of blocks that are each of a size that readers take.
#[test]
fn sizes_that_add_up_to_more_than_a_number_holds_are_written() {
    let size = ptrace::SIZE_LIMIT;
    let mut text = String::from("op,id,size,lane,dt_ns\n");
    for id in 0..140_000 {
        writeln!(text, "a,{id},{size},0,0").unwrap();
    }
    for id in 0..140_000 {
        writeln!(text, "f,{id},,0,0").unwrap();
    }
    let log = ptrace::read(text.as_bytes()).unwrap();
    let live = u128::from(size) * 140_000;
    assert!(live > u128::from(u64::MAX), "{live}");
    for write in [perfetto::write, rmm::write, torch_write] {
        write(&log, &mut std::io::sink()).unwrap();
    }
}

fn torch_write(log: &Log, out: &mut std::io::Sink) -> std::io::Result<()> {
    torch::write(log, &pool_core::observe::MemoryMap::default(), out)
}

/// Operations that each format has a place for: allocations, frees and refusals of two lanes.
fn plain() -> Log {
    let mut operations = Vec::new();
    let mut push = |kind, id, bytes, lane| {
        operations.push(Operation { kind, id, bytes, lane, dt_ns: 3000, ..Operation::default() });
    };
    for id in 0..50 {
        push(Kind::Allocate, id, 1000 * (id + 1), u32::from(id % 3 == 0));
        if id % 2 == 1 {
            push(Kind::Free, id - 1, 0, u32::from(id % 5 == 0));
        }
        if id % 20 == 7 {
            push(Kind::Refuse, 0, 1 << 40, 0);
        }
    }
    operations[0].dt_ns = 0;
    Log { operations, ..Log::default() }
}

#[test]
fn a_round_trip_through_each_format_keeps_operations_sizes_streams_and_order() {
    let log = plain();
    let mut text = Vec::new();
    ptrace::write(&log, &mut text).unwrap();
    assert_eq!(pool_trace::read(&text[..]).unwrap().without_lines(), log);
    text.clear();
    rmm::write(&log, &mut text).unwrap();
    assert_eq!(pool_trace::read(&text[..]).unwrap().without_lines().operations, log.operations);
    text.clear();
    torch::write(&log, &pool_core::observe::MemoryMap::default(), &mut text).unwrap();
    assert_eq!(pool_trace::read(&text[..]).unwrap().without_lines().operations, log.operations);
}

#[test]
fn what_other_tools_wrote_survives_a_round_trip() {
    let log = pool_trace::read(&sample("torch_cpp.pickle")[..]).unwrap();
    let mut pickle = Vec::new();
    torch::write(&log, &pool_core::observe::MemoryMap::default(), &mut pickle).unwrap();
    let again = pool_trace::read(&pickle[..]).unwrap();
    assert_eq!(again.without_lines().operations, log.without_lines().operations);
    let log = pool_trace::read(&sample("rmm.csv")[..]).unwrap();
    let mut text = Vec::new();
    rmm::write(&log, &mut text).unwrap();
    let again = pool_trace::read(&text[..]).unwrap();
    assert_eq!(again.without_lines().operations, log.without_lines().operations);
}

#[test]
fn tags_stacks_and_losses_stay_in_a_trace() {
    let one =
        Operation { kind: Kind::Allocate, bytes: 8, tag: 2, stack: 1, ..Operation::default() };
    let log = Log {
        is_cut_off: false,
        source: "a program".into(),
        operations: vec![one],
        tags: vec!["loader".into(), "layer, 2".into()],
        stacks: vec!["inner;outer".into()],
        lost: 3,
    };
    let mut text = Vec::new();
    ptrace::write(&log, &mut text).unwrap();
    assert_eq!(ptrace::read(&text[..]).unwrap().without_lines(), log);
}

#[test]
fn perfetto_gets_counters_over_time() {
    let mut text = Vec::new();
    perfetto::write(&plain(), &mut text).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let mut last: HashMap<&str, f64> = HashMap::new();
    let mut counters: BTreeMap<&str, usize> = BTreeMap::new();
    for event in events.iter().filter(|event| event["ph"] == "C") {
        let name = event["name"].as_str().unwrap();
        let at = event["ts"].as_f64().unwrap();
        assert!(last.insert(name, at).is_none_or(|before| before <= at));
        *counters.entry(name).or_default() += 1;
    }
    assert_eq!(counters["live bytes"], 75);
    assert_eq!(events.last().unwrap()["args"]["count"], 25);
}

/// A pickle of these bytes behind the mark of protocol 2.
fn pickled(body: &[u8]) -> Vec<u8> {
    [&[0x80, 2], body, b"."].concat()
}

#[test]
fn bad_input_gets_one_clear_line() {
    let cut = sample("torch_cpp.pickle");
    let header = "Thread,Time,Action,Pointer,Size,Stream\n";
    let with = |line: &str| [header, line].concat().into_bytes();
    let bad: Vec<(&str, Vec<u8>)> = vec![
        ("a snapshot that is cut off", cut[..cut.len() / 2].to_vec()),
        ("a pickle that calls os.system", pickled(b"cos\nsystem\n(X\x02\0\0\0lstR")),
        ("a pickle of a class", pickled(b"ccollections\nOrderedDict\n)R")),
        ("a pickle of a number", pickled(b"K\x01")),
        ("a dict without traces", pickled(b"}")),
        ("traces that are a number", pickled(b"}X\x0d\0\0\0device_tracesK\x01s")),
        ("a log without a column", b"Thread,Time,Action,Pointer,Stream\n".to_vec()),
        ("a log with a short line", with("1,0:0:0.1,allocate\n")),
        ("a log with an unknown action", with("1,0:0:0.1,grab,0x1,8,0\n")),
        ("a log with a bad size", with("1,0:0:0.1,allocate,0x1,-8,0\n")),
        ("a log with a bad time", with("1,noon,allocate,0x1,8,0\n")),
        ("a log with a bad pointer", with("1,0:0:0.1,allocate,there,8,0\n")),
        ("a tag without a name", b"#ptrace,2\n#tag,1\n".to_vec()),
        ("a tag out of order", b"#ptrace,2\n#tag,2,b\n".to_vec()),
        ("an unknown tag", b"#ptrace,2\nop,id,size,lane,dt_ns,tag,stack\na,0,8,0,0,1,\n".to_vec()),
    ];
    let lines: Vec<String> = bad
        .into_iter()
        .map(|(what, bytes)| match pool_trace::read(&bytes[..]) {
            Ok(log) => panic!("{what} was read: {log:?}"),
            Err(error) => format!("{what}: {error}"),
        })
        .collect();
    assert!(lines.iter().all(|line| !line.contains('\n')), "{lines:?}");
    insta::assert_snapshot!(lines.join("\n"));
}

/// The snapshot of a live pool has its segments, whose blocks add up.
#[test]
fn the_snapshot_of_a_pool_has_its_memory_map() {
    let builder = BucketPool::builder(SimDevice::new());
    let pool = builder.arena(ArenaConfig::segments(8 * MIB)).build();
    let held: Vec<_> = (1..=3).map(|size| pool.allocate(size * MIB).unwrap()).collect();
    let mut pickle = Vec::new();
    torch::write(&Log::default(), &pool.map(), &mut pickle).unwrap();
    // Read back, live blocks of a snapshot are allocations from before its trace.
    let log = torch::read(&pickle[..]).unwrap();
    let sizes: Vec<u64> = log.operations.iter().map(|one| one.bytes).collect();
    assert_eq!(sizes, [MIB, 2 * MIB, 3 * MIB]);
    drop(held);
}

/// A program that is killed leaves a frame without an end. All complete lines of it are read.
#[test]
fn a_frame_that_is_cut_off_keeps_its_complete_lines() {
    let mut text = String::from("#ptrace,1\nop,id,size,lane,dt_ns\n");
    for id in 0..100_000_u64 {
        writeln!(text, "a,{id},{},0,{}", id * 7919 % 10_007, id * 31 % 1009).unwrap();
    }
    let whole = zstd::encode_all(text.as_bytes(), 1).unwrap();
    for share in [2, 3, 9] {
        let log = pool_trace::read(&whole[..whole.len() * share / 10]).unwrap();
        assert!(log.is_cut_off, "{share} tenths");
        assert!(log.operations.len() > 5000 * share, "{} operations", log.operations.len());
        assert!((0..).zip(&log.operations).all(|(id, one)| one.id == id));
    }
    assert!(!pool_trace::read(&whole[..]).unwrap().is_cut_off);
}

/// A refused request may be larger than any memory: that is why it was refused.
#[test]
fn refused_requests_of_any_size_are_read() {
    let ptrace = "op,id,size,lane,dt_ns\nx,,18446744073709551615,0,0\n";
    let rmm = "Thread,Time,Action,Pointer,Size,Stream\n\
               1,0:0:0,allocate failure,(nil),18446744073709551615,0\n";
    for text in [ptrace, rmm] {
        assert_eq!(pool_trace::read(text.as_bytes()).unwrap().operations[0].bytes, u64::MAX);
    }
    let allocated = "op,id,size,lane,dt_ns\na,0,18446744073709551615,0,0\n";
    assert!(pool_trace::read(allocated.as_bytes()).is_err());
}

/// A pickle may nest or repeat without end, also in values that it throws away, and may be cut off.
/// It gets one line, and neither memory nor the stack runs out.
#[test]
fn a_pickle_that_nests_or_repeats_without_end_gets_one_line() {
    let (lists, appends) = ("]".repeat(300_000), "a".repeat(299_999));
    let deep =
        |end: &[u8]| [b"\x80\x02".as_slice(), lists.as_bytes(), appends.as_bytes(), end].concat();
    // Each list holds the one before twice: 2^40 values.
    let mut wide = b"\x80\x02]q\x00".to_vec();
    for level in 1..40 {
        wide.extend([b']', b'q', level, b'h', level - 1, b'a', b'h', level - 1, b'a']);
    }
    wide.push(b'.');
    let itself = b"\x80\x02]q\x00h\x00a.".to_vec();
    let underflow = b"\x80\x02(0a.".to_vec();
    for pickle in [deep(b"."), deep(b""), deep(b"0}."), deep(b"}."), wide, itself, underflow] {
        let error = torch::read(&pickle[..]).unwrap_err().to_string();
        assert!(error.lines().count() == 1, "{error}");
    }
}

/// Python writes a frame that several entries share once.
#[test]
fn a_snapshot_whose_entries_share_frames_is_read() {
    for name in ["shared_frames2.pickle", "shared_frames4.pickle"] {
        let log = torch::read(&sample(name)[..]).unwrap();
        let sizes: Vec<u64> = log.operations.iter().map(|one| one.bytes).collect();
        assert_eq!(sizes, [512, 1024, 1536, 2048, 0], "{name}");
    }
}

/// A crash loses the lines that RMM has buffered, down to the middle of one.
#[test]
fn a_log_of_rmm_that_a_crash_has_cut_is_read_to_its_last_whole_line() {
    let whole = "Thread,Time,Action,Pointer,Size,Stream\n\
                 7,10:00:00.000001,allocate,0x10,4096,0x0\n";
    let last = "7,10:00:00.000003,free,0x10,4096,0x0";
    let expected = pool_trace::read(whole.as_bytes()).unwrap();
    assert!(!expected.is_cut_off);
    for end in 1..=last.len() {
        let text = format!("{whole}{}", &last[..end]);
        let plain = pool_trace::read(text.as_bytes()).unwrap();
        let mut zstd = zstd_of(&text);
        let compressed = pool_trace::read(&zstd[..]).unwrap();
        assert_eq!(plain, compressed);
        assert_eq!((&plain.operations, plain.is_cut_off), (&expected.operations, true));
        // The frame lacks its end too.
        zstd.truncate(zstd.len() - 4);
        let cut = pool_trace::read(&zstd[..]);
        assert!(cut.is_err() || cut.unwrap().is_cut_off, "{}", &last[..end]);
    }
    let middle = format!("{whole}7,10:00:00.000003,free,0x10\n{last}\n");
    let error = pool_trace::read(middle.as_bytes()).unwrap_err().to_string();
    assert!(error.starts_with("line 3: no `Size`"), "{error}");
}

#[test]
fn a_log_of_rmm_without_its_header_line_is_told_the_columns() {
    let text = "7,10:00:00.000001,allocate,0x10,4096,0x0\n7,10:00:00.000003,free,0x10,4096,0x0\n";
    let error = pool_trace::read(text.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("without a header line"), "{error}");
    assert!(error.contains("Thread,Time,Action,Pointer,Size,Stream"), "{error}");
}

#[test]
fn a_copy_of_a_trace_that_ends_in_a_line_is_read_to_the_line_before() {
    let text = "#ptrace,2\n#tag,1,größe\nop,id,size,lane,dt_ns,tag,stack\n\
                a,0,4096,0,0,1,\nf,0,,0,1234,1,\n";
    let whole = pool_trace::read(text.as_bytes()).unwrap();
    assert_eq!((whole.operations.len(), whole.is_cut_off), (2, false));
    let first = text.find('\n').unwrap() + 1;
    for end in first + 1..text.len() {
        let log = pool_trace::read(&text.as_bytes()[..end]).unwrap();
        let ended = &text.as_bytes()[..end];
        assert_eq!(log.is_cut_off, !ended.ends_with(b"\n"), "{end}");
        assert!(whole.operations.starts_with(&log.operations), "{end}: {log:?}");
        assert!(whole.tags.starts_with(&log.tags), "{end}: {log:?}");
    }
    let middle = "#ptrace,1\nop,id,size,lane,dt_ns\na,0,4096,0,0\nf,0,,\n";
    let error = pool_trace::read(middle.as_bytes()).unwrap_err().to_string();
    assert!(error.starts_with("line 4: 4 fields"), "{error}");
}

fn zstd_of(text: &str) -> Vec<u8> {
    zstd::stream::encode_all(text.as_bytes(), 3).unwrap()
}
