//! The registry of backends: each kind of memory that can be measured, and what the bench does
//! with it. A new one is a file beside these, its `mod`, and a line in `ALL`. Records name the
//! devices of CUDA and wgpu only (`record.rs`).

#[cfg(not(all(feature = "cuda", feature = "wgpu")))]
mod absent;
#[cfg(feature = "cuda")]
mod cuda;
mod host;
mod sim;
#[cfg(feature = "wgpu")]
mod wgpu;

use crate::apart::Process;
use crate::input::BadInput;
use crate::machine::Clock;
use crate::pass::{Pass, Tally};
use crate::rounds::Row;
use crate::source::Steps;
use crate::spec::NamedPolicy;
use crate::trace::Trace;
use clap::ValueEnum;
use clap::builder::PossibleValue;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::ops::Deref;

/// The kinds of memory, in the order of tables.
static ALL: [Backend; 4] = [
    Backend::HOST,
    Backend::SIM,
    #[cfg(feature = "cuda")]
    Backend(&cuda::Cuda),
    #[cfg(not(feature = "cuda"))]
    Backend(&absent::Absent { name: "cuda", title: CUDA }),
    #[cfg(feature = "wgpu")]
    Backend(&wgpu::Wgpu),
    #[cfg(not(feature = "wgpu"))]
    Backend(&absent::Absent { name: "wgpu", title: WGPU }),
];

const CUDA: &str = "VRAM by CUDA";
const WGPU: &str = "wgpu buffers on the default adapter";

/// A kind of memory: what the bench asks of it.
pub trait MemoryKind: fmt::Debug + Sync {
    /// Returns its name on the command line and in records.
    fn name(&self) -> &'static str;

    /// Returns its title, for the help.
    fn title(&self) -> &'static str;

    /// Returns the clock of its steps.
    fn clock(&self) -> Clock;

    /// Whether it uses no memory of the machine and takes no time: it has any size, and its calls
    /// are compared instead of times.
    fn is_simulated(&self) -> bool {
        false
    }

    /// Whether this program was built with it.
    fn is_built_in(&self) -> bool {
        true
    }

    /// Returns why an arena cannot split its blocks; `None` if it can.
    fn unsplit(&self) -> Option<&'static str> {
        None
    }

    /// Returns why it cannot be had here; `None` if it can.
    fn absence(&self) -> Option<Absence> {
        None
    }

    /// Replays a trace on a pool over it.
    ///
    /// # Errors
    ///
    /// Why its device cannot be opened.
    fn replay(&self, pass: &Pass<'_>) -> Result<Tally, String>;

    /// Returns the function that replays a trace without a pool, if there is such a reference.
    fn reference(&self) -> Option<fn(&Trace) -> Tally> {
        None
    }

    /// Creates the source of buffers for workloads: a pool with this policy, or direct allocation
    /// without one. With `keeps`, direct allocation of host memory uses returned buffers again, a
    /// fault that the bench must notice.
    ///
    /// # Errors
    ///
    /// Why its device cannot be opened.
    fn source(&self, spec: Option<&NamedPolicy>, keeps: bool) -> Result<Box<dyn Steps>, String>;

    /// Returns the peers that `bench --peers` measures it beside.
    fn peers(&self) -> Peers {
        Peers::None
    }

    /// Measures it beside its peers and these programs, as NAME=COMMAND.
    ///
    /// # Errors
    ///
    /// A device that cannot be opened, or a peer that fails.
    fn beside_peers(&self, _programs: &[String], _process: &Process) -> Result<Vec<Row>, BadInput> {
        let what = format!("peers of `{}`", self.name());
        Err(BadInput::new(what, "a kind of memory that has some"))
    }

    /// Returns name and driver of its device, for records.
    fn device(&self) -> Option<String> {
        None
    }
}

/// The contenders of a kind of memory in `bench --peers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peers {
    /// Nothing.
    None,
    /// Other ways to allocate this kind of memory, in one program.
    Ways,
    /// Other ways to allocate it, and programs that the command line names.
    WaysAndPrograms,
}

/// Reason that a kind of memory cannot be had, and its cure.
#[derive(Clone, Debug)]
pub struct Absence {
    /// The reason.
    pub why: String,
    /// The cure: a machine, a driver or a build that has it.
    pub cure: &'static str,
}

/// A kind of memory of the registry. Two are equal if their names are.
#[derive(Clone, Copy)]
pub struct Backend(&'static dyn MemoryKind);

impl Backend {
    /// Host memory.
    pub const HOST: Self = Self(&host::Host);
    /// The simulated device.
    pub const SIM: Self = Self(&sim::Sim);

    /// Returns the kinds of memory that this program was built with.
    #[must_use]
    pub fn built_in() -> Vec<Self> {
        ALL.into_iter().filter(|backend| backend.is_built_in()).collect()
    }

    /// Returns the kind of memory with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        ALL.into_iter().find(|backend| backend.name() == name)
    }

    /// Returns why no pool with this policy can be built over it; `None` if one can.
    #[must_use]
    pub fn refusal(self, spec: &NamedPolicy) -> Option<&'static str> {
        self.unsplit().filter(|_| spec.has_arena())
    }

    /// Whether a pool with this policy can be built over it.
    #[must_use]
    pub fn serves(self, spec: &NamedPolicy) -> bool {
        self.refusal(spec).is_none()
    }

    /// Returns a note if some of the policies cannot be built over it.
    #[must_use]
    pub fn left_out(self, policies: &[NamedPolicy]) -> Option<String> {
        let why = policies.iter().find_map(|spec| self.refusal(spec))?;
        Some(format!("left out: arenas on {}, since {why}", self.name()))
    }
}

impl Deref for Backend {
    type Target = dyn MemoryKind;

    fn deref(&self) -> &Self::Target {
        self.0
    }
}

impl PartialEq for Backend {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Backend {}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ValueEnum for Backend {
    fn value_variants<'a>() -> &'a [Self] {
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()).help(self.title()))
    }
}

impl Serialize for Backend {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Backend {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::named(&name).ok_or_else(|| {
            let names = ALL.map(|backend| backend.name()).join(", ");
            serde::de::Error::custom(format!("backend `{name}`; expected one of {names}"))
        })
    }
}
