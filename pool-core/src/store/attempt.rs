//! The order of the steps of a request for which nothing was found and the device has no memory: a value
//! without locks or calls. `stages.rs` executes the steps, and looks at the pool for them.

use crate::blocks::Effort;
use crate::error::Figures;
use crate::observe::Stage;
use crate::port::DeviceError;

/// How often a request that is about to be refused waits for memory that other threads have on its
/// way.
pub(super) const MAX_WAITS: u32 = if cfg!(loom) { 2 } else { 1000 };
/// How often it searches again because memory is free after its search.
pub(super) const MAX_REPEATS: u32 = if cfg!(loom) { 2 } else { 64 };
/// How often in a row it sees free memory of which none can be given back.
pub(super) const MAX_IN_VAIN: u32 = 4;
/// How often the program is asked to spare something for one request.
pub(super) const MAX_ASKS: u32 = 8;

/// What is done next. Where it could be done, the request searches and asks the device again; else the next step
/// follows at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Search once more: what another thread has freed meanwhile would be the first to go.
    Search,
    /// Give cached memory back, of this pool: as much as is missing.
    TrimMissing,
    /// The same of the other pools of the budget.
    TrimOthers,
    /// Give all cached memory back, of this pool.
    TrimAll,
    /// The same of the other pools of the budget.
    TrimAllOthers,
    /// Wait for memory that other threads have on its way. Then all goes back.
    Await,
    /// Look whether memory is free that came after the search ([`Attempt::saw`]).
    Look,
    /// Ask the program to spare something. Then all goes back.
    Ask,
    Refuse,
}

/// How far a request has come.
pub(super) struct Attempt {
    /// Bytes that went back to the device for it.
    pub(super) given_back: u64,
    /// The counter of a request that the device serves now.
    pub(super) stage: Stage,
    /// How far shards are searched.
    pub(super) effort: Effort,
    /// How much other threads had given back before the last step and search.
    pub(super) returned: Option<u64>,
    /// The figures of the pool at the last search, for the error.
    pub(super) figures: Option<Box<Figures>>,
    /// The refusal of an event in the last search.
    pub(super) refused: Option<DeviceError>,
    /// The step that was taken last.
    last: Option<Step>,
    /// Whether it joins the line of requests that wait, which wakes it when memory arrives.
    joins_line: bool,
    /// How often it may still wait, search again, and ask the program.
    pub(super) waits: u32,
    repeats: u32,
    asks: u32,
    /// Whether the last look saw free memory, and how often in a row none of that could be given back.
    saw_free: bool,
    in_vain: u32,
}

impl Attempt {
    pub(super) fn new(joins_line: bool) -> Self {
        Self {
            given_back: 0,
            stage: Stage::Device,
            effort: Effort::Bounded,
            returned: None,
            figures: None,
            refused: None,
            last: None,
            joins_line,
            waits: MAX_WAITS,
            repeats: MAX_REPEATS,
            asks: MAX_ASKS,
            saw_free: false,
            in_vain: 0,
        }
    }

    /// The next step. `fits`: the limits could hold the request; one above them takes no cached memory from
    /// those below it. `on_its_way`: other threads have memory outside of all lists.
    pub(super) fn next(&mut self, fits: bool, on_its_way: bool) -> Step {
        let waits = on_its_way && !self.joins_line && self.waits > 0;
        let step = match self.last {
            _ if !fits && self.last != Some(Step::Ask) => Step::Ask,
            None => Step::Search,
            Some(Step::Search) => Step::TrimMissing,
            Some(Step::TrimMissing) => Step::TrimOthers,
            Some(Step::TrimOthers) => Step::TrimAll,
            Some(Step::TrimAll) => Step::TrimAllOthers,
            Some(Step::TrimAllOthers | Step::Await) if waits => Step::Await,
            Some(Step::TrimAllOthers | Step::Await) => Step::Look,
            Some(Step::Look) => Step::Ask,
            Some(Step::Ask | Step::Refuse) => Step::Refuse,
        };
        let step = if step == Step::Ask && self.asks == 0 { Step::Refuse } else { step };
        match step {
            Step::TrimMissing | Step::TrimOthers => self.stage = Stage::Trimmed,
            Step::TrimAll | Step::TrimAllOthers => self.stage = Stage::Cleared,
            Step::Ask => self.asks -= 1,
            _ => {}
        }
        self.last = Some(step);
        step
    }

    /// Whether a look at free memory is worth its locks: not where none of it can be given back.
    pub(super) fn may_look(&self) -> bool {
        self.in_vain < MAX_IN_VAIN
    }

    /// After a look. `free`: there is free memory. `came_back`: other threads have given some back since the last
    /// step and search began. Returns whether the request searches again.
    pub(super) fn saw(&mut self, free: bool, came_back: bool) -> bool {
        self.saw_free = free;
        let again = self.repeats > 0 && (free || came_back);
        if again {
            self.repeats -= 1;
            self.last = Some(Step::TrimAllOthers);
        }
        again
    }

    /// After a call of the program, which has spared something: all steps that wait and look are taken anew.
    pub(super) fn spared(&mut self) {
        self.stage = Stage::Spared;
        self.last = Some(Step::TrimAllOthers);
    }

    /// After a step that gave `bytes` bytes back, and before the next search. `returned`: as of before the step.
    pub(super) fn gave(&mut self, bytes: u64, returned: u64) {
        let was_in_vain = std::mem::take(&mut self.saw_free) && bytes == 0;
        self.in_vain = if was_in_vain { self.in_vain + 1 } else { 0 };
        self.given_back += bytes;
        self.effort = Effort::All;
        self.returned = Some(returned);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use Step::{Ask, Await, Look, Refuse, Search, TrimAll, TrimAllOthers, TrimMissing, TrimOthers};

    const TRIMS: [Step; 5] = [Search, TrimMissing, TrimOthers, TrimAll, TrimAllOthers];

    /// The steps of an attempt that never succeeds, where looks and the program say what `look` and `ask` do.
    fn steps(
        joins_line: bool,
        mut now: impl FnMut(Step) -> (bool, bool),
        mut look: impl FnMut() -> bool,
        mut ask: impl FnMut() -> bool,
    ) -> (Vec<Step>, Attempt) {
        let (mut attempt, mut steps) = (Attempt::new(joins_line), Vec::new());
        let mut last = Search;
        while last != Refuse {
            let (fits, on_its_way) = now(last);
            last = attempt.next(fits, on_its_way);
            steps.push(last);
            match last {
                Look => {
                    let free = attempt.may_look() && look();
                    if attempt.saw(free, false) {
                        attempt.gave(0, 0);
                    }
                }
                Ask if ask() => {
                    attempt.spared();
                    attempt.gave(0, 0);
                }
                Await => {
                    attempt.waits -= 1;
                    attempt.gave(0, 0);
                }
                _ => {}
            }
        }
        (steps, attempt)
    }

    fn after_trims(steps: &[Step]) -> &[Step] {
        assert_eq!(steps[..TRIMS.len()], TRIMS);
        &steps[TRIMS.len()..]
    }

    #[test]
    fn a_request_in_vain_takes_each_step_once() {
        let (steps, attempt) = steps(false, |_| (true, false), || false, || false);
        assert_eq!(after_trims(&steps), [Look, Ask, Refuse]);
        assert_eq!((attempt.stage, attempt.effort), (Stage::Cleared, Effort::Bounded));
    }

    #[test]
    fn one_above_the_limits_asks_the_program_alone() {
        let (steps, _) = steps(false, |_| (false, true), || true, || false);
        assert_eq!(steps, [Ask, Refuse]);
    }

    #[test]
    fn a_limit_that_the_program_raises_lets_it_look() {
        let mut asked = 0;
        let now = |last| (last == Ask || last == Look, false);
        let (steps, attempt) = steps(
            false,
            now,
            || false,
            || {
                asked += 1;
                asked == 1
            },
        );
        assert_eq!(steps, [Ask, Look, Ask, Refuse]);
        assert_eq!((attempt.stage, attempt.effort), (Stage::Spared, Effort::All));
    }

    #[test]
    fn what_is_on_its_way_is_awaited_but_by_one_that_joins_the_line() {
        let (steps_of_one, attempt) = steps(false, |_| (true, true), || false, || false);
        let rest = after_trims(&steps_of_one);
        assert_eq!(rest.len(), MAX_WAITS as usize + 3);
        assert!(rest[..MAX_WAITS as usize].iter().all(|step| *step == Await), "{rest:?}");
        assert_eq!(
            (rest[MAX_WAITS as usize..].to_vec(), attempt.waits),
            (vec![Look, Ask, Refuse], 0)
        );
        let (steps, _) = steps(true, |_| (true, true), || false, || false);
        assert_eq!(after_trims(&steps), [Look, Ask, Refuse]);
    }

    #[test]
    fn free_memory_that_cannot_be_given_back_is_seen_a_few_times() {
        let (steps, _) = steps(false, |_| (true, false), || true, || false);
        let looks = [Look; 1 + MAX_IN_VAIN as usize];
        assert_eq!(after_trims(&steps), [&looks[..], &[Ask, Refuse]].concat());
    }

    #[test]
    fn what_others_give_back_lets_it_search_a_bounded_number_of_times() {
        let mut attempt = Attempt::new(false);
        let mut again = 0;
        while attempt.saw(false, true) {
            attempt.gave(64, again);
            again += 1;
        }
        assert_eq!((again, attempt.given_back), (u64::from(MAX_REPEATS), 64 * again));
        assert_eq!(attempt.returned, Some(again - 1));
    }

    #[test]
    fn the_program_is_asked_a_bounded_number_of_times() {
        let (steps, attempt) = steps(false, |_| (true, false), || false, || true);
        let asks = [Look, Ask].repeat(MAX_ASKS as usize);
        assert_eq!(after_trims(&steps), [&asks[..], &[Look, Refuse]].concat());
        assert_eq!(attempt.stage, Stage::Spared);
    }
}
