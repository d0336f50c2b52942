//! A command whose output is shown as it comes, and whose last lines are kept: what made a step of
//! CI fail is repeated below the table, since a log of ten thousand lines is read from its end.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::process::Command;

/// Lines that are kept of each command.
const KEPT: usize = 30;

/// Runs `command`, both of whose outputs go to our standard output. Returns nothing if it succeeded
/// and its last lines if it did not.
pub(crate) fn run(mut command: Command) -> Option<Vec<String>> {
    if io::stdout().is_terminal() {
        command.env("CARGO_TERM_COLOR", "always"); // it sees a pipe
    }
    let mut lines = VecDeque::new();
    match show(command, &mut lines) {
        Ok(true) => return None,
        Ok(false) => {}
        Err(error) => lines.push_back(format!("the command could not be run: {error}")),
    }
    Some(lines.into())
}

fn show(mut command: Command, lines: &mut VecDeque<String>) -> io::Result<bool> {
    let (reader, writer) = io::pipe()?;
    command.stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn()?;
    drop(command); // our ends for writing: the reader ends when the child's are closed
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        io::stdout().write_all(&line)?;
        if lines.len() == KEPT {
            lines.pop_front();
        }
        lines.push_back(String::from_utf8_lossy(&line).trim_end().to_owned());
        line.clear();
    }
    Ok(child.wait()?.success())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn shell(script: &str) -> Option<Vec<String>> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run(command)
    }

    #[test]
    fn a_success_keeps_nothing() {
        assert_eq!(shell("echo fine"), None);
    }

    #[test]
    fn a_failure_keeps_the_last_lines_of_both_outputs_in_their_order() {
        let lines = shell("seq 100; echo why >&2; echo then; exit 3").unwrap();
        assert_eq!(lines.len(), KEPT);
        assert_eq!(lines[KEPT - 3..], ["100", "why", "then"]);
    }

    #[test]
    fn a_command_that_is_not_there_is_told() {
        let lines = run(Command::new("no-such-program")).unwrap();
        assert!(lines[0].starts_with("the command could not be run: "), "{lines:?}");
    }
}
