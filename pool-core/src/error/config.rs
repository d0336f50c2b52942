//! The error of a setting of a pool.

use std::fmt;

/// A setting that is out of its range, or contradicts another: what it is, and what was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(String);

impl ConfigError {
    /// Returns the error of a setting, with its value, and what was expected.
    #[must_use]
    pub fn new(setting: impl fmt::Display, expected: impl fmt::Display) -> Self {
        Self(format!("{setting}; expected {expected}"))
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}
