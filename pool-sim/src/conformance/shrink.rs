//! Shortens a script that fails, so that people can read it.

use super::script::{Script, Settings, Step};

/// Returns the shortest script found that still fails: steps are left out in ever smaller portions
/// (Zeller's delta debugging), then settings, then sizes are halved.
pub(super) fn shrunk(mut script: Script, fails: impl Fn(&Script) -> bool) -> Script {
    let mut portion = script.steps.len().max(1);
    while portion > 0 {
        let mut at = 0;
        while at < script.steps.len() {
            let mut without = script.clone();
            without.steps.drain(at..(at + portion).min(script.steps.len()));
            if fails(&without) {
                script = without;
            } else {
                at += portion;
            }
        }
        portion /= 2;
    }
    for plainer in PLAINER {
        let other = Script { settings: plainer(&script.settings), ..script.clone() };
        if fails(&other) {
            script = other;
        }
    }
    for at in 0..script.steps.len() {
        while let Some(smaller) = smaller(script.steps[at]) {
            let mut other = script.clone();
            other.steps[at] = smaller;
            if !fails(&other) {
                break;
            }
            script = other;
        }
    }
    script
}

/// Ways to leave one setting out.
const PLAINER: [fn(&Settings) -> Settings; 4] = [
    |s| Settings { zero: Settings::default().zero, ..s.clone() },
    |s| Settings { cached: Settings::default().cached, ..s.clone() },
    |s| Settings { reserved: None, ..s.clone() },
    |s| Settings { bucket: None, ..s.clone() },
];

/// The step with half its number, if that is another step.
fn smaller(step: Step) -> Option<Step> {
    let half = |number: u64| (number > 0).then_some(number / 2);
    Some(match step {
        Step::Allocate(bytes) => Step::Allocate(half(bytes)?),
        Step::Zeroed(bytes) => Step::Zeroed(half(bytes)?),
        Step::Free(number) => Step::Free(half(number)?),
        Step::Write(number) => Step::Write(half(number)?),
        Step::Detach(number) => Step::Detach(half(number)?),
        Step::Trim(bytes) => Step::Trim(half(bytes)?),
        Step::Shrink(bytes) => Step::Shrink(half(bytes)?),
        Step::Tick(seconds) => Step::Tick(half(seconds)?),
        Step::Limit(bytes) => Step::Limit(half(bytes)?),
        Step::Fail(call, skip) => Step::Fail(call, half(skip)?),
        Step::Thread(number) => Step::Thread(half(number)?),
        Step::Clear => return None,
    })
}
