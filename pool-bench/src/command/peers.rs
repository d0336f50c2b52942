//! `bench --peers`: beside other global allocators, other arenas, VRAM's other ways, or fresh wgpu
//! buffers.

use super::bench::Bench;
use crate::apart::{Process, Spread};
use crate::backend::{Absence, Backend, Peers};
use crate::environment;
use crate::input::BadInput;
use crate::results::Results;
use crate::rounds::{self, Row};
use clap::{Args, ValueEnum};

/// Peers that are measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Group {
    /// Global allocators beside the tcache.
    Host,
    /// Allocators that split one region, beside the arena.
    Arena,
    /// Global allocators beside pools of host memory, also on several threads.
    Pools,
    /// Global allocators in a program that runs for long: parked threads, the slowest calls, and
    /// what stays resident.
    Service,
    /// Libraries that are preloaded under programs that are not changed.
    Preload,
    /// The same under servers with load, NumPy, PyTorch and a build: time and memory.
    Applications,
}

/// A case of `bench --peers`, in this process; prints rows.
#[derive(Debug, Args)]
pub(super) struct Case {
    /// `host`, `arena`, `wgpu` or `cuda`.
    group: String,
    /// The case to measure; `-` for all that the group has.
    #[arg(default_value = "-")]
    name: String,
    /// Bytes of a block, or elements of an array.
    #[arg(default_value_t = 0)]
    size: u64,
    /// Programs of `--backend cuda`, as NAME=COMMAND.
    #[arg(long)]
    peer: Vec<String>,
    #[command(flatten)]
    process: Process,
}

/// Answers the questions for a GPU: one JSON line for each.
#[cfg(feature = "cuda")]
#[derive(Debug, Args)]
pub(super) struct Questions {
    /// Numbers of questions; all unless named.
    #[arg(long, value_delimiter = ',')]
    only: Vec<u32>,
    /// Programs, as NAME=COMMAND.
    #[arg(long)]
    peer: Vec<String>,
    #[command(flatten)]
    process: Process,
}

#[cfg(feature = "cuda")]
impl Questions {
    pub(super) fn run(self) -> Result<String, BadInput> {
        environment::check(&[])?;
        crate::gpu::questions::run(&self.only, &self.peer, &self.process)?;
        Ok(String::new())
    }
}

impl Case {
    pub(super) fn run(self) -> Result<String, BadInput> {
        let rows: Result<Vec<Row>, BadInput> = match self.group.as_str() {
            #[cfg(feature = "peers")]
            "host" => {
                environment::check(&crate::peers::set_by_us())?;
                crate::peers::case(&crate::place::root(), &self.name, self.size, &self.process)
            }
            #[cfg(feature = "peers")]
            "arena" => {
                environment::check(&[])?;
                crate::peers::arena::run(std::path::Path::new(&self.name), &self.process)
            }
            other => {
                environment::check(&[])?;
                let backend = Backend::named(other).filter(|it| it.peers() != Peers::None);
                backend.ok_or_else(|| no_peers(other))?.beside_peers(&self.peer, &self.process)
            }
        };
        Ok(super::lines(&rows?))
    }
}

fn no_peers(group: &str) -> BadInput {
    let what = format!("peers of `{group}`: there are none, or they are not built in");
    BadInput::new(what, "`cargo xtask bench --peers`")
}

/// A bar that moves while a case takes long.
fn ticking(steps: u64) -> indicatif::ProgressBar {
    let bar = crate::results::progress(steps, "");
    bar.enable_steady_tick(std::time::Duration::from_millis(200));
    bar
}

impl Bench {
    pub(super) fn against_peers(
        &self,
        group: Group,
        spread: &Spread,
        results: &mut Results,
    ) -> Result<(), BadInput> {
        let is_host = (group, self.backend.is_empty()) == (Group::Host, true);
        let is_preload = (group, self.backend.is_empty()) == (Group::Preload, true);
        let is_applications = (group, self.backend.is_empty()) == (Group::Applications, true);
        if !is_host && !is_applications && self.before.is_some() {
            let what = "`--before` with these peers";
            return Err(BadInput::new(what, "`--peers host` or `--peers applications`"));
        }
        if !is_host && !is_preload && !is_applications && !self.case.is_empty() {
            let what = "`--case` with these peers";
            let expected = "`--peers host`, `--peers preload` or `--peers applications`";
            return Err(BadInput::new(what, expected));
        }
        if !is_preload && self.programs.is_some() {
            return Err(BadInput::new("`--programs` with these peers", "`--peers preload`"));
        }
        results.rows = match (self.backend.as_slice(), group) {
            ([], Group::Host) if self.peer.is_empty() => self.beside_the_tcache(spread, results)?,
            ([], Group::Arena) if self.peer.is_empty() => self.beside_the_arena(spread)?,
            ([], Group::Pools | Group::Service) if self.peer.is_empty() => {
                self.beside_pools(group == Group::Service, spread)?
            }
            ([], Group::Preload) if self.peer.is_empty() => self.preloaded(spread, results)?,
            ([], Group::Applications) if self.peer.is_empty() => {
                results.applications = self.applications(spread, results)?;
                Vec::new()
            }
            ([backend], Group::Host) if self.has_peers(*backend) => {
                self.beside_ours(*backend, spread)?
            }
            _ => {
                return Err(BadInput::new(
                    "`--peers` with this group, these backends or programs",
                    "`--peers`, `--peers arena`, `--peers pools`, `--peers service`, \
                     `--peers preload`, `--peers applications`, \
                     `--backend wgpu --peers`, or `--backend cuda --peers` with any number of \
                     `--peer NAME=COMMAND`",
                ));
            }
        };
        Ok(())
    }

    /// Programs that are not changed, under each malloc that can be preloaded.
    fn preloaded(&self, spread: &Spread, results: &mut Results) -> Result<Vec<Row>, BadInput> {
        let bar = ticking(crate::preload::steps());
        let tick = |case: &str| {
            bar.set_message(case.to_owned());
            bar.inc(1);
        };
        let programs = self.programs.as_deref();
        let notes = &mut results.notes;
        let rows = crate::preload::run(self.smoke, &self.case, programs, spread, notes, tick)?;
        bar.finish_and_clear();
        Ok(rows)
    }

    /// Servers, NumPy, PyTorch and a build, under each malloc that can be preloaded.
    fn applications(&self, spread: &Spread, results: &mut Results) -> Result<Vec<Row>, BadInput> {
        let bar = ticking(crate::applications::steps());
        let tick = |case: &str| {
            bar.set_message(case.to_owned());
            bar.inc(1);
        };
        let (before, notes) = (self.before.as_deref(), &mut results.notes);
        // A run that is cut off has told what it knew.
        let tell = |line: String| bar.suspend(|| eprintln!("{line}"));
        let rows =
            crate::applications::run(self.smoke, &self.case, before, spread, notes, tick, tell)?;
        bar.finish_and_clear();
        Ok(rows)
    }

    /// Whether this kind of memory is measured beside others, and beside the named programs.
    fn has_peers(&self, backend: Backend) -> bool {
        match backend.peers() {
            Peers::None => false,
            Peers::Ways => self.peer.is_empty(),
            Peers::WaysAndPrograms => true,
        }
    }

    /// A kind of memory beside the other ways to have it.
    fn beside_ours(&self, backend: Backend, spread: &Spread) -> Result<Vec<Row>, BadInput> {
        if let Some(Absence { why, cure }) = backend.absence() {
            return Err(BadInput::new(format!("backend `{}`: {why}", backend.name()), cure));
        }
        let name = backend.name();
        let mut arguments = vec!["peer", name, "-"];
        arguments.extend(self.smoke.then_some("--smoke"));
        for peer in &self.peer {
            arguments.extend(["--peer", peer]);
        }
        let bar = ticking(spread.processes as u64);
        let mut processes: Vec<Vec<Row>> = Vec::new();
        for at in 0..spread.processes {
            bar.set_message(format!("{name}, process {} of {}", at + 1, spread.processes));
            let rows = spread.one(at, &arguments, &[])?;
            // A run that is cut off has told what it knew.
            for line in rows.iter().filter_map(|row| serde_json::to_string(row).ok()) {
                eprintln!("{line}");
            }
            processes.push(rows);
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(rounds::pool(processes, &[]))
    }

    #[cfg(feature = "peers")]
    fn beside_the_tcache(
        &self,
        spread: &Spread,
        results: &mut Results,
    ) -> Result<Vec<Row>, BadInput> {
        let bar = ticking(crate::peers::steps());
        let tick = |case: &str| {
            bar.set_message(case.to_owned());
            bar.inc(1);
        };
        let rows = {
            let chosen = crate::peers::Chosen::new(&self.case, self.before.as_deref())?;
            crate::peers::run(self.smoke, &chosen, spread, &mut results.notes, tick)?
        };
        bar.finish_and_clear();
        Ok(rows)
    }

    #[cfg(feature = "peers")]
    fn beside_the_arena(&self, spread: &Spread) -> Result<Vec<Row>, BadInput> {
        let files = crate::place::traces(self.smoke)?;
        let bar = ticking(files.len() as u64);
        let mut rows = Vec::new();
        for file in &files {
            let file = file.to_string_lossy();
            bar.set_message(file.rsplit('/').next().unwrap_or_default().to_owned());
            let mut arguments = vec!["peer", "arena", &file];
            arguments.extend(self.smoke.then_some("--smoke"));
            let processes = spread.run(&arguments, &[])?;
            rows.extend(crate::peers::arena::pool(processes));
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(rows)
    }

    #[cfg(not(feature = "peers"))]
    #[expect(clippy::unused_self, reason = "as with the feature")]
    fn beside_the_tcache(&self, _: &Spread, _: &mut Results) -> Result<Vec<Row>, BadInput> {
        Err(BadInput::new("`--peers`: they are not built in", "`cargo xtask bench --peers`"))
    }

    #[cfg(feature = "peers")]
    fn beside_pools(&self, service: bool, spread: &Spread) -> Result<Vec<Row>, BadInput> {
        use crate::peers::{run_pools, service, steps_of_pools};
        let bar = ticking(if service { service::steps() } else { steps_of_pools() });
        let tick = |case: &str| {
            bar.set_message(case.to_owned());
            bar.inc(1);
        };
        let rows = match service {
            true => service::run(self.smoke, spread, tick)?,
            false => run_pools(self.smoke, spread, tick)?,
        };
        bar.finish_and_clear();
        Ok(rows)
    }

    #[cfg(not(feature = "peers"))]
    #[expect(clippy::unused_self, reason = "as with the feature")]
    fn beside_pools(&self, _: bool, _: &Spread) -> Result<Vec<Row>, BadInput> {
        Err(BadInput::new("`--peers`: they are not built in", "`cargo xtask bench --peers pools`"))
    }

    #[cfg(not(feature = "peers"))]
    #[expect(clippy::unused_self, reason = "as with the feature")]
    fn beside_the_arena(&self, _: &Spread) -> Result<Vec<Row>, BadInput> {
        Err(BadInput::new("`--peers`: they are not built in", "`cargo xtask bench --peers arena`"))
    }
}
