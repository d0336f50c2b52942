//! The errors of a pool: a refused request with the figures of that moment, and wrong settings.

mod figures;
mod text;

pub use crate::port::{DeviceError, Limit, Why};
pub use figures::{CachedOnStream, Figures, Verdict};

use std::{error, fmt};

/// The error of a pool that could not do what the caller requested, with the pool's figures at that
/// moment.
///
/// It is one pointer wide, so that a `Result` of it costs the hit path nothing. The error of the
/// device is its [`source`](error::Error::source).
///
/// `{:?}` is the sentence of `{}`, which a `main` that returns the error prints; `{:#?}` has all
/// figures.
pub struct AllocError(Box<Figures>);

impl AllocError {
    #[cold]
    pub(crate) fn new(figures: Figures) -> Self {
        Self(Box::new(figures))
    }

    /// Returns an error with this cause. The verdict follows from `cause` and from `figures`, whose
    /// own cause is the error of the last search. `cpu_touches`: the CPU may access the memory
    /// without a stream.
    #[cold]
    pub(crate) fn judged(figures: Figures, cause: DeviceError, cpu_touches: bool) -> Self {
        let verdict = figures.judge(cause, cpu_touches);
        Self::new(Figures { cause, verdict, ..figures })
    }

    /// Returns the error with the argument of the call that was wrong, and what was expected.
    ///
    /// ```
    /// use pool_core::{AllocError, DeviceError, Why};
    ///
    /// let error = AllocError::from(DeviceError::new(Why::ShapeMismatch, "add arrays"));
    /// let error = error.with_argument("shapes [2] and [3]; expected one shape");
    /// assert!(error.to_string().contains("shapes [2] and [3]"));
    /// ```
    #[cold]
    #[must_use]
    pub fn with_argument(mut self, text: impl Into<Box<str>>) -> Self {
        self.0.wrong_argument = Some(text.into());
        self
    }

    /// Returns the kind of the error.
    #[must_use]
    pub fn why(&self) -> Why {
        self.0.cause.why
    }

    /// Returns the reason of the failure.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.0.verdict
    }

    /// Returns the figures of the pool when it refused the request.
    #[must_use]
    pub fn figures(&self) -> &Figures {
        &self.0
    }
}

/// An error of a call that was not a request of this pool, with none of its figures.
impl From<DeviceError> for AllocError {
    #[cold]
    fn from(cause: DeviceError) -> Self {
        Self::new(Figures { verdict: Verdict::Refused, ..Figures::unknown(cause) })
    }
}

impl error::Error for AllocError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        Some(&self.0.cause)
    }
}

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

impl error::Error for ConfigError {}
