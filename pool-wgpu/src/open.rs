//! The table of open scopes: how far each is, what must be zeroed ahead of its commands, and
//! whether its buffers may be in an encoder that the pool does not own.

use crate::shared::{Shared, ToZero};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::sync::atomic::{
    AtomicIsize, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::time::{Duration, Instant};
use wgpu::Buffer;

/// The scope that is always there: the queue's own writes, ahead of the next submission.
pub(crate) const QUEUE: u64 = 0;
/// Bits of a mark that count the steps of a scope.
const STEP_BITS: u32 = 24;
const LAST_STEP: u64 = (1 << STEP_BITS) - 1;

/// Lent buffers of a scope from which on they are sorted now and then.
const MANY: usize = 256;

/// The scope and the step of a mark.
pub(crate) fn step_of(mark: u64) -> (u64, u64) {
    (mark >> STEP_BITS, mark & LAST_STEP)
}

/// The scopes of one device that are not submitted yet.
#[derive(Default)]
pub(crate) struct OpenScopes {
    last: AtomicU64,
    /// The scopes that the program has opened, by which what is cached ages.
    opened: AtomicU64,
    /// All scopes below this number are closed. Buffers that live long have marks of many of those,
    /// and need no lock to see that.
    closed_below: AtomicU64,
    /// Number of scopes that keep their blocks. Where it is 0, which is usual, a request takes no lock to
    /// ask.
    keeping: AtomicIsize,
    scopes: Mutex<BTreeMap<u64, OpenScope>>,
    /// Told when a scope is closed.
    closed: Condvar,
}

/// The state of a scope until it is submitted.
#[derive(Default)]
struct OpenScope {
    /// The present step. Steps that ended before the last flush are submitted.
    step: u64,
    flushed: u64,
    /// Zeroing that must run ahead of its present step. No scope takes another's: between taking
    /// and submitting, a block of it could come to another scope, whose write is then zeroed.
    to_zero: Vec<ToZero>,
    /// Hashes of what was lent to the program while the scope's own encoder was not, once for
    /// each time. It is searched where an upload may be a mistake, and added to by each lend.
    lent: Vec<u64>,
    /// Whether the program may have recorded a buffer that it had before the scope and dropped in it.
    has_kept: bool,
    /// Whether the scope's own encoder was lent to the program.
    recorded: bool,
    /// Its commands were handed to the program, which submits them.
    yielded: bool,
}

/// Why a scope takes no work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotOpen {
    /// It was submitted or dropped, or it is the queue.
    Closed,
    /// Its prologue is made.
    Yielded,
}

/// A number for a buffer or a texture, by which it is found again.
pub(crate) fn hash_of(lent: &impl Hash) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(lent)
}

impl OpenScope {
    /// Whether the program has a buffer of the scope and has not asked for the scope's encoder.
    fn is_used_elsewhere(&self) -> bool {
        !self.lent.is_empty() && !self.recorded
    }

    /// Whether a block that was dropped in the scope may be in commands that are not the scope's.
    fn keeps_blocks(&self) -> bool {
        (!self.lent.is_empty() || self.has_kept) && !self.recorded
    }

    /// Changes what the program has of the scope. Returns by how many more scopes keep their blocks.
    fn change(&mut self, change: impl FnOnce(&mut Self)) -> isize {
        let before = self.keeps_blocks();
        change(self);
        isize::from(self.keeps_blocks()) - isize::from(before)
    }
}

impl OpenScopes {
    /// Opens a scope: its number.
    pub(crate) fn open(&self) -> u64 {
        // Under the lock, so that no scope is counted as closed before it is in the table.
        let mut scopes = self.scopes.lock();
        let scope = self.last.fetch_add(1, Relaxed) + 1;
        scopes.insert(scope, OpenScope::default());
        scope
    }

    /// Counts a scope of the program.
    pub(crate) fn count_one(&self) {
        self.opened.fetch_add(1, Relaxed);
    }

    /// Returns how many scopes the program has opened so far.
    pub(crate) fn opened(&self) -> u64 {
        self.opened.load(Relaxed)
    }

    /// Closes a scope. Zeroing that is not submitted yet must not be left out, although its
    /// commands never ran: its blocks may be used by others now. So it stays open until all of that
    /// is submitted.
    pub(crate) fn close(&self, scope: u64, shared: &Shared) {
        loop {
            let to_zero = {
                let mut scopes = self.scopes.lock();
                match scopes.get_mut(&scope).map(|open| std::mem::take(&mut open.to_zero)) {
                    Some(to_zero) if !to_zero.is_empty() => to_zero,
                    _ => return drop(self.remove(&mut scopes, scope)),
                }
            };
            shared.zero_now(&to_zero);
        }
    }

    /// Closes a scope whose prologue was submitted, with all its zeroing.
    pub(crate) fn close_submitted(&self, scope: u64) {
        let closed = {
            let mut scopes = self.scopes.lock();
            self.remove(&mut scopes, scope)
        };
        drop(closed); // its buffers without the lock
    }

    fn remove(&self, scopes: &mut BTreeMap<u64, OpenScope>, scope: u64) -> Option<OpenScope> {
        let closed = scopes.remove(&scope)?;
        self.keeping.fetch_sub(isize::from(closed.keeps_blocks()), Relaxed);
        let oldest = scopes.first_key_value().map(|(oldest, _)| *oldest);
        let oldest = oldest.unwrap_or(self.last.load(Relaxed) + 1);
        // A thread that sees this has seen the submission, too.
        self.closed_below.store(oldest, Release);
        self.closed.notify_all();
        Some(closed)
    }

    /// Notes that a range must be zeroed ahead of the scope's present step. Gives it back with why
    /// not.
    pub(crate) fn add_zeroing(&self, scope: u64, to_zero: ToZero) -> Result<(), (ToZero, NotOpen)> {
        match self.scopes.lock().get_mut(&scope) {
            Some(open) if open.yielded => Err((to_zero, NotOpen::Yielded)),
            Some(open) => {
                open.to_zero.push(to_zero);
                Ok(())
            }
            None => Err((to_zero, NotOpen::Closed)),
        }
    }

    /// Takes the zeroing of the present step, which the caller submits.
    pub(crate) fn take_zeroing(&self, scope: u64) -> Vec<ToZero> {
        let mut scopes = self.scopes.lock();
        scopes.get_mut(&scope).map(|open| std::mem::take(&mut open.to_zero)).unwrap_or_default()
    }

    /// Puts back zeroing that was taken and not submitted.
    pub(crate) fn put_back(&self, scope: u64, to_zero: Vec<ToZero>) {
        if let Some(open) = self.scopes.lock().get_mut(&scope) {
            open.to_zero.extend(to_zero);
        }
    }

    /// Returns what the prologue of a scope must zero. The scope takes no more work; its zeroing
    /// stays with it, in case that the prologue is never submitted.
    pub(crate) fn yield_zeroing(&self, scope: u64) -> Vec<ToZero> {
        let mut scopes = self.scopes.lock();
        let Some(open) = scopes.get_mut(&scope) else { return Vec::new() };
        open.yielded = true;
        open.to_zero.clone()
    }

    /// Begins the next step, which may have what the steps before used.
    pub(crate) fn next_step(&self, scope: u64) {
        if let Some(open) = self.scopes.lock().get_mut(&scope) {
            open.step = (open.step + 1).min(LAST_STEP);
        }
    }

    /// The steps so far were submitted. Nothing is known of a scope whose buffers may be in the
    /// program's own encoder: that is submitted later.
    pub(crate) fn flushed(&self, scope: u64) {
        if let Some(open) = self.scopes.lock().get_mut(&scope)
            && !open.keeps_blocks()
        {
            open.step = (open.step + 1).min(LAST_STEP);
            open.flushed = open.step;
        }
    }

    /// A buffer or a texture of the scope was lent to the program.
    pub(crate) fn lend(&self, scope: u64, lent: &impl Hash) {
        self.change(scope, |open| {
            if !open.recorded {
                open.lent.push(hash_of(lent));
                // A scope may be open for long.
                if open.lent.len() >= MANY && open.lent.len().is_power_of_two() {
                    open.lent.sort_unstable();
                    open.lent.dedup();
                }
            }
        });
    }

    /// Whether the program may have recorded this buffer or texture of the scope in its own encoder.
    pub(crate) fn is_recorded_elsewhere(&self, scope: u64, lent: &impl Hash) -> bool {
        self.is_so(scope, |open| !open.recorded && open.lent.contains(&hash_of(lent)))
    }

    /// The encoder of the scope was lent.
    pub(crate) fn record(&self, scope: u64) {
        self.change(scope, |open| open.recorded = true);
    }

    fn change(&self, scope: u64, change: impl FnOnce(&mut OpenScope)) {
        if let Some(open) = self.scopes.lock().get_mut(&scope) {
            self.keeping.fetch_add(open.change(change), Relaxed);
        }
    }

    /// The marks of the open scopes that began after `scope`, in each of which the program may have recorded
    /// what it drops.
    pub(crate) fn marks_since(&self, scope: u64) -> Vec<u64> {
        let mut scopes = self.scopes.lock();
        let later = scopes.range_mut(scope + 1..);
        let (mut marks, mut more) = (Vec::new(), 0);
        for (scope, open) in later {
            more += open.change(|open| open.has_kept = true);
            marks.push(scope << STEP_BITS | open.step);
        }
        self.keeping.fetch_add(more, Relaxed);
        marks
    }

    /// Whether the program has a buffer of the scope and has not asked for the scope's encoder, so
    /// that it must have used another one.
    pub(crate) fn is_used_elsewhere(&self, scope: u64) -> bool {
        self.is_so(scope, OpenScope::is_used_elsewhere)
    }

    /// Whether a block that was dropped in the scope may be in commands that are not the scope's.
    pub(crate) fn keeps_blocks(&self, scope: u64) -> bool {
        self.is_so(scope, OpenScope::keeps_blocks)
    }

    fn is_so(&self, scope: u64, is: impl FnOnce(&OpenScope) -> bool) -> bool {
        // A scope is lent by the threads that use it, and they see that.
        self.keeping.load(Relaxed) > 0 && self.scopes.lock().get(&scope).is_some_and(is)
    }

    /// How many ranges must be zeroed ahead of the scope's present step.
    pub(crate) fn count_zeroing(&self, scope: u64) -> usize {
        self.scopes.lock().get(&scope).map_or(0, |open| open.to_zero.len())
    }

    /// Takes the zeroing of a buffer in a scope that was added after so many.
    pub(crate) fn take_zeroing_after(
        &self,
        scope: u64,
        count: usize,
        buffer: &Buffer,
    ) -> Option<ToZero> {
        let mut scopes = self.scopes.lock();
        let to_zero = &mut scopes.get_mut(&scope)?.to_zero;
        let at = to_zero.iter().skip(count).position(|zero| zero.is_of(buffer))?;
        Some(to_zero.remove(count + at))
    }

    /// Takes the zeroing of a buffer that leaves its pool, where the scope has no step that did not run.
    pub(crate) fn take_zeroing_of(&self, buffer: &Buffer) -> Vec<ToZero> {
        let mut scopes = self.scopes.lock();
        let new = scopes.values_mut().filter(|open| open.step == open.flushed && !open.yielded);
        new.flat_map(|open| open.to_zero.extract_if(.., |zero| zero.is_of(buffer))).collect()
    }

    /// Whether the encoder of the scope was lent.
    pub(crate) fn has_recorded(&self, scope: u64) -> bool {
        self.scopes.lock().get(&scope).is_some_and(|open| open.recorded)
    }

    pub(crate) fn takes_work(&self, scope: u64) -> bool {
        self.scopes.lock().get(&scope).is_some_and(|open| !open.yielded)
    }

    pub(crate) fn is_yielded(&self, scope: u64) -> bool {
        self.scopes.lock().get(&scope).is_some_and(|open| open.yielded)
    }

    pub(crate) fn any_yielded(&self) -> bool {
        self.scopes.lock().values().any(|open| open.yielded)
    }

    /// Whether a scope that was opened was submitted or dropped.
    pub(crate) fn is_closed(&self, scope: u64) -> bool {
        self.is_old(scope) || !self.scopes.lock().contains_key(&scope)
    }

    /// Whether a scope and all scopes before it are closed. Takes no lock.
    fn is_old(&self, scope: u64) -> bool {
        scope < self.closed_below.load(Acquire)
    }

    pub(crate) fn is_submitted(&self, scope: u64, step: u64) -> bool {
        self.is_old(scope) || self.scopes.lock().get(&scope).is_none_or(|open| step < open.flushed)
    }

    /// Waits until the scopes of these marks are submitted, for so long at most, if each that is not was
    /// handed over to the program. Returns whether they are.
    pub(crate) fn await_submission(&self, marks: &[u64], most: Duration) -> bool {
        let end = Instant::now() + most;
        let mut scopes = self.scopes.lock();
        let mut has_time = true;
        loop {
            let open = |mark: &u64| {
                let (scope, step) = step_of(*mark);
                scopes.get(&scope).filter(|open| scope != QUEUE && step >= open.flushed)
            };
            let mut left = marks.iter().filter_map(open).peekable();
            if left.peek().is_none() {
                return true;
            }
            if !has_time || !left.all(|open| open.yielded) {
                return false;
            }
            has_time = !self.closed.wait_until(&mut scopes, end).timed_out();
        }
    }

    /// The mark of the present step.
    pub(crate) fn mark(&self, scope: u64) -> u64 {
        if scope == QUEUE {
            return QUEUE;
        }
        let step = match self.is_old(scope) {
            true => LAST_STEP,
            false => self.scopes.lock().get(&scope).map_or(LAST_STEP, |open| open.step),
        };
        scope << STEP_BITS | step
    }

    pub(crate) fn count(&self) -> usize {
        self.scopes.lock().len()
    }
}
