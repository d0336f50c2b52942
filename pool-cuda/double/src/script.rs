//! Counts of calls, and the calls that must fail.

use crate::code::{self, Code};
use std::collections::HashMap;

/// The calls so far, and the failures that a test has requested.
#[derive(Default)]
pub(crate) struct Script {
    counts: HashMap<&'static str, u64>,
    faults: Vec<Fault>,
    /// A call that does nothing and reports success: its name, and how many more are let through.
    pretended: Option<(String, u64)>,
}

/// The outcome that the script has for a call.
#[derive(PartialEq, Eq)]
pub(crate) enum Gate {
    Open,
    /// It does nothing and reports success.
    Pretend,
}

/// Calls of a name, or of any, fail: after `skip` more, `times` times.
pub(crate) struct Fault {
    pub(crate) name: String,
    pub(crate) skip: u64,
    pub(crate) times: u64,
    /// 0 for the code that suits the call.
    pub(crate) code: Code,
}

impl Script {
    pub(crate) fn fail(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    pub(crate) fn mend(&mut self) {
        self.faults = Vec::new();
    }

    pub(crate) fn pretend(&mut self, name: String, skip: u64) {
        self.pretended = Some((name, skip));
    }

    /// Adds to a count that tests read, beside the calls.
    pub(crate) fn add(&mut self, name: &'static str, how_many: u64) {
        *self.counts.entry(name).or_default() += how_many;
    }

    /// Counts a call, and returns the outcome that the script has for it.
    pub(crate) fn gate(&mut self, name: &'static str) -> Result<Gate, Code> {
        self.add(name, 1);
        let of_name = |fault: &&mut Fault| fault.name.is_empty() || fault.name == name;
        for fault in self.faults.iter_mut().filter(of_name).filter(|fault| fault.times > 0) {
            if fault.skip == 0 {
                fault.times -= 1;
                return Err(if fault.code > 0 { fault.code } else { code::injected(name) });
            }
            fault.skip -= 1;
        }
        match &mut self.pretended {
            Some((pretended, skip)) if pretended == name => {
                let now = *skip == 0;
                if now {
                    self.pretended = None;
                } else {
                    *skip -= 1;
                }
                Ok(if now { Gate::Pretend } else { Gate::Open })
            }
            _ => Ok(Gate::Open),
        }
    }

    /// Returns how often a name was called, refused calls included; all calls for an empty name.
    pub(crate) fn count(&self, name: &str) -> u64 {
        if name.is_empty() {
            let calls = self.counts.iter().filter(|(name, _)| !name.contains(':'));
            return calls.map(|(_, count)| count).sum();
        }
        self.counts.get(name).copied().unwrap_or(0)
    }
}
