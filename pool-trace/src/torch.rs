//! The memory snapshot of `PyTorch` (`torch.cuda.memory._dump_snapshot`), a pickle of plain
//! containers, which `memory_viz` shows (`torch/csrc/cuda/memory_snapshot.cpp`,
//! `torch/cuda/_memory_viz.py` of torch 2.15).

mod pickle;

use crate::malformed::Malformed;
use crate::operation::{Kind, Log, Operation};
use crate::ptrace::{LANES_MOST, SIZE_LIMIT};
use pickle::Pickle;
use pool_core::observe::{MemoryMap, RangeMap, RangeState, SegmentMap};
use serde_pickle::{HashableValue, SerOptions, Value};
use std::collections::{BTreeSet, HashMap};
use std::io::{self, Read, Write};

/// The address of the first block that [`write`] invents.
const FIRST_ADDRESS: u64 = 0x7f00_0000_0000;
/// Sizes of invented blocks are multiples of this, as `PyTorch`'s are.
const GRANULE: u64 = 512;

/// An entry of a device's trace.
struct Entry {
    micros: u64,
    device: usize,
    action: Action,
    address: u64,
    bytes: u64,
    stream: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    Allocate,
    FreeRequested,
    FreeCompleted,
    SegmentAllocate,
    SegmentFree,
    OutOfMemory,
}

/// Reads the trace of a snapshot. A snapshot that began late has blocks which were allocated
/// before: they are the first allocations. A free whose completion comes next is one operation.
/// Lanes are the streams of all devices.
///
/// # Errors
///
/// A pickle that is cut off, that would construct an object, or that is no snapshot; one whose lists,
/// with those that it refers to several times, have more entries than the file has bytes.
///
/// ```
/// use pool_trace::{ptrace, torch};
///
/// let log = ptrace::read("op,id,size,lane,dt_ns\na,0,64,0,0\nf,0,,0,2000\n".as_bytes())?;
/// let mut pickle = Vec::new();
/// torch::write(&log, &Default::default(), &mut pickle)?;
/// let again = torch::read(&pickle[..])?;
/// assert_eq!(again.without_lines().operations, log.without_lines().operations);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn read(mut source: impl Read) -> Result<Log, Malformed> {
    let mut pickle = Vec::new();
    let all = source.read_to_end(&mut pickle);
    let expected = "a file that can be read to its end";
    all.map_err(|error| Malformed::of_read(&error, expected))?;
    let pickle = Pickle::read(&pickle)?;
    let snapshot = pickle.root();
    let traces = snapshot.of("device_traces", "the snapshot")?.list("`device_traces`")?;
    let mut entries = Vec::new();
    for (device, trace) in traces.enumerate() {
        for (at, entry) in trace.list("a trace of `device_traces`")?.enumerate() {
            entries.extend(entry_of(entry, device, at)?);
        }
    }
    // Devices have one clock. The sort keeps the order of entries of the same microsecond.
    entries.sort_by_key(|entry| entry.micros);
    let before = live_before(snapshot, &entries)?;
    log_of(&before, &entries)
}

fn entry_of(
    entry: pickle::Value<'_>,
    device: usize,
    at: usize,
) -> Result<Option<Entry>, Malformed> {
    let what = format!("entry {at} of device {device}");
    let action = match entry.of("action", &what)?.text("`action`")? {
        "alloc" => Action::Allocate,
        "free_requested" => Action::FreeRequested,
        "free_completed" | "free" => Action::FreeCompleted,
        "segment_alloc" | "segment_map" => Action::SegmentAllocate,
        "segment_free" | "segment_unmap" => Action::SegmentFree,
        "oom" => Action::OutOfMemory,
        _ => return Ok(None), // snapshot, annotate, and what later versions add
    };
    let bytes = entry.of("size", &what)?.number(&what)?;
    if bytes > SIZE_LIMIT && action != Action::OutOfMemory {
        return Err(Malformed::new(format!("{what}: size {bytes}"), "at most 2^47 bytes"));
    }
    let address = match action {
        Action::OutOfMemory => 0, // it has `device_free` in this place
        _ => entry.of("addr", &what)?.number(&what)?,
    };
    let micros = entry.number_or("time_us", 0)?;
    let stream = entry.number_or("stream", 0)?;
    Ok(Some(Entry { micros, device, action, address, bytes, stream }))
}

/// Returns the blocks that were allocated before the trace began: those that it frees without an
/// allocation, and those that are live in the end and that it does not allocate.
fn live_before(
    snapshot: pickle::Value<'_>,
    entries: &[Entry],
) -> Result<Vec<(usize, u64, u64, u64)>, Malformed> {
    let (mut before, mut seen) = (Vec::new(), BTreeSet::new());
    for Entry { device, action, address, bytes, stream, .. } in entries {
        let frees = matches!(action, Action::FreeRequested | Action::FreeCompleted);
        if *action == Action::Allocate {
            seen.insert((*device, *address));
        } else if frees && seen.insert((*device, *address)) {
            before.push((*device, *address, *bytes, *stream));
        }
    }
    let Some(segments) = snapshot.get("segments", "the snapshot")? else {
        return Ok(before);
    };
    for segment in segments.list("`segments`")? {
        let device = usize::try_from(segment.number_or("device", 0)?).unwrap_or(0);
        let (stream, mut address) =
            (segment.number_or("stream", 0)?, segment.number_or("address", 0)?);
        for block in segment.of("blocks", "a segment")?.list("`blocks`")? {
            let size = block.of("size", "a block")?.number("a block")?;
            let at = block.number_or("address", address)?;
            address = at.saturating_add(size);
            if size > SIZE_LIMIT {
                return Err(Malformed::new(
                    format!("a block of {size} bytes"),
                    "at most 2^47 bytes",
                ));
            }
            let state = block.of("state", "a block")?.text("`state`")?;
            if state == "active_allocated" && seen.insert((device, at)) {
                let requested = block.number_or("requested_size", size)?;
                if requested > SIZE_LIMIT {
                    return Err(Malformed::new(
                        format!("a request of {requested} bytes"),
                        "at most 2^47 bytes",
                    ));
                }
                before.push((device, at, requested, stream));
            }
        }
    }
    Ok(before)
}

fn log_of(before: &[(usize, u64, u64, u64)], entries: &[Entry]) -> Result<Log, Malformed> {
    let mut streams: BTreeSet<(usize, u64)> =
        entries.iter().map(|entry| (entry.device, entry.stream)).collect();
    streams.extend(before.iter().map(|(device, _, _, stream)| (*device, *stream)));
    if streams.len() > LANES_MOST as usize {
        return Err(Malformed::new(format!("{} streams", streams.len()), "at most 65536"));
    }
    let lanes: HashMap<(usize, u64), u32> = streams.into_iter().zip(0..).collect();
    let mut reading = Reading { log: Log::default(), lanes, live: HashMap::new(), next: 0 };
    reading.log.source = "PyTorch snapshot".into();
    for (device, address, bytes, stream) in before {
        reading.allocate((*device, *address), *bytes, (*device, *stream), 0);
    }
    let mut last = entries.first().map_or(0, |entry| entry.micros);
    for (at, entry) in (1..).zip(entries) {
        let before = reading.log.operations.len();
        reading.entry(entry, entries.get(at), (entry.micros - last).saturating_mul(1000));
        // The time of an entry that is no operation counts to the next that is.
        if reading.log.operations.len() > before {
            last = entry.micros;
        }
        for one in &mut reading.log.operations[before..] {
            one.line = at as u64;
        }
    }
    Ok(reading.log)
}

/// A log that is being made.
struct Reading {
    log: Log,
    lanes: HashMap<(usize, u64), u32>,
    /// The allocation at an address, and whether its free was requested.
    live: HashMap<(usize, u64), (u64, bool)>,
    next: u64,
}

impl Reading {
    fn push(&mut self, kind: Kind, id: u64, bytes: u64, stream: (usize, u64), dt_ns: u64) {
        let lane = self.lanes.get(&stream).copied().unwrap_or(0);
        let one = Operation { kind, id, bytes, lane, dt_ns, ..Operation::default() };
        self.log.operations.push(one);
    }

    fn allocate(&mut self, at: (usize, u64), bytes: u64, stream: (usize, u64), dt_ns: u64) {
        let id = self.next;
        self.next += 1;
        if let Some((before, _)) = self.live.insert(at, (id, false)) {
            // Its free is missing: the trace is a ring that had overflowed.
            self.push(Kind::Free, before, 0, stream, dt_ns);
            return self.push(Kind::Allocate, id, bytes, stream, 0);
        }
        self.push(Kind::Allocate, id, bytes, stream, dt_ns);
    }

    fn entry(&mut self, entry: &Entry, next: Option<&Entry>, dt_ns: u64) {
        let (at, stream) = ((entry.device, entry.address), (entry.device, entry.stream));
        match entry.action {
            Action::Allocate => self.allocate(at, entry.bytes, stream, dt_ns),
            Action::FreeRequested => {
                let Some((id, requested)) = self.live.get_mut(&at) else { return };
                if std::mem::replace(requested, true) {
                    return;
                }
                let id = *id;
                let completes = next.is_some_and(|next| {
                    next.action == Action::FreeCompleted && (next.device, next.address) == at
                });
                if completes {
                    self.live.remove(&at);
                }
                self.push(Kind::Free, id, 0, stream, dt_ns);
            }
            Action::FreeCompleted => match self.live.remove(&at) {
                Some((id, true)) => self.push(Kind::FreeCompleted, id, 0, stream, dt_ns),
                Some((id, false)) => self.push(Kind::Free, id, 0, stream, dt_ns),
                None => {}
            },
            Action::SegmentAllocate => {
                self.push(Kind::DeviceAllocate, 0, entry.bytes, stream, dt_ns);
            }
            Action::SegmentFree => self.push(Kind::DeviceFree, 0, entry.bytes, stream, dt_ns),
            Action::OutOfMemory => self.push(Kind::Refuse, 0, entry.bytes, stream, dt_ns),
        }
    }
}

/// Writes a snapshot that `memory_viz` opens: the operations as the trace of device 0, and the
/// memory map of a pool ([`BucketPool::map`](pool_core::BucketPool::map)) as its segments.
/// Addresses of the trace are invented, since a log has none. A lane is a stream. Uses and events
/// are left out: the format has no place for them.
///
/// # Errors
///
/// The error of the writer.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_config as config; pub use pool_sim as sim; pub mod trace { pub use pool_trace::*; } }
/// use bucketpool::trace::{ptrace, torch};
/// use bucketpool::{ArenaConfig, BucketPool, MIB, sim::SimDevice};
/// use std::io::ErrorKind;
///
/// let pool = BucketPool::builder(SimDevice::new()).arena(ArenaConfig::torch()).build();
/// let _tensor = pool.allocate(4 * MIB)?;
/// let log = ptrace::read("op,id,size,lane,dt_ns\na,0,4194304,0,0\n".as_bytes())?;
/// let mut pickle = Vec::new();
/// torch::write(&log, &pool.map(), &mut pickle)?;
/// let error = torch::write(&log, &pool.map(), &mut &mut [0; 16][..]).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::WriteZero);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn write(log: &Log, map: &MemoryMap, out: &mut impl Write) -> io::Result<()> {
    let mut entries = Vec::new();
    let (mut live, mut address, mut ns) = (HashMap::new(), FIRST_ADDRESS, 0);
    let completed = log.completed_later();
    for one in &log.operations {
        ns = one.dt_ns.saturating_add(ns);
        let mut push = |action: &str, address: u64, bytes: u64| {
            entries.push(entry(log, one, action, address, bytes, ns / 1000));
        };
        match one.kind {
            Kind::Allocate => {
                live.insert(one.id, (address, one.bytes));
                push("alloc", address, one.bytes);
                let bytes = one.bytes.max(1).checked_next_multiple_of(GRANULE);
                address = address.saturating_add(bytes.unwrap_or(u64::MAX));
            }
            Kind::Free => {
                let Some((address, bytes)) = live.get(&one.id).copied() else { continue };
                push("free_requested", address, bytes);
                if !completed.contains(&one.id) {
                    push("free_completed", address, bytes);
                }
            }
            Kind::FreeCompleted => {
                let Some((address, bytes)) = live.get(&one.id).copied() else { continue };
                push("free_completed", address, bytes);
            }
            Kind::DeviceAllocate => push("segment_alloc", 0, one.bytes),
            Kind::DeviceFree => push("segment_free", 0, one.bytes),
            Kind::Refuse => push("oom", 0, one.bytes),
            Kind::Use | Kind::Event => {}
        }
    }
    let settings = dict_of([("PYTORCH_CUDA_ALLOC_CONF", Value::String(String::new()))]);
    let snapshot = dict_of([
        ("segments", Value::List(segments(map))),
        ("device_traces", Value::List(vec![Value::List(entries)])),
        ("allocator_settings", settings),
    ]);
    let written = serde_pickle::value_to_writer(out, &snapshot, SerOptions::new().proto_v2());
    written.map_err(|error| match error {
        serde_pickle::Error::Io(error) => error,
        other => io::Error::other(other),
    })
}

fn entry(log: &Log, one: &Operation, action: &str, address: u64, bytes: u64, micros: u64) -> Value {
    let place = if action == "oom" { "device_free" } else { "addr" };
    let stack = usize::try_from(one.stack).ok().and_then(|at| log.stacks.get(at.checked_sub(1)?));
    let tag = usize::try_from(one.tag).ok().and_then(|at| log.tags.get(at.checked_sub(1)?));
    dict_of([
        ("action", Value::String(action.into())),
        (place, int(address)),
        ("size", int(bytes)),
        ("stream", int(one.lane.into())),
        ("time_us", int(micros)),
        ("frames", Value::List(frames(stack.map_or("", String::as_str)))),
        ("user_metadata", Value::String(tag.cloned().unwrap_or_default())),
    ])
}

fn frames(stack: &str) -> Vec<Value> {
    let names = stack.split(';').filter(|name| !name.is_empty());
    let frame = |name: &str| {
        dict_of([
            ("name", Value::String(name.into())),
            ("filename", Value::String(String::new())),
            ("line", int(0)),
        ])
    };
    names.map(frame).collect()
}

fn segments(map: &MemoryMap) -> Vec<Value> {
    // Addresses of segments are invented too: a pool knows offsets only.
    let mut address = FIRST_ADDRESS >> 1;
    let mut segment = |segment: &SegmentMap| {
        let start = address;
        address += segment.bytes.next_multiple_of(1 << 21);
        let blocks: Vec<Value> = segment.ranges.iter().map(|range| block(range, start)).collect();
        let used = |active: bool| {
            let ranges = segment.ranges.iter();
            let counts =
                |state| state == RangeState::Used || active && state == RangeState::Pending;
            ranges.filter(|range| counts(range.state)).map(RangeMap::bytes).sum()
        };
        dict_of([
            ("device", int(0)),
            ("address", int(start)),
            ("total_size", int(segment.bytes)),
            ("allocated_size", int(used(false))),
            ("active_size", int(used(true))),
            ("requested_size", int(used(false))),
            ("stream", int(segment.ranges.iter().find_map(|range| range.stream).unwrap_or(0))),
            ("segment_type", Value::String("large".into())),
            ("segment_pool_id", Value::Tuple(vec![int(0), int(0)])),
            ("is_expandable", Value::Bool(false)),
            ("frames", Value::List(Vec::new())),
            ("blocks", Value::List(blocks)),
        ])
    };
    map.segments.iter().flat_map(stretches).map(|one| segment(&one)).collect()
}

/// Returns the parts of a segment that have memory, each as a segment. The snapshot has no place
/// for addresses without memory.
fn stretches(segment: &SegmentMap) -> Vec<SegmentMap> {
    let holes = |range: &RangeMap| range.state == RangeState::Hole;
    let parts = segment.ranges.split(holes).filter(|part| !part.is_empty());
    let moved = |part: &[RangeMap]| {
        let start = part[0].range.start;
        let mut one = segment.clone();
        one.ranges = part.to_vec();
        for range in &mut one.ranges {
            range.range = range.range.start - start..range.range.end - start;
        }
        one.bytes = one.ranges.last().map_or(0, |range| range.range.end);
        one
    };
    parts.map(moved).collect()
}

fn block(range: &RangeMap, start: u64) -> Value {
    let state = match range.state {
        RangeState::Used => "active_allocated",
        RangeState::Pending => "active_pending_free",
        _ => "inactive",
    };
    dict_of([
        ("address", int(start + range.range.start)),
        ("size", int(range.bytes())),
        ("requested_size", int(range.bytes())),
        ("state", Value::String(state.into())),
        ("frames", Value::List(Vec::new())),
    ])
}

fn int(number: u64) -> Value {
    i64::try_from(number).map_or_else(|_| Value::Int(number.into()), Value::I64)
}

fn dict_of<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let fields = fields.map(|(name, value)| (HashableValue::String(name.into()), value));
    Value::Dict(fields.into_iter().collect())
}
