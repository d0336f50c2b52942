//! The memory that a script runs over: how to build a pool, and how to look at its device.

use super::model::{self, DeviceHooks, UnderTest};
use super::script::Script;
use super::shrink;
use crate::{SimCall, SimDevice};
use pool_core::port::Sliceable;
use pool_core::{ArenaConfig, BucketPool, PoolBuilder, Transfer};
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A combination of an allocator and an arena that scripts are run over.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; pub use pool_sim::conformance; }
/// use bucketpool::conformance::{Script, Subject};
/// use bucketpool::sim::SimDevice;
///
/// let subject = Subject::new(SimDevice::new);
/// let script: Script = "policy exact\nallocate 1000\nfree 0\ntrim 1\n".parse()?;
/// assert!(subject.check(&script).is_ok());
/// subject.try_random(0..10, 40);
/// # Ok::<(), bucketpool::conformance::BadScript>(())
/// ```
pub struct Subject<'m, A: Transfer> {
    builder: Box<dyn Fn() -> PoolBuilder<A> + 'm>,
    has_arena: bool,
    device: Option<DeviceHooks<A>>,
}

#[expect(clippy::panic, reason = "a suite of tests: a panic is how it reports")]
impl<'m, A: Transfer> Subject<'m, A> {
    /// Pools of whole blocks over allocators that `make` makes.
    pub fn new(make: impl Fn() -> A + 'm) -> Self {
        let builder = Box::new(move || BucketPool::builder(make()));
        Self { builder, has_arena: false, device: None }
    }

    /// The pool that a script asks for.
    fn pool(&self, script: &Script) -> BucketPool<A> {
        let settings = &script.settings;
        let mut builder = (self.builder)().zero(settings.zero);
        if !self.has_arena {
            builder = builder.policy(settings.policy.clone());
        }
        builder = builder.cached_limit(settings.cached);
        if let Some(bytes) = settings.reserved {
            builder = builder.reserved_limit(bytes);
        }
        if let Some(blocks) = settings.bucket {
            builder = builder.bucket_limit(blocks);
        }
        builder.build()
    }

    /// Runs a script, comparing the pool with the model after each step.
    ///
    /// # Errors
    ///
    /// The first difference, or the message of a panic, with the step that it came after.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; pub use pool_sim::conformance; }
    /// use bucketpool::conformance::Subject;
    ///
    /// let script = "policy exact\nallocate 100\nfree 0\nallocate 100\n".parse()?;
    /// assert_eq!(Subject::simulated().check(&script), Ok(()));
    /// # Ok::<(), bucketpool::conformance::BadScript>(())
    /// ```
    pub fn check(&self, script: &Script) -> Result<(), String> {
        let check = || {
            let (pool, device) = (self.pool(script), self.device.as_ref());
            model::check(UnderTest { pool, has_arena: self.has_arena, device }, script)
        };
        match catch_unwind(AssertUnwindSafe(check)) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(violation)) => Err(violation.to_string()),
            Err(panic) => Err(format!("panic: {}", message(&*panic))),
        }
    }

    /// Runs the random scripts of these seeds, of `steps` steps each.
    ///
    /// # Panics
    ///
    /// At the first script that [`Subject::check`] refuses, with its seed and the shortest script
    /// that is still refused: a file for `tests/regressions`.
    pub fn try_random(&self, seeds: Range<u64>, steps: usize) {
        self.try_random_with(seeds, steps, |_| ());
    }

    /// [`Subject::try_random`] over scripts that `edit` has changed, such as their policy.
    ///
    /// # Panics
    ///
    /// As for [`Subject::try_random`].
    pub fn try_random_with(&self, seeds: Range<u64>, steps: usize, edit: impl Fn(&mut Script)) {
        for seed in seeds {
            let mut script = Script::random(seed, steps);
            edit(&mut script);
            let Err(found) = self.check(&script) else { continue };
            let least = shrink::shrunk(script, |script| self.check(script).is_err());
            let why = self.check(&least).err().unwrap_or(found);
            panic!("seed {seed}: {why}\nthe shortest script that shows it:\n\n{least}");
        }
    }
}

impl Subject<'static, SimDevice> {
    /// Pools over the simulated device, whose calls fail where a script says so, and which tells
    /// what it has handed out.
    #[must_use]
    pub fn simulated() -> Self {
        let fail = |device: &SimDevice, call: u64, skip| {
            let calls = SimCall::ALL;
            let at = usize::try_from(call % calls.len() as u64).unwrap_or(0);
            device.fail(calls[at], skip, 1);
        };
        let pending = SimDevice::pending_failures;
        let device = DeviceHooks { held: SimDevice::held_bytes, fail, pending };
        Self { device: Some(device), ..Self::new(SimDevice::new) }
    }
}

impl<A: Transfer + Sliceable> Subject<'_, A> {
    /// Puts an arena over the allocators.
    #[must_use]
    pub fn arena(self, config: &ArenaConfig) -> Self {
        let (make, config) = (self.builder, config.clone());
        let builder = Box::new(move || make().arena(config.clone()));
        Self { builder, has_arena: true, ..self }
    }
}

impl<A: Transfer> fmt::Debug for Subject<'_, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject").field("has_arena", &self.has_arena).finish_non_exhaustive()
    }
}

/// The text of a panic.
pub(super) fn message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("of another type")
}
