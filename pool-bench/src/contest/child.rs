//! A contender in its own process, which takes a step when it reads its number.

use super::{Contender, Failed, Standing, Turn};
use crate::backend::Backend;
use crate::environment;
use crate::workload::Workload;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

/// The process, and both ends of the talk with it.
#[derive(Debug)]
pub struct Child {
    name: String,
    process: std::process::Child,
    /// Closed at the end.
    numbers: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Child {
    /// Starts this program as a contender. Variables that change an allocator do not reach it.
    ///
    /// # Errors
    ///
    /// A process that cannot be started.
    pub fn start(
        workload: Workload,
        backend: Backend,
        name: &str,
        flags: &[&str],
    ) -> Result<Self, Failed> {
        let failed = |error: io::Error| Failed(format!("{name}: {error}"));
        let mut child = Command::new(std::env::current_exe().map_err(failed)?);
        child.args(["contest", "--workload", &workload.name(), "--backend", backend.name()]);
        child.args(["--contender", name]).args(flags);
        child.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = environment::clean(&mut child).spawn().map_err(failed)?;
        let numbers = process.stdin.take();
        let answers = process.stdout.take().ok_or_else(|| Failed("no pipe".into()))?;
        Ok(Self { name: name.to_owned(), process, numbers, answers: BufReader::new(answers) })
    }

    /// The next line that it says.
    fn line(&mut self) -> Result<String, Failed> {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(bytes) if bytes > 0 => Ok(line),
            // It has said why on stderr, which it shares with this process.
            Ok(_) => Err(Failed(format!("{}: its process has ended", self.name))),
            Err(error) => Err(Failed(format!("{}: {error}", self.name))),
        }
    }
}

impl Contender for Child {
    fn name(&self) -> &str {
        &self.name
    }

    fn turn(&mut self, number: u64) -> Result<Turn, Failed> {
        if let Some(numbers) = &mut self.numbers {
            // Where the process has ended, reading its answer says so.
            let _ = writeln!(numbers, "{number}");
        }
        let line = self.line()?;
        serde_json::from_str(&line).map_err(|_| Failed(format!("{}: {line}", self.name)))
    }

    fn end(mut self: Box<Self>) -> Result<Standing, Failed> {
        drop(self.numbers.take()); // the end of its numbers is its end
        let line = self.line()?;
        serde_json::from_str(&line).map_err(|_| Failed(format!("{}: {line}", self.name)))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        drop(self.numbers.take());
        let _ = self.process.wait();
    }
}

/// Takes the steps whose numbers come on stdin, and answers each on stdout. Returns what the
/// contender has counted when there are no more.
///
/// # Errors
///
/// A step that failed.
pub fn answer(mut contender: Box<dyn Contender>) -> Result<Standing, Failed> {
    let mut stdout = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let number = line.ok().and_then(|line| line.trim().parse().ok());
        let number = number.ok_or_else(|| Failed("no number of a step".into()))?;
        let turn = contender.turn(number)?;
        let answer = serde_json::to_string(&turn).map_err(|error| Failed(error.to_string()))?;
        let told = writeln!(stdout, "{answer}").and_then(|()| stdout.flush());
        told.map_err(|error| Failed(error.to_string()))?;
    }
    contender.end()
}
