//! The questions of the bench, and the contenders that answer them.

use bucketpool::cuda::CudaDevice;
use bucketpool::cuda::cudarc::driver::DriverError;
use serde::Deserialize;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::Instant;
use std::{fmt, fs, thread};

/// A question to every contender, in the words of `peers/gpu/peer.hpp`.
#[derive(Clone, Debug)]
pub(super) enum Question {
    Pair {
        bytes: u64,
        threads: usize,
        pairs: u64,
    },
    Many {
        count: u64,
        bytes: u64,
        rounds: u64,
    },
    /// A pair while a second stream works; with `recorded`, a use of the block there is recorded.
    Record {
        bytes: u64,
        pairs: u64,
        recorded: bool,
    },
    /// A pair, followed by a wait for the stream.
    Synced {
        bytes: u64,
        pairs: u64,
    },
    Trace {
        file: PathBuf,
    },
    Reset,
}

impl Question {
    /// Returns the bytes of a block; 0 if the sizes differ.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Pair { bytes, .. }
            | Self::Many { bytes, .. }
            | Self::Record { bytes, .. }
            | Self::Synced { bytes, .. } => *bytes,
            Self::Trace { .. } | Self::Reset => 0,
        }
    }

    /// Returns the question with enough operations for an answer of about `wanted` nanoseconds.
    ///
    /// `one` is the measured time of one operation.
    pub(super) fn lasting(&self, one: f64, wanted: f64) -> Self {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
        let times = |one: f64| (wanted / one.max(1.0)).clamp(1.0, 1e6) as u64;
        match self.clone() {
            Self::Pair { bytes, threads, .. } => Self::Pair { bytes, threads, pairs: times(one) },
            Self::Many { count, bytes, .. } => {
                Self::Many { count, bytes, rounds: times(one * 2.0 * count as f64) }
            }
            Self::Record { bytes, recorded, .. } => {
                Self::Record { bytes, pairs: times(one), recorded }
            }
            Self::Synced { bytes, .. } => Self::Synced { bytes, pairs: times(one) },
            other => other,
        }
    }

    /// Returns the line that a peer's process reads.
    pub(super) fn line(&self) -> String {
        match self {
            Self::Pair { bytes, threads, pairs } => format!("pair {bytes} {threads} {pairs}"),
            Self::Many { count, bytes, rounds } => format!("many {count} {bytes} {rounds}"),
            Self::Record { bytes, pairs, recorded } => {
                format!("record {bytes} {pairs} {}", u8::from(*recorded))
            }
            Self::Synced { bytes, pairs } => format!("synced {bytes} {pairs}"),
            Self::Trace { file } => format!("trace {}", file.display()),
            Self::Reset => "reset".to_owned(),
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Answer {
    pub(super) ns: f64,
    pub(super) reserved_peak_bytes: u64,
}

/// The reason why there is no answer.
#[derive(Clone, Debug)]
pub(super) struct Refused(pub(super) String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<DriverError> for Refused {
    fn from(error: DriverError) -> Self {
        Self(format!("{:?}", error.0))
    }
}

impl From<bucketpool::DeviceError> for Refused {
    fn from(error: bucketpool::DeviceError) -> Self {
        Self(error.to_string())
    }
}

pub(super) trait GpuContender {
    fn ask(&mut self, question: &Question) -> Result<Answer, Refused>;
}

/// The contenders and their names.
pub(super) type Contenders = Vec<(String, Box<dyn GpuContender>)>;

/// An allocator in this process that can answer the questions.
pub(super) trait Allocator: Sync {
    type Block: Send;
    /// Allocates a block for work on the stream with this number.
    fn take(&self, bytes: u64, stream: usize) -> Result<Self::Block, Refused>;
    fn give(&self, block: Self::Block, stream: usize) -> Result<(), Refused>;
    /// Records that the second stream uses the block until the block is freed.
    fn record(&self, block: &Self::Block) -> Result<(), Refused>;
    /// Writes `bytes` bytes of the block on the stream with this number.
    fn write(&self, block: &Self::Block, bytes: u64, stream: usize) -> Result<(), Refused>;
    /// Waits for the first stream.
    fn wait(&self) -> Result<(), Refused>;
    fn device(&self) -> &CudaDevice;
    fn reserved_peak(&self) -> u64;
    /// Gives all cached memory back, and forgets the peak and all else that was learned.
    fn reset(&mut self) -> Result<(), Refused>;
}

impl<A: Allocator> GpuContender for A {
    fn ask(&mut self, question: &Question) -> Result<Answer, Refused> {
        self.device().context().bind_to_thread()?;
        let ns = match question {
            Question::Pair { bytes, threads, pairs } => on_threads(self, *bytes, *threads, *pairs)?,
            Question::Many { count, bytes, rounds } => many(self, *count, *bytes, *rounds)?,
            Question::Record { bytes, pairs, recorded } => record(self, *bytes, *pairs, *recorded)?,
            Question::Synced { bytes, pairs } => synced(self, *bytes, *pairs)?,
            Question::Trace { file } => trace(self, file)?,
            Question::Reset => {
                self.device().context().synchronize()?;
                self.reset()?;
                0.0
            }
        };
        Ok(Answer { ns, reserved_peak_bytes: self.reserved_peak() })
    }
}

/// Measures pairs on several threads. All threads wait for each other before they start.
fn on_threads(
    allocator: &impl Allocator,
    bytes: u64,
    threads: usize,
    pairs: u64,
) -> Result<f64, Refused> {
    let all_are_there = Barrier::new(threads);
    let work = |stream| {
        allocator.device().context().bind_to_thread()?;
        let warm = allocator.take(bytes, stream).and_then(|block| allocator.give(block, stream));
        all_are_there.wait();
        warm?;
        let start = Instant::now();
        for _ in 0..pairs {
            allocator.give(black_box(allocator.take(bytes, stream)?), stream)?;
        }
        Ok(start.elapsed().as_nanos() as f64 / pairs as f64)
    };
    let each: Vec<Result<f64, Refused>> = if threads == 1 {
        vec![work(0)]
    } else {
        thread::scope(|scope| {
            let work = &work;
            let workers: Vec<_> = (0..threads).map(|at| scope.spawn(move || work(at))).collect();
            let gone = |_| Err(Refused("a thread that panicked".into()));
            workers.into_iter().map(|worker| worker.join().unwrap_or_else(gone)).collect()
        })
    };
    // Queued work must not run while the next contender is measured.
    allocator.device().context().synchronize()?;
    let each: Vec<f64> = each.into_iter().collect::<Result<_, _>>()?;
    Ok(each.iter().sum::<f64>() / threads as f64)
}

fn synced(allocator: &impl Allocator, bytes: u64, pairs: u64) -> Result<f64, Refused> {
    let start = Instant::now();
    for _ in 0..pairs {
        allocator.give(black_box(allocator.take(bytes, 0)?), 0)?;
        allocator.wait()?;
    }
    Ok(start.elapsed().as_nanos() as f64 / pairs as f64)
}

fn many(allocator: &impl Allocator, count: u64, bytes: u64, rounds: u64) -> Result<f64, Refused> {
    let start = Instant::now();
    for _ in 0..rounds {
        let blocks: Result<Vec<_>, _> = (0..count).map(|_| allocator.take(bytes, 0)).collect();
        blocks?.into_iter().try_for_each(|block| allocator.give(block, 0))?;
    }
    Ok(start.elapsed().as_nanos() as f64 / (2 * count * rounds) as f64)
}

fn record(
    allocator: &impl Allocator,
    bytes: u64,
    pairs: u64,
    recorded: bool,
) -> Result<f64, Refused> {
    let others = allocator.take(bytes, 1)?;
    allocator.give(allocator.take(bytes, 0)?, 0)?;
    let start = Instant::now();
    for _ in 0..pairs {
        let block = allocator.take(bytes, 0)?;
        allocator.write(&others, 4, 1)?; // gives the second stream work
        if recorded {
            allocator.record(&block)?;
        }
        allocator.give(block, 0)?;
    }
    let ns = start.elapsed().as_nanos() as f64 / pairs as f64;
    allocator.device().context().synchronize()?;
    allocator.give(others, 1)?;
    Ok(ns)
}

fn trace(allocator: &mut impl Allocator, file: &Path) -> Result<f64, Refused> {
    let text = fs::read_to_string(file).map_err(|error| Refused(error.to_string()))?;
    let steps: Vec<(usize, Option<u64>)> = text.lines().filter_map(step).collect();
    let slots = steps.iter().map(|(slot, _)| slot + 1).max().unwrap_or(0);
    let mut live: Vec<Option<_>> = (0..slots).map(|_| None).collect();
    allocator.device().context().synchronize()?;
    allocator.reset()?;
    let mut took = 0;
    for (slot, bytes) in &steps {
        let held = live[*slot].take();
        let start = Instant::now();
        match (bytes, held) {
            (Some(bytes), _) => {
                let block = allocator.take(*bytes, 0)?;
                took += start.elapsed().as_nanos();
                allocator.write(&block, *bytes, 0)?;
                live[*slot] = Some(block);
            }
            (None, Some(block)) => {
                allocator.give(block, 0)?;
                took += start.elapsed().as_nanos();
            }
            (None, None) => {}
        }
    }
    live.into_iter().flatten().try_for_each(|block| allocator.give(block, 0))?;
    allocator.device().context().synchronize()?;
    Ok(took as f64 / steps.len().max(1) as f64)
}

/// Parses `a SLOT BYTES` or `f SLOT`.
fn step(line: &str) -> Option<(usize, Option<u64>)> {
    let mut words = line.split(' ').skip(1);
    let slot = words.next()?.parse().ok()?;
    Some((slot, words.next().and_then(|bytes| bytes.parse().ok())))
}
