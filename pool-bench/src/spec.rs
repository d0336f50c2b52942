//! Policies of a command line, each with its text as the user typed it.

use crate::input::BadInput;
use bucketpool::config::PolicySpec;
use bucketpool::port::Sliceable;
use bucketpool::size::BadPolicy;
use bucketpool::{BucketPool, DeviceAllocator, PoolBuilder};

/// A policy, with its text.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedPolicy {
    /// Text as the user typed it.
    pub text: String,
    /// Policy that the text means.
    pub spec: PolicySpec,
}

impl From<PolicySpec> for NamedPolicy {
    fn from(spec: PolicySpec) -> Self {
        Self { text: spec.to_string(), spec }
    }
}

impl NamedPolicy {
    /// Returns a builder of pools with this policy, with its arena if it has one.
    pub fn builder<A: Sliceable>(&self, device: A) -> PoolBuilder<A> {
        self.spec.set(BucketPool::builder(device))
    }

    /// Returns a builder of pools with this policy over a device whose blocks cannot be split.
    pub fn without_arena<A: DeviceAllocator>(&self, device: A) -> PoolBuilder<A> {
        self.spec.set_blocks(BucketPool::builder(device))
    }

    /// Returns whether a pool with this policy has an arena.
    #[must_use]
    pub fn has_arena(&self) -> bool {
        self.spec.has_arena()
    }
}

/// Reads a list of policies, separated by commas.
///
/// # Errors
///
/// Fails for a text that is no policy.
pub fn list(text: &str) -> Result<Vec<NamedPolicy>, BadInput> {
    let one = |text: &str| {
        let spec = text.parse().map_err(|bad: BadPolicy| {
            BadInput::new(format!("policy `{text}`: {}", bad.why()), bad.expected())
        })?;
        Ok(NamedPolicy { text: text.to_owned(), spec })
    };
    text.split(',').map(|spec| one(spec.trim())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_keeps_its_text() {
        let read = list("exact:round=16, tiered:4096+64K").unwrap();
        assert_eq!(read[0].text, "exact:round=16");
        assert_eq!(
            (read[1].text.as_str(), read[1].spec.to_string().as_str()),
            ("tiered:4096+64K", "tiered:4K+64K")
        );
    }

    #[test]
    fn a_wrong_policy_of_a_list_is_named() {
        let error = list("exact,,pow2").unwrap_err().to_string();
        assert!(error.starts_with("policy ``: there is no policy of this name; expected exact["));
    }
}
