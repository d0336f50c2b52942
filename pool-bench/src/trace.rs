//! Traces as a replay uses them: buffers in slots, and the totals needed before a replay starts.

use crate::input::BadInput;
use crate::training;
use pool_trace::{Kind, Log, Operation};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::Path;

/// A decoded and checked trace.
#[derive(Debug, Default)]
pub struct Trace {
    /// File name up to its first dot.
    pub name: String,
    /// Steps in order.
    pub steps: Vec<Step>,
    /// Operations in the file, including those without a step.
    pub ops: u64,
    /// Number of steps that allocate.
    pub allocations: u64,
    /// Peak of the requested bytes that are alive at once.
    pub live_peak_bytes: u64,
    /// Number of the step that reaches this peak first.
    pub live_peak_step: usize,
    /// Peak of the buffers that are alive at once.
    pub slots: usize,
    /// Largest request in bytes, and its line.
    pub largest: (u64, u64),
    /// Number of lanes: threads, or streams.
    pub lanes: usize,
    /// Operations that are missing because the recorder could not keep up with them.
    pub lost: u64,
    /// Whether the end of the log is missing: its program was killed, or the copy is not whole.
    pub is_cut_off: bool,
}

/// One step of a replay. Buffers live in numbered slots, which are reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Fill a slot with a buffer of `bytes` bytes.
    Allocate {
        /// The slot.
        slot: u32,
        /// Bytes requested.
        bytes: u64,
        /// The lane that allocates.
        lane: u32,
    },
    /// Use the buffer in a slot.
    Use {
        /// The slot.
        slot: u32,
        /// The lane that uses it.
        lane: u32,
    },
    /// Empty a slot.
    Free {
        /// The slot.
        slot: u32,
        /// The lane that frees.
        lane: u32,
    },
}

/// Reads a trace: a `.ptrace.csv` file, a log of RMM, or a snapshot of `PyTorch`; or makes up that of
/// a training, for `training:SEED`.
///
/// # Errors
///
/// Fails if the file cannot be read, or if a line breaks the format. The error names file and line.
pub fn read(path: &Path) -> Result<Trace, BadInput> {
    let log = read_log(path)?;
    let mut trace = Trace::of(&log).map_err(|bad| bad.in_file(path.display()))?;
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = name.unwrap_or_default();
    name.split('.').next().unwrap_or_default().clone_into(&mut trace.name);
    Ok(trace)
}

/// Reads the operations of a trace.
///
/// # Errors
///
/// Fails as [`read`] does.
pub fn read_log(path: &Path) -> Result<Log, BadInput> {
    if let Some(seed) = path.to_str().and_then(|path| path.strip_prefix("training:")) {
        let found = || BadInput::new(format!("`training:{seed}`"), "a whole number, `training:1`");
        return Ok(training::log(training::STEPS, seed.parse().map_err(|_| found())?));
    }
    let file = path.display();
    let unreadable = |error: io::Error| {
        BadInput::new(format!("{file}: {error}"), "a readable .ptrace.csv or .ptrace.csv.zst file")
    };
    let source = File::open(path).map_err(unreadable)?;
    if source.metadata().map_err(unreadable)?.is_dir() {
        return Err(unreadable(io::ErrorKind::IsADirectory.into()));
    }
    pool_trace::read(source).map_err(|bad| {
        let found = match bad.line {
            Some(line) => format!("{file}, line {line}: {}", bad.found),
            None => format!("{file}: {}", bad.found),
        };
        BadInput::new(found, bad.expected)
    })
}

impl Trace {
    /// The requests of a training, which are made up ([`training`]).
    #[must_use]
    pub fn of_training(steps: u32, seed: u64) -> Self {
        let mut trace = Self::of(&training::log(steps, seed)).unwrap_or_default();
        "training".clone_into(&mut trace.name);
        trace
    }

    /// Describes which operations of the program are missing from the trace; `None` if none are.
    #[must_use]
    pub fn missing(&self) -> Option<String> {
        let lost = (self.lost > 0).then(|| format!("the recorder lost {} operations", self.lost));
        let cut =
            "the log is cut off, and the last operations of its program are missing".to_owned();
        let cut = self.is_cut_off.then_some(cut);
        let parts: Vec<String> = lost.into_iter().chain(cut).collect();
        (!parts.is_empty()).then(|| format!("{}: {}", self.name, parts.join("; ")))
    }

    /// Converts a log to a trace.
    ///
    /// # Errors
    ///
    /// Fails on a free of an unknown id, on an id that is used twice, or without an allocation.
    pub fn of(log: &Log) -> Result<Self, BadInput> {
        let mut reader = Reader::new(&log.operations);
        for operation in &log.operations {
            let line = operation.line;
            reader.row(operation).map_err(|bad| bad.in_line(line))?;
        }
        let mut trace = reader.trace;
        if trace.allocations == 0 {
            return Err(BadInput::new("the trace is empty", "at least one allocation"));
        }
        (trace.ops, trace.lost) = (log.operations.len() as u64, log.lost);
        trace.is_cut_off = log.is_cut_off;
        Ok(trace)
    }
}

/// The state of an id.
enum Block {
    Live {
        slot: u32,
        bytes: u64,
    },
    /// Freed, but used on another stream until its free completes.
    Pending {
        slot: u32,
    },
    Freed,
}

struct Reader {
    trace: Trace,
    blocks: HashMap<u64, Block>,
    /// Ids whose free completes in a separate line.
    completed_later: HashSet<u64>,
    vacant: Vec<u32>,
    live_bytes: u64,
}

impl Reader {
    fn new(operations: &[Operation]) -> Self {
        let completed = operations.iter().filter(|one| one.kind == Kind::FreeCompleted);
        let completed = completed.map(|one| one.id);
        Self {
            trace: Trace::default(),
            blocks: HashMap::new(),
            completed_later: completed.collect(),
            vacant: Vec::new(),
            live_bytes: 0,
        }
    }

    fn row(&mut self, operation: &Operation) -> Result<(), BadInput> {
        let Operation { kind, id, bytes, lane, line, .. } = *operation;
        self.trace.lanes = self.trace.lanes.max(lane as usize + 1);
        match kind {
            Kind::Allocate => self.allocate(line, id, bytes, lane),
            Kind::Free => self.free(id, lane),
            Kind::FreeCompleted => self.complete(id, lane),
            Kind::Use => {
                // A use of a freed block is ignored.
                if let Some(Block::Live { slot, .. }) = self.blocks.get(&id) {
                    self.trace.steps.push(Step::Use { slot: *slot, lane });
                }
                Ok(())
            }
            _ => Ok(()),
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
        if self.live_bytes > trace.live_peak_bytes {
            (trace.live_peak_bytes, trace.live_peak_step) = (self.live_bytes, trace.steps.len());
        }
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
            self.end(id, slot, lane);
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
        self.end(id, *slot, lane);
        Ok(())
    }

    fn end(&mut self, id: u64, slot: u32, lane: u32) {
        self.blocks.insert(id, Block::Freed);
        self.vacant.push(slot);
        self.trace.steps.push(Step::Free { slot, lane });
    }

    fn not(&self, what: &str, id: u64, expected: &str) -> BadInput {
        let state = match self.blocks.get(&id) {
            None => "unknown",
            Some(Block::Live { .. }) => "live",
            Some(Block::Pending { .. } | Block::Freed) => "freed already",
        };
        BadInput::new(format!("{what} of id {id}, which is {state}"), expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_live_peak_of_a_training_is_nine_and_a_half_gib_within_a_tenth() {
        for seed in 1..=3 {
            let peak = Trace::of_training(training::STEPS, seed).live_peak_bytes as f64
                / (1_u64 << 30) as f64;
            assert!((8.55..10.45).contains(&peak), "seed {seed}: {peak} GiB");
        }
    }
}
