//! Which calls came, and which are to fail.

use crate::code::{self, Code};
use std::collections::HashMap;

/// The calls so far, and what is to go wrong.
#[derive(Default)]
pub(crate) struct Script {
    counts: HashMap<&'static str, u64>,
    faults: Vec<Fault>,
    /// The device is gone: what each call says from here on.
    lost: Option<Code>,
    /// A call that does nothing and says that it has: its name, and how many more are let through.
    pretended: Option<(String, u64)>,
}

/// What becomes of a call.
#[derive(PartialEq, Eq)]
pub(crate) enum Gate {
    Open,
    /// It says that it was done.
    Pretend,
}

/// Calls of a name, or of any, fail: after `skip` more, `times` times.
pub(crate) struct Fault {
    pub(crate) name: String,
    pub(crate) skip: u64,
    pub(crate) times: u64,
    /// 0 for what suits the call.
    pub(crate) code: Code,
}

impl Script {
    pub(crate) fn fail(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    pub(crate) fn lose(&mut self, code: Code) {
        self.lost = Some(code);
    }

    pub(crate) fn mend(&mut self) {
        (self.faults, self.lost) = (Vec::new(), None);
    }

    pub(crate) fn pretend(&mut self, name: String, skip: u64) {
        self.pretended = Some((name, skip));
    }

    /// Counts a call, and says whether it may go on.
    pub(crate) fn gate(&mut self, name: &'static str) -> Result<Gate, Code> {
        *self.counts.entry(name).or_default() += 1;
        if let Some(code) = self.lost {
            return Err(code);
        }
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

    /// Calls of a name, refused ones among them; of all names for an empty one.
    pub(crate) fn count(&self, name: &str) -> u64 {
        if name.is_empty() {
            return self.counts.values().sum();
        }
        self.counts.get(name).copied().unwrap_or(0)
    }
}
