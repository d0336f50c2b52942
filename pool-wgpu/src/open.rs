//! The table of open scopes: how far each is, what must be zeroed ahead of its commands, and
//! whether its buffers may be in an encoder that the pool does not own.

use crate::looks::look;
use crate::moved::Move;
use crate::shared::Shared;
use crate::written::{Ranges, hash_of, hash_of_texture};
use crate::zeroing::{Fill, Owed, ToZero, Zeroing};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Weak;
use std::sync::atomic::{
    AtomicIsize, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use wgpu::{Buffer, Texture};

/// The scope that is always there: the queue's own writes, ahead of the next submission.
pub(crate) const QUEUE: u64 = 0;
/// Bits of a mark that count the points of a scope.
const POINT_BITS: u32 = 24;
/// A scope that has come so far stays there, and what it drops from then on serves after its end.
const LAST_POINT: u64 = (1 << POINT_BITS) - 1;

/// The scope of a mark, and its point in that scope.
pub(crate) fn point_of(mark: u64) -> (u64, u64) {
    (mark >> POINT_BITS, mark & LAST_POINT)
}

/// Who is told that scopes were submitted.
type Told = Weak<dyn Fn() + Send + Sync>;

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
    scopes: Mutex<OpenTable>,
    /// Told when scopes were submitted, with no lock held.
    told: Mutex<Vec<Told>>,
}

/// Open scopes in the order of their numbers. There are few, and a table that was emptied keeps its memory.
#[derive(Default)]
struct OpenTable(Vec<(u64, OpenScope)>);

impl OpenTable {
    fn at(&self, scope: u64) -> Result<usize, usize> {
        self.0.binary_search_by_key(&scope, |(number, _)| *number)
    }

    fn get(&self, scope: u64) -> Option<&OpenScope> {
        self.at(scope).ok().map(|at| &self.0[at].1)
    }

    fn get_mut(&mut self, scope: u64) -> Option<&mut OpenScope> {
        self.at(scope).ok().map(|at| &mut self.0[at].1)
    }

    /// Adds a scope, whose number is the largest.
    fn add(&mut self, scope: u64) {
        debug_assert!(self.0.last().is_none_or(|(last, _)| *last < scope));
        self.0.push((scope, OpenScope::default()));
    }

    fn remove(&mut self, scope: u64) -> Option<OpenScope> {
        self.at(scope).ok().map(|at| self.0.remove(at).1)
    }

    fn oldest(&self) -> Option<u64> {
        self.0.first().map(|(oldest, _)| *oldest)
    }

    fn iter(&self) -> impl Iterator<Item = &(u64, OpenScope)> {
        self.0.iter()
    }

    /// The scopes after this one.
    fn later_mut(&mut self, scope: u64) -> &mut [(u64, OpenScope)] {
        let at = self.0.partition_point(|(number, _)| *number <= scope);
        &mut self.0[at..]
    }
}

/// The state of a scope until it is submitted.
#[derive(Default)]
struct OpenScope {
    /// The point that it has reached. It grows with each step and flush, and each time that the program is
    /// lent the scope's encoder: no pass of that encoder is open then.
    at: u64,
    /// Where the present step began. Zeroing runs ahead of the step.
    step: u64,
    /// What came before this point is submitted.
    flushed: u64,
    zeroing: Zeroing,
    /// What was lent to the program while the scope's own encoder was not: bytes of buffers, and textures
    /// as one byte. It is searched where an upload may be a mistake, and added to by each lend.
    lent: Ranges,
    /// The textures that its commands use, whatever encoder they are in.
    textures: HashSet<u64>,
    /// Whether the program may have recorded a buffer that it had before the scope and dropped in it.
    has_kept: bool,
    /// Whether the scope's own encoder was lent to the program.
    recorded: bool,
    /// How often it was.
    lent_encoder: u64,
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

impl OpenScope {
    /// Whether the program has a buffer of the scope and has not asked for the scope's encoder.
    fn is_used_elsewhere(&self) -> bool {
        !self.lent.is_empty() && !self.recorded
    }

    /// Whether a block that was dropped in the scope may be in commands that are not the scope's.
    fn keeps_blocks(&self) -> bool {
        (!self.lent.is_empty() || self.has_kept) && !self.recorded
    }

    /// Goes on to the next point. Returns it.
    fn advance(&mut self) -> u64 {
        self.at = (self.at + 1).min(LAST_POINT);
        self.at
    }

    /// Whether memory that was dropped at a point serves the scope again: behind the passes that may have
    /// been open then, and behind the program's own encoder where that may have it.
    fn may_have_again(&self, point: u64) -> bool {
        match () {
            () if self.recorded => point < self.at,
            () if self.keeps_blocks() => point < self.step,
            () => true,
        }
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
        let mut scopes = self.scopes();
        let scope = self.last.fetch_add(1, Relaxed) + 1;
        scopes.add(scope);
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
            let owed = {
                let mut scopes = self.scopes();
                let Some(open) = scopes.get_mut(scope) else { break };
                open.zeroing.end_step(u64::MAX, false)
            };
            if owed.is_empty() {
                break;
            }
            shared.settle(&owed);
        }
        self.close_submitted(scope);
    }

    /// Closes a scope whose prologue was submitted, with all its zeroing.
    pub(crate) fn close_submitted(&self, scope: u64) {
        let closed = {
            let mut scopes = self.scopes();
            self.remove(&mut scopes, scope)
        };
        if closed.is_some() {
            self.tell();
        }
        drop(closed); // its buffers without the lock
    }

    /// Keeps who is told of submissions.
    pub(crate) fn tell_later(&self, told: Told) {
        let mut all = self.told.lock();
        all.retain(|other| other.strong_count() > 0 && !Weak::ptr_eq(other, &told));
        all.push(told);
    }

    /// Tells that scopes were submitted. Called with no lock held.
    fn tell(&self) {
        let all: Vec<_> = self.told.lock().iter().filter_map(Weak::upgrade).collect();
        for told in all {
            told();
        }
    }

    fn scopes(&self) -> MutexGuard<'_, OpenTable> {
        look();
        self.scopes.lock()
    }

    fn remove(&self, scopes: &mut OpenTable, scope: u64) -> Option<OpenScope> {
        let closed = scopes.remove(scope)?;
        self.keeping.fetch_sub(isize::from(closed.keeps_blocks()), Relaxed);
        let oldest = scopes.oldest().unwrap_or(self.last.load(Relaxed) + 1);
        // A thread that sees this has seen the submission, too.
        self.closed_below.store(oldest, Release);
        Some(closed)
    }

    /// Notes that a range must be zeroed ahead of the scope's present step. Gives it back with why
    /// not.
    pub(crate) fn add_zeroing(&self, scope: u64, to_zero: ToZero) -> Result<(), (ToZero, NotOpen)> {
        match self.scopes().get_mut(scope) {
            Some(open) if open.yielded => Err((to_zero, NotOpen::Yielded)),
            Some(open) => {
                open.zeroing.add(to_zero);
                Ok(())
            }
            None => Err((to_zero, NotOpen::Closed)),
        }
    }

    /// Ends the present step for the submission of the scope: what the step owes. What commands of the program's
    /// own encoder fill stays.
    pub(crate) fn take_zeroing(&self, scope: u64) -> Owed {
        let mut scopes = self.scopes();
        let Some(open) = scopes.get_mut(scope) else { return Owed::default() };
        open.zeroing.end_step(open.lent_encoder, open.keeps_blocks())
    }

    /// Returns what the prologue of a scope must zero. The scope takes no more work; its zeroing
    /// stays with it, in case that the prologue is never submitted.
    pub(crate) fn yield_zeroing(&self, scope: u64) -> Vec<ToZero> {
        let mut scopes = self.scopes();
        let Some(open) = scopes.get_mut(scope) else { return Vec::new() };
        open.yielded = true;
        open.zeroing.ahead()
    }

    /// Ends a step, whose memory serves the next one. Returns the zeroing ahead of the step that ended; `None`
    /// where the scope's buffers may be in the program's own encoder.
    pub(crate) fn end_step(&self, scope: u64) -> Option<Owed> {
        // Under one lock, so that what another thread drops belongs to one of the steps.
        let mut scopes = self.scopes();
        let open = scopes.get_mut(scope).filter(|open| !open.keeps_blocks())?;
        open.step = open.advance();
        Some(open.zeroing.end_step(open.lent_encoder, false))
    }

    /// What was recorded so far was submitted. Nothing is known of a scope whose buffers may be in the
    /// program's own encoder: that is submitted later.
    pub(crate) fn flushed(&self, scope: u64) {
        {
            let mut scopes = self.scopes();
            let Some(open) = scopes.get_mut(scope).filter(|open| !open.keeps_blocks()) else {
                return;
            };
            open.step = open.advance();
            open.flushed = open.step;
        }
        self.tell();
    }

    /// Bytes of a buffer of the scope were lent to the program.
    pub(crate) fn lend(&self, scope: u64, buffer: &Buffer, bytes: &Range<u64>) {
        self.change(scope, |open| {
            if !open.recorded {
                open.lent.add(hash_of(buffer), bytes);
            }
        });
    }

    /// A texture was lent to the program for commands of the scope.
    pub(crate) fn lend_texture(&self, scope: u64, texture: &Texture) {
        let texture = hash_of_texture(texture);
        self.change(scope, |open| {
            open.textures.insert(texture);
            if !open.recorded {
                open.lent.add(texture, &(0..1));
            }
        });
    }

    /// Commands that the scope itself records use a texture.
    pub(crate) fn use_texture(&self, scope: u64, texture: &Texture) {
        let texture = hash_of_texture(texture);
        self.change(scope, |open| {
            open.textures.insert(texture);
        });
    }

    /// Whether the program may have recorded some of these bytes of a buffer of the scope in its own encoder.
    pub(crate) fn is_recorded_elsewhere(
        &self,
        scope: u64,
        buffer: &Buffer,
        bytes: &Range<u64>,
    ) -> bool {
        self.is_so(scope, |open| !open.recorded && open.lent.has(hash_of(buffer), bytes))
    }

    /// Whether the program may have recorded a texture in its own encoder, for commands of the scope.
    pub(crate) fn is_texture_elsewhere(&self, scope: u64, texture: &Texture) -> bool {
        self.is_so(scope, |open| !open.recorded && open.lent.has(hash_of_texture(texture), &(0..1)))
    }

    /// The encoder of the scope is lent: no pass of it is open.
    pub(crate) fn record(&self, scope: u64) {
        self.change(scope, |open| {
            open.recorded = true;
            open.lent_encoder += 1;
            open.advance();
        });
    }

    fn change(&self, scope: u64, change: impl FnOnce(&mut OpenScope)) {
        if let Some(open) = self.scopes().get_mut(scope) {
            self.keeping.fetch_add(open.change(change), Relaxed);
        }
    }

    /// The marks of the open scopes that began after `scope`, in each of which the program may have recorded
    /// what it drops.
    pub(crate) fn marks_since(&self, scope: u64) -> Vec<u64> {
        let mut scopes = self.scopes();
        let (mut marks, mut more) = (Vec::new(), 0);
        for (scope, open) in scopes.later_mut(scope) {
            more += open.change(|open| open.has_kept = true);
            marks.push(*scope << POINT_BITS | open.at);
        }
        self.keeping.fetch_add(more, Relaxed);
        marks
    }

    /// The marks of the scopes whose commands may use a texture that is dropped: its own, and those that were
    /// lent it. Once its own was submitted or handed over, also all that began after it, in which the
    /// program may have recorded it.
    pub(crate) fn marks_of_texture(&self, own: u64, texture: &Texture) -> Vec<u64> {
        let texture = hash_of_texture(texture);
        let (mut marks, may_have_ended) = {
            let scopes = self.scopes();
            let uses =
                |scope: u64, open: &OpenScope| scope == own || open.textures.contains(&texture);
            let used = scopes.iter().filter(|(scope, open)| uses(*scope, open));
            let marks: Vec<u64> =
                used.map(|(scope, open)| *scope << POINT_BITS | open.at).collect();
            (marks, scopes.get(own).is_none_or(|open| open.yielded))
        };
        if may_have_ended {
            marks.extend(self.marks_since(own));
        }
        marks
    }

    /// Whether the program has a buffer of the scope and has not asked for the scope's encoder, so
    /// that it must have used another one.
    pub(crate) fn is_used_elsewhere(&self, scope: u64) -> bool {
        self.is_so(scope, OpenScope::is_used_elsewhere)
    }

    fn is_so(&self, scope: u64, is: impl FnOnce(&OpenScope) -> bool) -> bool {
        // A scope is lent by the threads that use it, and they see that.
        self.keeping.load(Relaxed) > 0 && self.scopes().get(scope).is_some_and(is)
    }

    /// How many ranges were added to the scope's zeroing.
    pub(crate) fn count_zeroing(&self, scope: u64) -> u64 {
        self.scopes().get(scope).map_or(0, |open| open.zeroing.count())
    }

    /// The program fills these bytes, which were taken after so many ranges were added ([`Zeroing::promise`]).
    pub(crate) fn promise(&self, scope: u64, count: u64, buffer: &Buffer, bytes: &Range<u64>) {
        if let Some(open) = self.scopes().get_mut(scope) {
            open.zeroing.promise(count, buffer, bytes, open.lent_encoder);
        }
    }

    /// An upload or a copy of the scope fills these bytes ([`Zeroing::fill`]).
    pub(crate) fn fill(&self, scope: u64, buffer: &Buffer, bytes: &Range<u64>, fill: Fill) {
        if let Some(open) = self.scopes().get_mut(scope) {
            open.zeroing.fill(buffer, bytes, fill);
        }
    }

    /// How many bytes from `at` on are zeroed ahead of the scope's present step, with some right before.
    pub(crate) fn zeroed_behind(&self, scope: u64, buffer: &Buffer, at: u64) -> u64 {
        self.scopes().get(scope).map_or(0, |open| open.zeroing.behind(buffer, at))
    }

    /// A copy of the scope is made in any case.
    pub(crate) fn add_move(&self, scope: u64, moved: Move) {
        if let Some(open) = self.scopes().get_mut(scope) {
            open.zeroing.add_move(moved);
        }
    }

    /// Parts of a scope that was handed over were submitted: its prologue, the program's commands.
    pub(crate) fn parts_ran(&self, scope: u64, (prologue, commands): (bool, bool)) {
        if let Some(open) = self.scopes().get_mut(scope) {
            if prologue {
                open.zeroing.ahead_ran();
            }
            if commands {
                open.zeroing.commands_ran();
            }
        }
    }

    /// Takes the zeroing of a buffer that leaves its pool, where the scope has no step that did not run.
    pub(crate) fn take_zeroing_of(&self, buffer: &Buffer) -> Vec<ToZero> {
        let mut scopes = self.scopes();
        let all = scopes.later_mut(QUEUE).iter_mut().map(|(_, open)| open);
        let new = all.filter(|open| open.step == open.flushed && !open.yielded);
        new.flat_map(|open| open.zeroing.take_of(buffer)).collect()
    }

    /// Whether the encoder of the scope was lent.
    pub(crate) fn has_recorded(&self, scope: u64) -> bool {
        self.scopes().get(scope).is_some_and(|open| open.recorded)
    }

    pub(crate) fn takes_work(&self, scope: u64) -> bool {
        self.scopes().get(scope).is_some_and(|open| !open.yielded)
    }

    pub(crate) fn is_yielded(&self, scope: u64) -> bool {
        self.scopes().get(scope).is_some_and(|open| open.yielded)
    }

    pub(crate) fn any_yielded(&self) -> bool {
        self.scopes().iter().any(|(_, open)| open.yielded)
    }

    /// Whether a scope that was opened was submitted or dropped.
    pub(crate) fn is_closed(&self, scope: u64) -> bool {
        self.is_old(scope) || self.scopes().get(scope).is_none()
    }

    /// Whether the program may take a scope for submitted: it is, or was handed over.
    pub(crate) fn may_have_ended(&self, scope: u64) -> bool {
        self.is_old(scope) || self.scopes().get(scope).is_none_or(|open| open.yielded)
    }

    /// Whether a scope and all scopes before it are closed. Takes no lock.
    fn is_old(&self, scope: u64) -> bool {
        scope < self.closed_below.load(Acquire)
    }

    pub(crate) fn is_submitted(&self, scope: u64, point: u64) -> bool {
        self.asks(scope, |open| point < open.flushed)
    }

    /// Whether zeroing ahead of the present step comes after this point of the scope.
    pub(crate) fn is_before_step(&self, scope: u64, point: u64) -> bool {
        self.asks(scope, |open| point < open.step)
    }

    /// Whether memory that was dropped at this point of the scope serves it again.
    pub(crate) fn may_have_again(&self, scope: u64, point: u64) -> bool {
        self.asks(scope, |open| open.may_have_again(point))
    }

    /// Asks a scope, if it is open. Else it is so.
    fn asks(&self, scope: u64, is: impl FnOnce(&OpenScope) -> bool) -> bool {
        self.is_old(scope) || self.scopes().get(scope).is_none_or(is)
    }

    /// The mark of the present point.
    pub(crate) fn mark(&self, scope: u64) -> u64 {
        if scope == QUEUE {
            return QUEUE;
        }
        let point = match self.is_old(scope) {
            true => LAST_POINT,
            false => self.scopes().get(scope).map_or(LAST_POINT, |open| open.at),
        };
        scope << POINT_BITS | point
    }

    pub(crate) fn count(&self) -> usize {
        self.scopes().iter().count()
    }
}
