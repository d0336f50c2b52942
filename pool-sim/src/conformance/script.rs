//! Scripts: the settings of a pool and the operations on it, as text that people read and edit.

use pool_core::limits::CachedLimit;
use pool_core::{BucketPolicy, KIB, ZeroPolicy};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::fmt;
use std::str::FromStr;

/// A pool's settings and a list of operations on it.
///
/// Its text has one setting or step per line; `#` begins a comment. Every list of steps is a valid
/// script: a step that names buffer number `n` means number `n` modulo the number of live buffers,
/// and does nothing when there are none. So any step can be left out.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; pub use pool_sim::conformance; }
/// use bucketpool::conformance::Script;
///
/// let text = "policy exact\nreserved 5000\nallocate 4000\nfree 0\nclear\n";
/// let script: Script = text.parse()?;
/// assert_eq!(script.steps.len(), 3);
/// assert_eq!(script.to_string(), text);
/// # Ok::<(), bucketpool::conformance::BadScript>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Script {
    /// The pool's settings.
    pub settings: Settings,
    /// The operations, in order.
    pub steps: Vec<Step>,
}

/// The settings of a script's pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The size classes; a pool with an arena has its own.
    pub policy: BucketPolicy,
    /// When memory is zeroed.
    pub zero: ZeroPolicy,
    /// The bound on cached bytes.
    pub cached: CachedLimit,
    /// The reserved limit, in bytes.
    pub reserved: Option<u64>,
    /// The bound on cached blocks of one class.
    pub bucket: Option<usize>,
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Allocates this many bytes.
    Allocate(u64),
    /// Allocates zeroed bytes.
    Zeroed(u64),
    /// Drops the live buffer of this number.
    Free(u64),
    /// Overwrites a live buffer.
    Write(u64),
    /// Detaches a live buffer and frees it.
    Detach(u64),
    /// `trim`: gives back at least this many bytes.
    Trim(u64),
    /// `shrink_to`: gives back until at most this many bytes are reserved.
    Shrink(u64),
    /// `clear`.
    Clear,
    /// The next steps are done by the thread of this number.
    Thread(u64),
    /// `tick`, this many seconds after the last.
    Tick(u64),
    /// `set_reserved_limit`, in bytes.
    Limit(u64),
    /// The device's call of this number fails once, after that many more of its kind.
    Fail(u64, u64),
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            policy: BucketPolicy::PowerOfTwo,
            zero: ZeroPolicy::Never,
            cached: CachedLimit::Unlimited,
            reserved: None,
            bucket: None,
        }
    }
}

/// Returns the policy of this number; numbers beyond the last one begin again.
fn policy_of(number: u8) -> BucketPolicy {
    let mut policies = BucketPolicy::examples();
    policies.swap_remove(usize::from(number) % policies.len())
}

/// A size from 16 random bits: small, up to 4 KiB, up to 32 KiB, or within 1 of a power of two.
fn size_of(bits: u16) -> u64 {
    let low = u64::from(bits & 0x3FFF);
    match bits >> 14 {
        0 => low % 256,
        1 => low % (4 * KIB + 1),
        2 => low * 2,
        _ => ((1 << (low % 16)) + low / 16 % 3).saturating_sub(1),
    }
}

impl Script {
    /// Threads that take turns in random scripts.
    pub(super) const THREADS: u64 = 4;

    /// The script of any bytes: five for the settings, three for each step. Missing bytes are
    /// zeroes, so no input is refused.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Self {
        let (head, rest) = bytes.split_at(bytes.len().min(5));
        let head = |at: usize| head.get(at).copied().unwrap_or(0);
        let settings = Settings {
            policy: policy_of(head(0)),
            zero: match head(1) {
                0..128 => ZeroPolicy::Never,
                128..192 => ZeroPolicy::OnReturn,
                192.. => ZeroPolicy::OnAllocate,
            },
            cached: match head(2) {
                0..128 => CachedLimit::Unlimited,
                bits => CachedLimit::Bytes(u64::from(bits - 128) * KIB),
            },
            reserved: (head(3) >= 128).then(|| u64::from(head(3) - 96) * 2 * KIB),
            bucket: (head(4) >= 192).then(|| usize::from(head(4) - 192) / 8),
        };
        Self { settings, steps: rest.chunks(3).map(Step::decode).collect() }
    }

    /// A random script of this many steps, the same for the same seed.
    #[must_use]
    pub fn random(seed: u64, steps: usize) -> Self {
        let mut bytes = vec![0; 5 + 3 * steps];
        StdRng::seed_from_u64(seed).fill(&mut bytes[..]);
        Self::decode(&bytes)
    }
}

impl Step {
    fn decode(bytes: &[u8]) -> Self {
        let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
        let bits = u16::from_le_bytes([byte(1), byte(2)]);
        let (number, size) = (u64::from(bits), size_of(bits));
        match byte(0) {
            0..104 => Self::Allocate(size),
            104..120 => Self::Zeroed(size),
            120..196 => Self::Free(number),
            196..208 => Self::Thread(number % Script::THREADS),
            208..216 => Self::Write(number),
            216..220 => Self::Detach(number),
            220..228 => Self::Trim(size),
            228..234 => Self::Shrink(number * 4),
            234..238 => Self::Clear,
            238..243 => Self::Tick(number % 30),
            243..248 => Self::Limit(number * 4),
            248.. => Self::Fail(number % 8, number / 8 % 4),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allocate(bytes) => write!(f, "allocate {bytes}"),
            Self::Zeroed(bytes) => write!(f, "zeroed {bytes}"),
            Self::Free(number) => write!(f, "free {number}"),
            Self::Write(number) => write!(f, "write {number}"),
            Self::Detach(number) => write!(f, "detach {number}"),
            Self::Trim(bytes) => write!(f, "trim {bytes}"),
            Self::Shrink(bytes) => write!(f, "shrink {bytes}"),
            Self::Clear => write!(f, "clear"),
            Self::Thread(number) => write!(f, "thread {number}"),
            Self::Tick(seconds) => write!(f, "tick {seconds}"),
            Self::Limit(bytes) => write!(f, "limit {bytes}"),
            Self::Fail(call, skip) => write!(f, "fail {call} {skip}"),
        }
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings { policy, zero, cached, reserved, bucket } = &self.settings;
        writeln!(f, "policy {policy}")?;
        match zero {
            ZeroPolicy::OnReturn => writeln!(f, "zero return")?,
            ZeroPolicy::OnAllocate => writeln!(f, "zero allocate")?,
            _ => {}
        }
        if let CachedLimit::Bytes(bytes) = cached {
            writeln!(f, "cached {bytes}")?;
        }
        if let Some(bytes) = reserved {
            writeln!(f, "reserved {bytes}")?;
        }
        if let Some(blocks) = bucket {
            writeln!(f, "bucket {blocks}")?;
        }
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))
    }
}

/// A line that is no setting and no step of a script.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: `{text}` is no line of a script; expected for example {expected}")]
pub struct BadScript {
    /// The number of the line, from 1.
    pub line: usize,
    /// The line.
    pub text: String,
    /// Lines that could be there.
    pub expected: &'static str,
}

const EXPECTED: &str = "`policy exact`, `reserved 4096`, `allocate 100`, `free 0`, `trim 4096` or \
                        `clear`";

impl FromStr for Script {
    type Err = BadScript;

    fn from_str(text: &str) -> Result<Self, BadScript> {
        let mut script = Self::default();
        for (at, text) in text.lines().enumerate() {
            let line = text.split('#').next().unwrap_or_default();
            let words: Vec<&str> = line.split_whitespace().collect();
            if !words.is_empty() && script.take(&words).is_none() {
                let text = text.trim().to_owned();
                return Err(BadScript { line: at + 1, text, expected: EXPECTED });
            }
        }
        Ok(script)
    }
}

impl Script {
    /// Takes one line; `None` if it means nothing.
    fn take(&mut self, words: &[&str]) -> Option<()> {
        let settings = &mut self.settings;
        match *words {
            ["policy", text] => settings.policy = text.parse().ok()?,
            ["zero", "return"] => settings.zero = ZeroPolicy::OnReturn,
            ["zero", "allocate"] => settings.zero = ZeroPolicy::OnAllocate,
            ["cached", bytes] => settings.cached = CachedLimit::Bytes(bytes.parse().ok()?),
            ["reserved", bytes] => settings.reserved = Some(bytes.parse().ok()?),
            ["bucket", blocks] => settings.bucket = Some(blocks.parse().ok()?),
            ["clear"] => self.steps.push(Step::Clear),
            ["fail", call, skip] => {
                self.steps.push(Step::Fail(call.parse().ok()?, skip.parse().ok()?));
            }
            [name, number] => self.steps.push(Step::of(name, number.parse().ok()?)?),
            _ => return None,
        }
        Some(())
    }
}

impl Step {
    /// The step of this name with one number.
    fn of(name: &str, number: u64) -> Option<Self> {
        Some(match name {
            "allocate" => Self::Allocate(number),
            "zeroed" => Self::Zeroed(number),
            "free" => Self::Free(number),
            "write" => Self::Write(number),
            "detach" => Self::Detach(number),
            "trim" => Self::Trim(number),
            "shrink" => Self::Shrink(number),
            "thread" => Self::Thread(number),
            "tick" => Self::Tick(number),
            "limit" => Self::Limit(number),
            _ => return None,
        })
    }
}
