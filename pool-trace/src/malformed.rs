//! The error for a file that breaks its format.

use std::fmt;
use std::io;

/// A place in a file that breaks its format: what was found, and what was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The line, or `None` for a file without lines.
    pub line: Option<u64>,
    /// The text or value that was found.
    pub found: String,
    /// The text or value that was expected.
    pub expected: String,
}

impl Malformed {
    pub(crate) fn new(found: impl fmt::Display, expected: impl fmt::Display) -> Self {
        Self { line: None, found: found.to_string(), expected: expected.to_string() }
    }

    /// The error of a file that could not be read to its end.
    pub(crate) fn of_read(error: &io::Error, expected: &str) -> Self {
        let own = error.get_ref().and_then(|inner| inner.downcast_ref::<Self>());
        match (own, error.kind()) {
            (Some(own), _) => own.clone(),
            (None, io::ErrorKind::UnexpectedEof) => {
                Self::new("a compressed file that is cut off", "whole frames of zstd")
            }
            (None, _) => Self::new(error, expected),
        }
    }

    pub(crate) fn in_line(self, line: u64) -> Self {
        Self { line: Some(line), ..self }
    }
}

/// `line 3: op `z`; expected one of a, f`
impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        write!(f, "{}; expected {}", self.found, self.expected)
    }
}

impl std::error::Error for Malformed {}

/// Returns enough of a text to recognise it.
pub(crate) fn start_of(text: &str) -> String {
    text.chars().take(40).collect()
}
