//! A contest in its own processes: what an allocator has learned in one, such as glibc its
//! thresholds, must not serve the next, and what differs between processes must show.

use crate::environment;
use crate::input::BadInput;
use clap::Args;
use serde::de::DeserializeOwned;
use std::path::Path;
use std::process::Command;

/// Processes of a contest, unless it is a smoke test, which has one.
pub const PROCESSES: usize = 5;

/// The arguments of one process of a contest.
#[derive(Debug, Args)]
pub struct Process {
    /// Processes of the contest.
    #[arg(long, default_value_t = 1)]
    pub processes: usize,
    /// Which of them this is.
    #[arg(long = "process", default_value_t = 0)]
    pub number: usize,
    /// The seed of the orders in which contenders take turns.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// A few small rounds.
    #[arg(long)]
    pub smoke: bool,
}

impl Process {
    /// The rounds of this process, of `rounds` in all.
    #[must_use]
    pub fn share(&self, rounds: usize) -> usize {
        rounds.div_ceil(self.processes.max(1))
    }
}

/// How a contest is spread over processes.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// How many there are.
    pub processes: usize,
    /// The seed of the orders in which contenders take turns; each process adds its number.
    pub seed: u64,
}

impl Spread {
    /// One process for a smoke test, else [`PROCESSES`].
    #[must_use]
    pub fn new(smoke: bool, seed: u64) -> Self {
        Self { processes: if smoke { 1 } else { PROCESSES }, seed }
    }

    /// Runs this program once for each process, with these arguments, `--seed` and these variables,
    /// and reads the objects that it prints, one a line.
    ///
    /// # Errors
    ///
    /// The last line of a process that failed.
    pub fn run<T: DeserializeOwned>(
        &self,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Vec<Vec<T>>, BadInput> {
        (0..self.processes).map(|at| self.one(at, arguments, variables)).collect()
    }

    /// Runs the process of this number.
    ///
    /// # Errors
    ///
    /// As for [`Spread::run`].
    pub fn one<T: DeserializeOwned>(
        &self,
        at: usize,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Vec<T>, BadInput> {
        let program = std::env::current_exe();
        let program = program.map_err(|error| BadInput::new(error.to_string(), "a program"))?;
        self.one_of(&program, at, arguments, variables)
    }

    /// Runs the process of this number of another build of this program.
    ///
    /// # Errors
    ///
    /// As for [`Spread::run`].
    pub fn one_of<T: DeserializeOwned>(
        &self,
        program: &Path,
        at: usize,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Vec<T>, BadInput> {
        let failed = |why: String| {
            BadInput::new(format!("{}: {why}", program.display()), "a run without failures")
        };
        let mut child = Command::new(program);
        let numbers = [
            ("--processes", self.processes as u64),
            ("--process", at as u64),
            ("--seed", self.seed.wrapping_add(at as u64)),
        ];
        child.args(arguments);
        for (name, number) in numbers {
            child.arg(name).arg(number.to_string());
        }
        environment::clean(&mut child).envs(variables.iter().copied());
        let output = child.output().map_err(|error| failed(error.to_string()))?;
        if !output.status.success() {
            // The last line says what was wrong and what was expected.
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            let last = stderr.lines().last().unwrap_or("a process ended without a word");
            return Err(BadInput::told(last.trim_start_matches("error: ")));
        }
        let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let rows: Result<_, _> = lines.map(serde_json::from_slice).collect();
        rows.map_err(|error| failed(error.to_string()))
    }
}
