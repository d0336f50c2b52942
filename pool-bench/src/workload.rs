//! Workloads of the programs that the pool is built for: sizes and lifetimes of buffers.
//!
//! Every byte is written. The module has the data, and one step of each workload.

use crate::counted::Asked;
use bucketpool::PoolStats;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// A source of buffers for a workload.
pub trait Source {
    /// A buffer.
    type Buffer;
    /// Allocates a buffer of `bytes` bytes and writes each of them.
    ///
    /// The bytes are set to `byte` where the CPU can read them again. `None` if there is no memory.
    fn filled(&self, bytes: usize, byte: u8) -> Option<Self::Buffer>;
    /// Frees a buffer. Returns the value to check: one of its bytes, or 1 if it was freed.
    fn give_back(&self, buffer: Self::Buffer) -> u64;
    /// Waits for the device at the end of a step.
    fn finish(&self) {}
    /// Returns the counts of the device's calls.
    fn asked(&self) -> Asked;
    /// Returns the statistics of the pool; without a pool, each request is a miss.
    fn stats(&self) -> PoolStats {
        let mut stats = PoolStats::default();
        stats.misses = self.asked().allocations;
        stats.allocations = stats.misses;
        stats
    }
}

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Workload {
    /// Tiles of 1.5 to 2.5 million points; points, normals, 12 features and 20
    /// neighbours of each, alive together.
    Tiles,
    /// A batch through twelve layers of an embedding model, its seven sizes scaled by
    /// how long the texts are.
    Embedding,
    /// `(a + b) * (a - b)` over arrays of 4 MiB: three temporaries at once.
    Equal,
    /// Small tensors of 64 B to 16 KiB, 256 alive at a time.
    SmallTensors,
    /// 1 MiB again and again, 20 alive at a time.
    Thousand,
    /// An iteration of a Monte Carlo simulation, ten arrays, the paths 8 MB.
    MonteCarlo,
}

/// The work that a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Buffers allocated and freed.
    pub allocations: u64,
    /// Sum of the values that the freed buffers returned: the result that is checked.
    pub checksum: u64,
}

impl Workload {
    /// Returns the name on the command line.
    #[must_use]
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Returns a short description.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Tiles => "point-cloud tiles, 18 to 200 MB",
            Self::Embedding => "embedding batches, 4 KiB to 16 MiB",
            Self::Equal => "three temporaries of 4 MiB",
            Self::SmallTensors => "small tensors, 64 B to 16 KiB",
            Self::Thousand => "1 MiB again and again",
            Self::MonteCarlo => "Monte Carlo, 0.4 to 8 MB",
        }
    }

    /// Returns the number of steps of a full run; each step is one sample.
    #[must_use]
    pub fn steps(self) -> u64 {
        match self {
            Self::Tiles => 45,
            Self::Embedding | Self::MonteCarlo | Self::Equal | Self::Thousand => 120,
            Self::SmallTensors => 200,
        }
    }

    /// Runs one step. The same number gives the same sizes on every source; `small` shrinks them.
    ///
    /// Returns `None` if the source had no memory.
    pub fn step<S: Source>(self, source: &S, number: u64, small: bool) -> Option<Done> {
        let mut program = Program::new(source, number);
        let part = if small { 64 } else { 1 };
        match self {
            Self::Tiles => {
                let points = program.between(1_500_000, 2_500_000) / part;
                for bytes_per_point in [12, 12, 48, 80] {
                    program.take(points * bytes_per_point)?;
                }
            }
            Self::Embedding => {
                let texts = 1 << program.between(0, 3);
                let mut of_batch = |most: usize| {
                    let share = program.between(50, 100);
                    program.take((most / 8 * texts * share / 100 / part).max(1))
                };
                [4 * KIB, 16 * KIB, 64 * KIB, MIB].into_iter().try_for_each(&mut of_batch)?;
                for _layer in 0..12 {
                    of_batch(256 * KIB)?;
                    of_batch(4 * MIB)?;
                    of_batch(256 * KIB)?;
                }
                of_batch(16 * MIB)?;
            }
            Self::Equal => {
                for _expression in 0..4 {
                    program.keep_at_most(0);
                    for _temporary in 0..3 {
                        program.take(4 * MIB / part)?;
                    }
                }
            }
            Self::SmallTensors => {
                for _ in 0..2000 / part {
                    let bytes = 64 << program.between(0, 8);
                    let bytes = program.between(bytes / 2 + 1, bytes);
                    program.take(bytes)?;
                    program.keep_at_most(256);
                }
            }
            Self::Thousand => {
                for _ in 0..100 / part.min(4) {
                    program.take(MIB / part)?;
                    program.keep_at_most(20);
                }
            }
            Self::MonteCarlo => {
                program.take(8_000_000 / part)?;
                for _ in 0..9 {
                    let bytes = program.between(400_000, 800_000) / part;
                    program.take(bytes)?;
                }
            }
        }
        Some(program.end())
    }
}

/// A program that holds buffers, oldest first.
struct Program<'s, S: Source> {
    source: &'s S,
    live: VecDeque<S::Buffer>,
    random: u64,
    done: Done,
}

impl<'s, S: Source> Program<'s, S> {
    fn new(source: &'s S, number: u64) -> Self {
        let random = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        Self { source, live: VecDeque::new(), random, done: Done { allocations: 0, checksum: 0 } }
    }

    /// Returns a pseudo-random number from `low` to `high` (Steele, Lea and Flood's `SplitMix`).
    fn between(&mut self, low: usize, high: usize) -> usize {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let span = (high - low + 1) as u64;
        low + usize::try_from((z ^ (z >> 31)) % span).unwrap_or(0)
    }

    fn take(&mut self, bytes: usize) -> Option<()> {
        let byte = (self.done.allocations % 251) as u8 + 1;
        self.live.push_back(self.source.filled(bytes, byte)?);
        self.done.allocations += 1;
        Some(())
    }

    fn keep_at_most(&mut self, count: usize) {
        while self.live.len() > count
            && let Some(oldest) = self.live.pop_front()
        {
            self.done.checksum += self.source.give_back(oldest);
        }
    }

    fn end(mut self) -> Done {
        self.keep_at_most(0);
        self.source.finish();
        self.done
    }
}
