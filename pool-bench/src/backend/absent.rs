//! A kind of memory that this program was built without.

use super::{Absence, MemoryKind, Peers};
use crate::machine::Clock;
use crate::pass::{Pass, Tally};
use crate::source::Steps;
use crate::spec::NamedPolicy;

/// A kind of memory whose every use says that it is not built in.
#[derive(Debug)]
pub(super) struct Absent {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
}

const WHY: &str = "not built in";
const CURE: &str = "a build with the feature of its name";

impl MemoryKind for Absent {
    fn name(&self) -> &'static str {
        self.name
    }
    fn title(&self) -> &'static str {
        self.title
    }
    fn clock(&self) -> Clock {
        Clock::Wall
    }
    fn is_built_in(&self) -> bool {
        false
    }
    fn absence(&self) -> Option<Absence> {
        Some(Absence { why: WHY.to_owned(), cure: CURE })
    }
    fn peers(&self) -> Peers {
        Peers::WaysAndPrograms // else the message would say that there are none
    }
    fn replay(&self, _pass: &Pass<'_>) -> Result<Tally, String> {
        Err(WHY.to_owned())
    }
    fn source(&self, _spec: Option<&NamedPolicy>, _keeps: bool) -> Result<Box<dyn Steps>, String> {
        Err(WHY.to_owned())
    }
}
