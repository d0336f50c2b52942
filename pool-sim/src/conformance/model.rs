//! A naive model of a pool, and the comparison of a pool with it after each step of a script.
//!
//! The model knows the live buffers, what bytes each holds, and which blocks were cached before the
//! step. From that it predicts the figures, each hit, and which refusals are legal.

use super::script::{Script, Step};
use pool_core::check::TestThreads;
use pool_core::limits::CachedLimit;
use pool_core::port::Limit;
use pool_core::{
    AllocError, BucketPolicy, BucketPool, PoolStats, PooledBuffer, Transfer, Why, ZeroPolicy,
};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// How the model looks at the device of an allocator, and lets its calls fail.
pub(super) struct DeviceHooks<A> {
    /// Returns the bytes that the device has handed out.
    pub(super) held: fn(&A) -> u64,
    /// Lets the call of this number, modulo the number of calls, fail once, after that many more
    /// of its kind.
    pub(super) fail: fn(&A, u64, u64),
    /// Returns how many calls are still to fail.
    pub(super) pending: fn(&A) -> u64,
}

/// A pool that a script runs over, and what the model must know of it beforehand.
pub(super) struct UnderTest<'s, A: Transfer> {
    pub(super) pool: BucketPool<A>,
    pub(super) has_arena: bool,
    pub(super) device: Option<&'s DeviceHooks<A>>,
}

/// A difference between a pool and the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Violation {
    /// The number of the step that it was seen after, from 1, and the step; `None` at the end.
    step: Option<(usize, Step)>,
    /// The difference.
    what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.step {
            Some((number, step)) => write!(f, "after step {number}, `{step}`: {}", self.what),
            None => write!(f, "at the end: {}", self.what),
        }
    }
}

/// Returns the difference as an error unless the condition holds.
macro_rules! expect {
    ($holds:expr, $($what:tt)+) => {
        if !$holds {
            return Err(format!($($what)+));
        }
    };
}

/// A live buffer and the byte that it is full of.
struct Owned<A: Transfer> {
    buffer: PooledBuffer<A>,
    byte: u8,
}

/// A pool, and what the model knows of it.
struct Run<'s, A: Transfer> {
    pool: BucketPool<A>,
    has_arena: bool,
    device: Option<&'s DeviceHooks<A>>,
    script: &'s Script,
    live: Vec<Owned<A>>,
    /// Sizes of the cached blocks after the last step, and how many each.
    cached: BTreeMap<u64, usize>,
    /// The figures after the last step.
    stats: PoolStats,
    requests: u64,
    refused: u64,
    freed: u64,
    limit: u64,
    /// The most that may be reserved: the limit, or what was reserved when it was lowered.
    ceiling: u64,
    now: u64,
    /// Whether several threads do the steps: then a block in the cache of another one may not be
    /// found.
    has_threads: bool,
    /// Whether a call of the device may fail in this step.
    has_faults: bool,
    /// Bytes that the device did not take back when a call of it failed.
    lost: u64,
    next_byte: u8,
    scratch: Vec<u8>,
}

/// Runs a script over a fresh pool.
pub(super) fn check<A: Transfer>(
    subject: UnderTest<'_, A>,
    script: &Script,
) -> Result<(), Violation> {
    let mut threads = TestThreads::new(usize::try_from(Script::THREADS).unwrap_or(1));
    let mut thread = 0;
    let mut run = Run::new(subject, script);
    for (at, step) in script.steps.iter().enumerate() {
        if let Step::Thread(number) = step {
            thread = usize::try_from(*number).unwrap_or(0);
            run.has_threads = true;
        }
        let done = threads.as_thread(thread, || run.step(*step).and_then(|()| run.compare()));
        done.map_err(|what| Violation { step: Some((at + 1, *step)), what })?;
    }
    run.end().map_err(|what| Violation { step: None, what })
}

impl<'s, A: Transfer> Run<'s, A> {
    /// Whether a freed block may serve at once. Memory of a device that the CPU touches must first
    /// be seen done, so a cached block may not be ready.
    const REUSES_AT_ONCE: bool = !A::MEMORY.cpu_touches || A::MEMORY.free_in_drop;

    fn new(subject: UnderTest<'s, A>, script: &'s Script) -> Self {
        let UnderTest { pool, has_arena, device } = subject;
        let limit = script.settings.reserved.unwrap_or(u64::MAX);
        let stats = pool.stats();
        Self {
            pool,
            has_arena,
            device,
            script,
            live: Vec::new(),
            cached: BTreeMap::new(),
            stats,
            requests: 0,
            refused: 0,
            freed: 0,
            limit,
            ceiling: limit,
            now: 0,
            has_threads: false,
            has_faults: false,
            lost: 0,
            next_byte: 1,
            scratch: Vec::new(),
        }
    }

    fn step(&mut self, step: Step) -> Result<(), String> {
        let pending = self.device.map_or(0, |device| (device.pending)(self.pool.allocator()));
        self.has_faults = pending > 0;
        match step {
            Step::Allocate(bytes) => self.allocate(bytes, false),
            Step::Zeroed(bytes) => self.allocate(bytes, true),
            Step::Free(number) => self.free(number),
            Step::Write(number) => self.overwrite(number),
            Step::Detach(number) => self.detach(number),
            Step::Trim(bytes) => self.trim(bytes),
            Step::Shrink(bytes) => self.shrink(bytes),
            Step::Clear => self.clear(),
            Step::Tick(seconds) => {
                self.now += seconds;
                let given = self.pool.tick(Duration::from_secs(self.now));
                self.given_back(given).map(|_| ())
            }
            Step::Limit(bytes) => {
                let given = self.pool.set_reserved_limit(bytes);
                (self.limit, self.ceiling) = (bytes, bytes.max(self.pool.stats().reserved_bytes));
                self.given_back(given).map(|_| ())
            }
            Step::Thread(_) => Ok(()),
            Step::Fail(call, skip) => {
                if let Some(device) = self.device {
                    (device.fail)(self.pool.allocator(), call, skip);
                }
                Ok(())
            }
        }
    }

    fn allocate(&mut self, bytes: u64, zeroed: bool) -> Result<(), String> {
        self.requests += 1;
        let expected = self.class(bytes);
        let got = match zeroed {
            true => self.pool.allocate_zeroed(bytes),
            false => self.pool.allocate(bytes),
        };
        let buffer = match got {
            Ok(buffer) => buffer,
            Err(error) => return self.refusal(bytes, expected, &error),
        };
        let (size, block) = (buffer.size(), buffer.allocated_size());
        expect!(size == bytes, "a request of {bytes} bytes got {size}");
        expect!(block >= bytes.max(1), "a request of {bytes} bytes got a block of {block}");
        if !self.has_arena && !self.has_faults && Self::REUSES_AT_ONCE {
            // The smallest block that fits may be in another shard.
            let is_any =
                self.has_threads && matches!(self.script.settings.policy, BucketPolicy::Fit { .. });
            let range = if is_any { bytes.max(1)..=2 * expected } else { expected..=expected };
            expect!(range.contains(&block), "{bytes} bytes got a block of {block}, not {range:?}");
            let hits = self.pool.stats().hits - self.stats.hits;
            let cached = self.is_kept(bytes) && self.cached.contains_key(&block);
            let (least, most) = (u64::from(cached && !self.has_threads), u64::from(cached));
            expect!(
                (least..=most).contains(&hits),
                "{hits} hits; blocks of {block} cached: {cached}"
            );
        }
        let mut live = Owned { buffer, byte: self.stamp() };
        if zeroed || self.script.settings.zero != ZeroPolicy::Never {
            self.read(&live.buffer)?;
            let dirty = self.scratch.iter().filter(|byte| **byte != 0).count();
            expect!(dirty == 0, "{dirty} of {bytes} bytes are not zero");
        }
        fill(&mut live, &mut self.scratch)?;
        self.live.push(live);
        Ok(())
    }

    /// Pools of whole blocks refuse only what does not fit beside the live buffers.
    fn refusal(&mut self, bytes: u64, block: u64, error: &AllocError) -> Result<(), String> {
        self.refused += 1;
        let asked = error.figures().requested_bytes;
        expect!(asked == bytes, "the error for {bytes} bytes says {asked}");
        // An arena's free ranges may be too short, but only a limit makes that a refusal.
        expect!(
            self.has_faults || self.limit < u64::MAX,
            "refused without a limit and without a fault of the device: {error}"
        );
        if !self.has_arena && !self.has_faults {
            let live = self.live_bytes() + self.lost;
            expect!(
                error.why() == Why::Limit(Limit::Reserved)
                    && live.saturating_add(block) > self.limit,
                "refused with {live} bytes live, a block of {block}, a limit of {}: {error}",
                self.limit
            );
        }
        Ok(())
    }

    fn free(&mut self, number: u64) -> Result<(), String> {
        let Some(live) = self.take(number) else { return Ok(()) };
        self.verify(&live)?;
        drop(live);
        self.freed += 1;
        Ok(())
    }

    fn overwrite(&mut self, number: u64) -> Result<(), String> {
        let Some(mut live) = self.take(number) else { return Ok(()) };
        self.verify(&live)?;
        live.byte = self.stamp();
        fill(&mut live, &mut self.scratch)?;
        self.live.push(live);
        Ok(())
    }

    fn detach(&mut self, number: u64) -> Result<(), String> {
        let Some(live) = self.take(number) else { return Ok(()) };
        self.verify(&live)?;
        self.freed += 1;
        match live.buffer.detach().free() {
            Err(error) if !self.has_faults => Err(format!("a detached block: {error}")),
            _ => Ok(()),
        }
    }

    fn trim(&mut self, bytes: u64) -> Result<(), String> {
        let cached = self.pool.stats().cached_bytes;
        let given = self.given_back(self.pool.trim(bytes))?;
        if !self.has_arena && !self.has_faults {
            expect!(given >= bytes.min(cached), "trim gave {given} of {cached} cached bytes");
        }
        Ok(())
    }

    fn shrink(&mut self, bytes: u64) -> Result<(), String> {
        self.given_back(self.pool.shrink_to(bytes))?;
        if !self.has_arena && !self.has_faults {
            let (reserved, live) =
                (self.pool.stats().reserved_bytes, self.live_bytes() + self.lost);
            expect!(reserved <= bytes.max(live), "{reserved} stay, {live} of them live or lost");
        }
        Ok(())
    }

    fn clear(&mut self) -> Result<(), String> {
        self.given_back(self.pool.clear())?;
        if !self.has_faults && (!self.has_arena || self.live.is_empty()) {
            let (reserved, live) =
                (self.pool.stats().reserved_bytes, self.live_bytes() + self.lost);
            expect!(reserved == live, "{reserved} stay, {live} of them live or lost");
        }
        Ok(())
    }

    /// The bytes that a call gave back; an error is legal only of a device that fails.
    fn given_back(&self, given: Result<u64, AllocError>) -> Result<u64, String> {
        match given {
            Err(error) if self.has_faults => Ok(error.figures().given_back_bytes),
            Err(error) => Err(error.to_string()),
            Ok(bytes) => Ok(bytes),
        }
    }

    /// Compares all figures.
    fn compare(&mut self) -> Result<(), String> {
        self.check_inside();
        let s = self.pool.stats();
        let requested: u64 = self.live.iter().map(|live| live.buffer.size()).sum();
        let live = self.live_bytes();
        let pairs = [
            ("allocations", s.allocations, self.requests),
            ("failures", s.failures, self.refused),
            ("deallocations", s.deallocations, self.freed),
            ("outcomes", s.hits + s.misses + s.bypasses + s.failures, self.requests),
            ("requested bytes", s.requested_bytes, requested),
            ("allocated bytes", s.allocated_bytes, live),
            (
                "reserved bytes",
                s.reserved_bytes,
                live + s.cached_bytes + s.private_bytes + s.lost_bytes,
            ),
        ];
        for (name, is, expected) in pairs {
            expect!(is == expected, "{name}: {is}, expected {expected}");
        }
        if let Some(device) = self.device {
            let held = (device.held)(self.pool.allocator());
            expect!(s.reserved_bytes == held, "{} reserved, {held} held", s.reserved_bytes);
        }
        let lost = s.lost_bytes;
        expect!(lost == self.lost || self.has_faults, "{lost} bytes are lost, not {}", self.lost);
        self.lost = lost;
        let most = self.ceiling;
        expect!(s.reserved_bytes <= most, "{} reserved of {most} allowed", s.reserved_bytes);
        self.ceiling = self.limit.max(most.min(s.reserved_bytes));
        self.cached_blocks_fit(&s)?;
        self.stats = s;
        self.cached = self.pool.cached_buffers();
        Ok(())
    }

    /// Everything inside the pool agrees, and its live blocks are those of the model.
    fn check_inside(&self) {
        let inside = self.pool.check().live;
        let expected = (self.live.len() as u64, self.live_bytes());
        assert_eq!((inside.blocks, inside.bytes), expected, "live blocks and their bytes");
    }

    /// The bounds on cached memory hold, where a drop may free: elsewhere the next call does it.
    fn cached_blocks_fit(&self, s: &PoolStats) -> Result<(), String> {
        if !A::MEMORY.free_in_drop || self.has_arena {
            return Ok(());
        }
        if let CachedLimit::Bytes(most) = self.script.settings.cached {
            expect!(s.cached_bytes <= most, "{} cached of {most} allowed", s.cached_bytes);
        }
        if let Some(most) = self.script.settings.bucket {
            let fullest = self.pool.cached_buffers().into_values().max().unwrap_or(0);
            expect!(fullest <= most, "{fullest} blocks of a class cached of {most} allowed");
        }
        Ok(())
    }

    fn end(mut self) -> Result<(), String> {
        while !self.live.is_empty() {
            self.step(Step::Free(0))?;
        }
        self.compare()?;
        self.step(Step::Clear)?;
        self.compare()
    }

    /// Whether blocks for a request of this size are cached at all.
    fn is_kept(&self, bytes: u64) -> bool {
        match &self.script.settings.policy {
            BucketPolicy::Tiered(classes) => classes.iter().any(|class| *class >= bytes),
            _ => true,
        }
    }

    /// The block that a request gets.
    fn class(&self, bytes: u64) -> u64 {
        let policy = &self.script.settings.policy;
        let allocator = self.pool.allocator();
        let granule = match policy {
            BucketPolicy::Exact => allocator.alignment_of(A::Kind::default()),
            _ => policy.default_granule(),
        };
        let up = |bytes: u64| bytes.next_multiple_of(granule).next_multiple_of(allocator.granule());
        let least = bytes.max(1);
        match policy {
            BucketPolicy::Exact => up(least),
            BucketPolicy::PowerOfTwo => up(least.max(granule).next_power_of_two()),
            BucketPolicy::Tiered(classes) => {
                up(classes.iter().copied().find(|class| *class >= least).unwrap_or(least))
            }
            BucketPolicy::Fit { .. } => {
                let own = up(least);
                self.cached.range(own..=2 * own).next().map_or(own, |(block, _)| *block)
            }
            other => unreachable!("the naive model has no rule for the policy {other}"),
        }
    }

    fn live_bytes(&self) -> u64 {
        self.live.iter().map(|live| live.buffer.allocated_size()).sum()
    }

    fn take(&mut self, number: u64) -> Option<Owned<A>> {
        let count = self.live.len() as u64;
        let at = usize::try_from(number.checked_rem(count)?).ok()?;
        Some(self.live.swap_remove(at))
    }

    /// A byte that few live buffers have.
    fn stamp(&mut self) -> u8 {
        self.next_byte = self.next_byte.checked_add(1).unwrap_or(1);
        self.next_byte
    }

    /// The buffer still holds what was written.
    fn verify(&mut self, live: &Owned<A>) -> Result<(), String> {
        self.read(&live.buffer)?;
        let wrong = self.scratch.iter().filter(|byte| **byte != live.byte).count();
        expect!(wrong == 0, "{wrong} of {} bytes changed under their owner", live.buffer.size());
        Ok(())
    }

    fn read(&mut self, buffer: &PooledBuffer<A>) -> Result<(), String> {
        self.scratch.resize(usize::try_from(buffer.size()).map_err(|e| e.to_string())?, 0);
        buffer.read_at(0, &mut self.scratch).map_err(|error| format!("a read: {error}"))
    }
}

fn fill<A: Transfer>(live: &mut Owned<A>, scratch: &mut Vec<u8>) -> Result<(), String> {
    scratch.clear();
    scratch.resize(usize::try_from(live.buffer.size()).map_err(|e| e.to_string())?, live.byte);
    live.buffer.write_at(0, scratch).map_err(|error| format!("a write: {error}"))
}
