//! Bad input: one line that names what was found and what was expected.

use std::fmt;

/// A description of bad user input, in one line.
#[derive(Debug, PartialEq, Eq)]
pub struct BadInput(String);

impl BadInput {
    /// Creates the error: `what` was found, `expected` was expected.
    pub fn new(what: impl fmt::Display, expected: impl fmt::Display) -> Self {
        let line = format!("{what}; expected {expected}");
        // The error is always one line, without characters that move a terminal's cursor.
        Self(line.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect())
    }

    /// Creates the error from a line that another process has written.
    #[must_use]
    pub fn told(line: &str) -> Self {
        Self(line.to_owned())
    }

    /// Adds the number of the line in a file.
    #[must_use]
    pub fn in_line(self, line: u64) -> Self {
        Self(format!("line {line}: {}", self.0))
    }

    /// Adds the name of the file.
    #[must_use]
    pub fn in_file(self, file: impl fmt::Display) -> Self {
        let comma = if self.0.starts_with("line ") { "," } else { ":" };
        Self(format!("{file}{comma} {}", self.0))
    }
}

impl fmt::Display for BadInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadInput {}
