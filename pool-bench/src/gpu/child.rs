//! A contender in a child process: another library's allocator, which answers over a pipe.

use super::contender::{Answer, GpuContender, Question, Refused};
use crate::input::BadInput;
use serde::Deserialize;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

pub(super) struct PeerProcess {
    process: std::process::Child,
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// One line of a peer's output.
#[derive(Deserialize)]
#[serde(untagged)]
enum PeerLine {
    Answer(Answer),
    Refusal { error: String },
}

impl PeerProcess {
    /// Starts the peer `NAME=COMMAND`; spaces separate the words of the command.
    pub(super) fn start(peer: &str) -> Result<(String, Box<dyn GpuContender>), BadInput> {
        let expected = "NAME=COMMAND, a program that answers the questions of peers/gpu/peer.hpp";
        let bad = |why: String| BadInput::new(format!("peer `{peer}`: {why}"), expected);
        let (name, command) = peer.split_once('=').ok_or_else(|| bad("no `=`".into()))?;
        let mut words = command.split_whitespace();
        let program = words.next().ok_or_else(|| bad("no command".into()))?;
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|error| bad(error.to_string()))?;
        let questions = process.stdin.take();
        let answers = process.stdout.take().ok_or_else(|| bad("no stdout".into()))?;
        let child = Self { process, questions, answers: BufReader::new(answers) };
        Ok((name.to_owned(), Box::new(child)))
    }
}

impl GpuContender for PeerProcess {
    fn ask(&mut self, question: &Question) -> Result<Answer, Refused> {
        let gone = || Refused("the process has ended".into());
        let questions = self.questions.as_mut().ok_or_else(gone)?;
        writeln!(questions, "{}", question.line()).map_err(|_| gone())?;
        questions.flush().map_err(|_| gone())?;
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(bytes) if bytes > 0 => {}
            _ => return Err(gone()),
        }
        match serde_json::from_str(&line) {
            Ok(PeerLine::Answer(answer)) => Ok(answer),
            Ok(PeerLine::Refusal { error }) => Err(Refused(error)),
            Err(_) => Err(Refused(format!("it said `{}`", line.trim()))),
        }
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        drop(self.questions.take()); // the peer ends when its input ends
        let _ = self.process.wait();
    }
}
