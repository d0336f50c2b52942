//! One word of a record: what keeps its free, or its next hit, from the short way.

use crate::port::StreamClock;
use crate::stream::LastUses;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// No flag: a whole block that the pool keeps, whose contents are old, that one stream alone used, and
/// that no use has open.
pub(crate) const PLAIN: u32 = 0;
/// It is a part of a segment.
pub(crate) const PART: u32 = 1;
/// It belongs to a private pool.
pub(crate) const PRIVATE: u32 = 2;
/// The pool may not keep it.
pub(crate) const BYPASS: u32 = 4;
/// A use on its own stream is open.
pub(crate) const OPEN: u32 = 8;
/// Other streams used it.
pub(crate) const ELSEWHERE: u32 = 16;
/// Its bytes are zero. It goes when a buffer gets it.
pub(crate) const CLEAN: u32 = 32;

/// The flags of a block. `OPEN` and `ELSEWHERE` are written under the lock of its uses, the others by the
/// owner of the record, while no use can begin: no bit is lost although each write is a plain store.
#[derive(Debug)]
pub(crate) struct BlockFlags(AtomicU32);

impl BlockFlags {
    pub(crate) fn new(flags: u32) -> Self {
        Self(AtomicU32::new(flags))
    }

    /// All flags, for the owner of the record.
    #[inline]
    pub(crate) fn get_mut(&mut self) -> u32 {
        *self.0.get_mut()
    }

    /// All flags.
    #[cfg(feature = "check")]
    pub(crate) fn get(&self) -> u32 {
        self.0.load(Relaxed)
    }

    /// Whether any of these is set.
    #[inline]
    pub(crate) fn any(&self, of: u32) -> bool {
        self.0.load(Relaxed) & of != 0
    }

    #[inline]
    pub(crate) fn set(&mut self, flag: u32, on: bool) {
        let flags = self.0.get_mut();
        *flags = if on { *flags | flag } else { *flags & !flag };
    }

    /// Notes whether a use on the own stream is open, under the lock of the uses.
    #[inline]
    pub(crate) fn note_open(&self, open: bool) {
        let others = self.0.load(Relaxed) & !OPEN;
        self.0.store(if open { others | OPEN } else { others }, Relaxed);
    }

    fn follow<C: StreamClock>(&self, uses: &LastUses<C>) {
        let before = self.0.load(Relaxed);
        let now = before & !(OPEN | ELSEWHERE)
            | if uses.is_open_on_own() { OPEN } else { 0 }
            | if uses.has_others() { ELSEWHERE } else { 0 };
        if now != before {
            self.0.store(now, Relaxed);
        }
    }
}

/// Uses that may change. Its drop makes the flags follow them, also when the clock panics, and before the
/// lock of the uses is released.
pub(crate) struct UsesGuard<'r, C: StreamClock, U: DerefMut<Target = LastUses<C>>> {
    flags: &'r BlockFlags,
    uses: U,
}

impl<'r, C: StreamClock, U: DerefMut<Target = LastUses<C>>> UsesGuard<'r, C, U> {
    #[inline]
    pub(crate) fn new(flags: &'r BlockFlags, uses: U) -> Self {
        Self { flags, uses }
    }
}

impl<C: StreamClock, U: DerefMut<Target = LastUses<C>>> Deref for UsesGuard<'_, C, U> {
    type Target = LastUses<C>;
    #[inline]
    fn deref(&self) -> &LastUses<C> {
        &self.uses
    }
}

impl<C: StreamClock, U: DerefMut<Target = LastUses<C>>> DerefMut for UsesGuard<'_, C, U> {
    #[inline]
    fn deref_mut(&mut self) -> &mut LastUses<C> {
        &mut self.uses
    }
}

impl<C: StreamClock, U: DerefMut<Target = LastUses<C>>> Drop for UsesGuard<'_, C, U> {
    #[inline]
    fn drop(&mut self) {
        self.flags.follow(&*self.uses);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::{DeviceError, Order};
    use crate::stream::Access;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    /// Streams that are numbers, of which no two marks can be compared.
    struct Panics;

    impl StreamClock for Panics {
        type Stream = u64;
        type Mark = u64;

        fn default_stream(&self) -> &u64 {
            &0
        }
        fn owns(&self, _: &u64) -> bool {
            true
        }
        fn mark(&self, on: &u64) -> u64 {
            *on
        }
        fn latest(&self, _: u64) -> u64 {
            resume_unwind(Box::new("on purpose"))
        }
        fn same_stream(&self, a: u64, b: u64) -> bool {
            a == b
        }
        fn later(&self, _: u64, _: u64) -> u64 {
            resume_unwind(Box::new("on purpose"))
        }
        fn is_later(&self, _: u64, _: u64) -> bool {
            resume_unwind(Box::new("on purpose"))
        }
        fn stream_id(&self, mark: u64) -> u64 {
            mark
        }
        fn is_ordered(&self, on: &u64, after: u64) -> bool {
            *on == after
        }
        fn order(&self, _: &u64, _: &[u64]) -> Result<Order, DeviceError> {
            Ok(Order::NotYet)
        }
        fn is_seen_done(&self, _: u64) -> bool {
            false
        }
        fn is_done(&self, _: u64) -> Result<bool, DeviceError> {
            Ok(false)
        }
        fn synchronize(&self, _: u64) -> Result<(), DeviceError> {
            Ok(())
        }
    }

    /// Changes uses, and returns whether that panicked, and the flags that follow.
    fn after(
        (flags, uses): (&BlockFlags, &mut LastUses<Panics>),
        change: impl FnOnce(&mut LastUses<Panics>),
    ) -> (bool, u32) {
        let mut guard = UsesGuard::new(flags, uses);
        let panicked = catch_unwind(AssertUnwindSafe(move || change(&mut guard))).is_err();
        (panicked, flags.0.load(Relaxed))
    }

    #[test]
    fn a_use_that_a_panic_of_the_clock_interrupts_is_in_the_flags() {
        let (flags, mut uses) = (BlockFlags::new(PLAIN), LastUses::new(1));
        let write = |on| move |uses: &mut LastUses<_>| uses.begin(&Panics, on, Access::Write);
        assert_eq!(after((&flags, &mut uses), write(1)), (false, OPEN));
        assert_eq!(after((&flags, &mut uses), write(2)), (false, OPEN | ELSEWHERE));
        uses.restart(1);
        assert_eq!(after((&flags, &mut uses), |_| {}), (false, PLAIN));

        assert_eq!(after((&flags, &mut uses), write(1)), (false, OPEN));
        let end = |uses: &mut LastUses<_>| uses.end(&Panics, 1, Access::Write);
        assert_eq!(after((&flags, &mut uses), end), (true, OPEN), "it has not ended");
        assert_eq!(after((&flags, &mut uses), write(1)), (false, OPEN), "no mark is compared");
        let close = |uses: &mut LastUses<_>| uses.close(&Panics);
        assert_eq!(after((&flags, &mut uses), close), (true, OPEN), "it lasts");
    }
}
