//! A setting of a pool that cannot be.

use std::fmt;

/// A setting that has a value it cannot have, or that contradicts another: what it is, and what was
/// expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(String);

impl ConfigError {
    pub(crate) fn new(setting: impl fmt::Display, expected: impl fmt::Display) -> Self {
        Self(format!("{setting}; expected {expected}"))
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}
