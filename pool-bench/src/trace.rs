//! Reads `.ptrace.csv` traces, plain or compressed with zstd. The format is told in
//! `traces/README.md`.

use crate::input::BadInput;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

/// Largest size in a trace, in bytes: what a process can address today.
const SIZE_LIMIT: u64 = 1 << 47;
const COLUMNS: &str = "op,id,size,lane,dt_ns";
/// Lanes are dense ids of threads and streams; nobody has so many.
const LANES_MOST: u32 = 1 << 16;

/// A trace, decoded and checked.
#[derive(Debug, Default)]
pub struct Trace {
    /// The file's name up to its first dot.
    pub name: String,
    /// What is done, in order.
    pub steps: Vec<Step>,
    /// Operations in the file, those without a step among them.
    pub ops: u64,
    /// How many steps allocate.
    pub allocations: u64,
    /// The most requested bytes alive at once.
    pub live_peak_bytes: u64,
    /// Buffers that are alive at once at most.
    pub slots: usize,
    /// The largest request, and its line.
    pub largest: (u64, u64),
    /// Lanes: threads, or streams.
    pub lanes: usize,
}

/// One step of a replay. Buffers live in numbered slots, which are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Fill a slot with a buffer of so many bytes.
    Allocate {
        /// The slot.
        slot: u32,
        /// Bytes requested.
        bytes: u64,
        /// By which lane.
        lane: u32,
    },
    /// Use what a slot holds.
    Use {
        /// The slot.
        slot: u32,
        /// On which lane.
        lane: u32,
    },
    /// Empty a slot.
    Free {
        /// The slot.
        slot: u32,
        /// By which lane.
        lane: u32,
    },
}

/// Reads a trace.
///
/// # Errors
///
/// A file that cannot be read, or a line that breaks the format; file and line are named.
pub fn read(path: &Path) -> Result<Trace, BadInput> {
    let file = path.display();
    let unreadable = |error: &io::Error| {
        BadInput::new(format!("{file}: {error}"), "a readable .ptrace.csv or .ptrace.csv.zst file")
    };
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = name.unwrap_or_default();
    let source = BufReader::new(File::open(path).map_err(|error| unreadable(&error))?);
    let lines: Box<dyn BufRead> = if path.extension().is_some_and(|e| e == "zst") {
        let decoder = zstd::stream::read::Decoder::with_buffer(source);
        Box::new(BufReader::new(decoder.map_err(|error| unreadable(&error))?))
    } else {
        Box::new(source)
    };
    let mut rows = Vec::new();
    for (at, line) in (1..).zip(lines.lines()) {
        let line = line.map_err(|error| {
            let what = format!("{file}, line {at}: {error}");
            BadInput::new(what, "text, compressed with zstd if the name ends in .zst")
        })?;
        let row = parse(line.trim_end(), rows.is_empty());
        let row = row.map_err(|bad| bad.in_file(format!("{file}, line {at}")))?;
        rows.extend(row.map(|row| (at, row)));
    }
    let mut replay = Reader::new(&rows);
    for (at, row) in &rows {
        replay.row(*at, row).map_err(|bad| bad.in_file(format!("{file}, line {at}")))?;
    }
    let mut trace = replay.trace;
    if trace.allocations == 0 {
        return Err(BadInput::new(
            format!("{file}: the trace is empty"),
            "at least one allocation",
        ));
    }
    name.split('.').next().unwrap_or_default().clone_into(&mut trace.name);
    trace.ops = rows.len() as u64;
    Ok(trace)
}

/// An operation, as it stands in a line.
#[derive(Clone, Copy)]
struct TraceRow {
    lane: u32,
    op: Op,
}

#[derive(Clone, Copy)]
enum Op {
    Allocate {
        id: u64,
        bytes: u64,
    },
    FreeRequested {
        id: u64,
    },
    FreeCompleted {
        id: u64,
    },
    Use {
        id: u64,
    },
    /// Events, and what the recorded allocator did: no steps of ours.
    Other,
}

fn parse(line: &str, first: bool) -> Result<Option<TraceRow>, BadInput> {
    if let Some(header) = line.strip_prefix('#') {
        return match header.strip_prefix("ptrace,") {
            None | Some("1") => Ok(None),
            Some(version) => Err(BadInput::new(format!("version `{version}`"), "version 1")),
        };
    }
    if first && line == COLUMNS {
        return Ok(None);
    }
    if first && line.trim_start_matches('\u{feff}').starts_with(['o', '#']) {
        let what = format!("`{}` before the first operation", start_of(line));
        return Err(BadInput::new(what, format!("the line `#ptrace,1`, then `{COLUMNS}`")));
    }
    let fields: Vec<&str> = line.split(',').collect();
    let [op, id, size, lane, dt] = fields[..] else {
        let what = format!("{} fields in `{}`", fields.len(), start_of(line));
        return Err(BadInput::new(what, format!("5: {COLUMNS}")));
    };
    if !dt.is_empty() {
        number("dt_ns", dt)?;
    }
    let lane = if lane.is_empty() { 0 } else { number("lane", lane)? };
    let lane = u32::try_from(lane).ok().filter(|lane| *lane < LANES_MOST);
    let lane = lane.ok_or_else(|| BadInput::new("lane beyond 65535", "dense ids of lanes"))?;
    let op = match op {
        "a" => Op::Allocate { id: number("id", id)?, bytes: size_of(size)? },
        "f" => Op::FreeRequested { id: number("id", id)? },
        "d" => Op::FreeCompleted { id: number("id", id)? },
        "r" => Op::Use { id: number("id", id)? },
        "x" | "S" | "s" => size_of(size).map(|_| Op::Other)?,
        "e" => Op::Other,
        _ => {
            let what = format!("op `{}`", start_of(op));
            return Err(BadInput::new(what, "one of a, f, d, r, e, x, S, s"));
        }
    };
    Ok(Some(TraceRow { lane, op }))
}

fn number(name: &str, text: &str) -> Result<u64, BadInput> {
    let bad = |_| BadInput::new(format!("{name} `{}`", start_of(text)), "a number");
    text.parse().map_err(bad)
}

fn size_of(text: &str) -> Result<u64, BadInput> {
    match number("size", text)? {
        bytes if bytes > SIZE_LIMIT => {
            Err(BadInput::new(format!("size {bytes}"), "at most 2^47 bytes"))
        }
        bytes => Ok(bytes),
    }
}

/// Enough of a text to recognise it.
fn start_of(text: &str) -> String {
    text.chars().take(40).collect()
}

/// What became of an id.
enum Block {
    Live {
        slot: u32,
        bytes: u64,
    },
    /// Freed, but in use on another stream until its free completes.
    Pending {
        slot: u32,
    },
    Gone,
}

struct Reader {
    trace: Trace,
    blocks: HashMap<u64, Block>,
    /// Ids whose free completes in a line of its own.
    completed_later: HashSet<u64>,
    vacant: Vec<u32>,
    live_bytes: u64,
}

impl Reader {
    fn new(rows: &[(u64, TraceRow)]) -> Self {
        let completed = rows.iter().filter_map(|(_, row)| match &row.op {
            Op::FreeCompleted { id } => Some(*id),
            _ => None,
        });
        Self {
            trace: Trace::default(),
            blocks: HashMap::new(),
            completed_later: completed.collect(),
            vacant: Vec::new(),
            live_bytes: 0,
        }
    }

    fn row(&mut self, at: u64, row: &TraceRow) -> Result<(), BadInput> {
        let lane = row.lane;
        self.trace.lanes = self.trace.lanes.max(lane as usize + 1);
        match row.op {
            Op::Allocate { id, bytes } => self.allocate(at, id, bytes, lane),
            Op::FreeRequested { id } => self.free(id, lane),
            Op::FreeCompleted { id } => self.complete(id, lane),
            Op::Use { id } => {
                // A use of what is gone says nothing.
                if let Some(Block::Live { slot, .. }) = self.blocks.get(&id) {
                    self.trace.steps.push(Step::Use { slot: *slot, lane });
                }
                Ok(())
            }
            Op::Other => Ok(()),
        }
    }

    fn allocate(&mut self, at: u64, id: u64, bytes: u64, lane: u32) -> Result<(), BadInput> {
        let trace = &mut self.trace;
        let slot = self.vacant.pop().unwrap_or_else(|| {
            trace.slots += 1;
            u32::try_from(trace.slots - 1).unwrap_or(u32::MAX)
        });
        if self.blocks.insert(id, Block::Live { slot, bytes }).is_some() {
            return Err(BadInput::new(format!("id {id} is used already"), "a new id"));
        }
        self.live_bytes = self.live_bytes.saturating_add(bytes);
        trace.live_peak_bytes = trace.live_peak_bytes.max(self.live_bytes);
        if bytes > trace.largest.0 || trace.allocations == 0 {
            trace.largest = (bytes, at);
        }
        trace.allocations += 1;
        trace.steps.push(Step::Allocate { slot, bytes, lane });
        Ok(())
    }

    fn free(&mut self, id: u64, lane: u32) -> Result<(), BadInput> {
        let Some(Block::Live { slot, bytes }) = self.blocks.get(&id) else {
            return Err(self.not("free", id, "the id of a live block"));
        };
        let slot = *slot;
        self.live_bytes = self.live_bytes.saturating_sub(*bytes);
        if self.completed_later.contains(&id) {
            self.blocks.insert(id, Block::Pending { slot });
        } else {
            self.gone(id, slot, lane);
        }
        Ok(())
    }

    fn complete(&mut self, id: u64, lane: u32) -> Result<(), BadInput> {
        let Some(Block::Pending { slot }) = self.blocks.get(&id) else {
            return Err(self.not(
                "completed free",
                id,
                "the id of a block whose free was requested",
            ));
        };
        self.gone(id, *slot, lane);
        Ok(())
    }

    fn gone(&mut self, id: u64, slot: u32, lane: u32) {
        self.blocks.insert(id, Block::Gone);
        self.vacant.push(slot);
        self.trace.steps.push(Step::Free { slot, lane });
    }

    fn not(&self, what: &str, id: u64, expected: &str) -> BadInput {
        let state = match self.blocks.get(&id) {
            None => "unknown",
            Some(Block::Live { .. }) => "live",
            Some(Block::Pending { .. } | Block::Gone) => "freed already",
        };
        BadInput::new(format!("{what} of id {id}, which is {state}"), expected)
    }
}
