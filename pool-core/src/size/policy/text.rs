//! The table of policies, and a policy as text.
//!
//! All code that lists policies reads [`BucketPolicy::FORMS`]: the parsers of files and command
//! lines, the error messages, and the generators of random test scripts.

use crate::size::policy::BucketPolicy;
use crate::size::units::SizeText;
use std::fmt;
use std::str::FromStr;

/// A policy as users write it: a row of [`BucketPolicy::FORMS`].
#[derive(Debug)]
#[non_exhaustive]
pub struct PolicyForm {
    /// The name, which a text begins with.
    pub name: &'static str,
    /// The form of the whole text, as a usage line shows it.
    pub form: &'static str,
    /// The key that sets the granule in a text with one, such as `pow2:min=512`.
    pub granule_key: &'static str,
    /// A policy of this form that is useful for requests of up to some 20 KiB; random scripts use it.
    pub example: &'static str,
    read: fn(Option<&str>) -> Result<BucketPolicy, String>,
}

impl BucketPolicy {
    /// All policies, one row each. Random test scripts store the index of a row, so new rows are
    /// added at the end.
    pub const FORMS: &[PolicyForm] = &[
        PolicyForm {
            name: "exact",
            form: "exact[:round=1]",
            granule_key: "round",
            example: "exact",
            read: |argument| no_argument(argument, Self::Exact),
        },
        PolicyForm {
            name: "pow2",
            form: "pow2[:min=512]",
            granule_key: "min",
            example: "pow2",
            read: |argument| no_argument(argument, Self::PowerOfTwo),
        },
        PolicyForm {
            name: "tiered",
            form: "tiered:4K+16K+64K",
            granule_key: "round",
            example: "tiered:256+4K+5000+20K",
            read: read_tiers,
        },
        PolicyForm {
            name: "fit",
            form: "fit:2[:round=512]",
            granule_key: "round",
            example: "fit:2",
            read: read_factor,
        },
    ];

    /// Returns the row of this policy.
    ///
    /// ```
    /// use pool_core::BucketPolicy;
    ///
    /// assert_eq!(BucketPolicy::PowerOfTwo.form().name, "pow2");
    /// ```
    #[must_use]
    pub fn form(&self) -> &'static PolicyForm {
        &Self::FORMS[match self {
            Self::Exact => 0,
            Self::PowerOfTwo => 1,
            Self::Tiered(_) => 2,
            Self::Fit { .. } => 3,
        }]
    }

    /// Returns an example of each policy.
    ///
    /// ```
    /// use pool_core::BucketPolicy;
    ///
    /// assert!(BucketPolicy::examples().contains(&BucketPolicy::Fit { alpha: 2.0 }));
    /// ```
    #[must_use]
    pub fn examples() -> Vec<Self> {
        // A test reads each of them.
        Self::FORMS.iter().filter_map(|form| form.example.parse().ok()).collect()
    }
}

impl PolicyForm {
    /// Reads the policy of this form with the argument that stands behind its name, if one does.
    ///
    /// # Errors
    ///
    /// The reason why the argument is wrong, as a sentence that does not repeat the whole text.
    ///
    /// ```
    /// use pool_core::BucketPolicy;
    ///
    /// let fit = BucketPolicy::Fit { alpha: 1.5 };
    /// assert_eq!(fit.form().read(Some("1.5")), Ok(fit));
    /// assert_eq!(BucketPolicy::Exact.form().read(Some("2")), Err("`2` has no place".to_owned()));
    /// ```
    pub fn read(&self, argument: Option<&str>) -> Result<BucketPolicy, String> {
        (self.read)(argument)
    }
}

fn no_argument(argument: Option<&str>, policy: BucketPolicy) -> Result<BucketPolicy, String> {
    argument.map_or(Ok(policy), |argument| Err(format!("`{argument}` has no place")))
}

fn read_tiers(argument: Option<&str>) -> Result<BucketPolicy, String> {
    let classes = argument.ok_or("it takes one list of classes")?;
    let class = |text: &str| text.parse().ok().map(|SizeText(bytes)| bytes);
    let classes: Option<Vec<u64>> = classes.split('+').map(class).collect();
    let classes = classes.ok_or("its classes are no sizes")?;
    match classes.iter().all(|class| *class == 0) {
        true => Err("it has no class".into()),
        false => Ok(BucketPolicy::tiered(&classes)),
    }
}

fn read_factor(argument: Option<&str>) -> Result<BucketPolicy, String> {
    let factor = argument.ok_or("it takes one factor")?;
    match factor.parse::<f64>() {
        Ok(alpha) if alpha.is_finite() && alpha >= 1.0 => Ok(BucketPolicy::Fit { alpha }),
        _ => Err(format!("`{factor}` is no factor of 1 or more")),
    }
}

/// A text that is no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("policy `{text}`: {why}; expected {expected}")]
pub struct BadPolicy {
    text: String,
    why: String,
    expected: String,
}

impl BadPolicy {
    /// Returns the error for `text`, with the reason `why` and the expected forms. If any form
    /// begins with the name in the text, the error shows only such forms.
    pub fn new<'f>(
        text: &str,
        why: impl Into<String>,
        forms: impl IntoIterator<Item = &'f str>,
    ) -> Self {
        let name = text.split(':').next().unwrap_or_default();
        let all: Vec<&str> = forms.into_iter().collect();
        let is_of_name = |form: &&&str| form.split([':', '[']).next() == Some(name);
        let of_name: Vec<&str> = all.iter().filter(is_of_name).copied().collect();
        let forms = if of_name.is_empty() { all } else { of_name };
        let expected = match forms.split_last() {
            Some((last, others @ [_, ..])) => format!("{} or {last}", others.join(", ")),
            _ => forms.concat(),
        };
        Self { text: text.to_owned(), why: why.into(), expected }
    }

    /// Returns the texts that a policy of this name may have, or all if there is no such name.
    #[must_use]
    pub fn expected(&self) -> &str {
        &self.expected
    }

    /// Returns the reason why the text is wrong, without the text itself and the expected forms.
    #[must_use]
    pub fn why(&self) -> &str {
        &self.why
    }
}

/// Reads a policy without a granule: `exact`, `pow2`, `tiered:4K+64K` or `fit:2`.
///
/// ```
/// use pool_core::BucketPolicy;
///
/// let policy: BucketPolicy = "tiered:4096+64K".parse()?;
/// assert_eq!(policy.to_string(), "tiered:4K+64K");
/// let error = "fit:0.5".parse::<BucketPolicy>().unwrap_err().to_string();
/// assert!(error.starts_with("policy `fit:0.5`: `0.5` is no factor of 1 or more; expected fit:2"));
/// # Ok::<(), pool_core::size::BadPolicy>(())
/// ```
impl FromStr for BucketPolicy {
    type Err = BadPolicy;

    fn from_str(text: &str) -> Result<Self, BadPolicy> {
        let (name, argument) = match text.split_once(':') {
            Some((name, argument)) => (name, Some(argument)),
            None => (text, None),
        };
        let form = Self::FORMS.iter().find(|form| form.name == name);
        let form = form.ok_or_else(|| "there is no policy of this name".to_owned());
        form.and_then(|form| form.read(argument))
            .map_err(|why| BadPolicy::new(text, why, Self::FORMS.iter().map(|form| form.form)))
    }
}

impl fmt::Display for BucketPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.form().name;
        match self {
            Self::Exact | Self::PowerOfTwo => f.write_str(name),
            Self::Fit { alpha } => write!(f, "{name}:{alpha}"),
            Self::Tiered(classes) => {
                let classes = classes.iter().map(|class| SizeText(*class).to_string());
                write!(f, "{name}:{}", classes.collect::<Vec<_>>().join("+"))
            }
        }
    }
}
