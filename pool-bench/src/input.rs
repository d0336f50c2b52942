//! Bad input: one line that names what was wrong and what was expected.

use std::fmt;

/// What was wrong with what the user gave, in one line.
#[derive(Debug, PartialEq, Eq)]
pub struct BadInput(String);

impl BadInput {
    /// `what` was found, `expected` was not.
    pub fn new(what: impl fmt::Display, expected: impl fmt::Display) -> Self {
        let line = format!("{what}; expected {expected}");
        // Whatever the input held: one line, nothing that moves a terminal's cursor.
        Self(line.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect())
    }

    /// A line that another process has made.
    #[must_use]
    pub fn told(line: &str) -> Self {
        Self(line.to_owned())
    }

    /// The same, in a line of a file whose name comes before it.
    #[must_use]
    pub fn in_line(self, line: u64) -> Self {
        Self(format!("line {line}: {}", self.0))
    }

    /// The same, in a file.
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
